"""The documents that nano-critic is trained on: which conclusions of worked-through questions are wrong."""

import hashlib
import random
from functools import cache

import pytest

from pretrain.checks import RIGHT, VERDICT, WRONG, Checks
from pretrain.source import Source
from pretrain.styles import Document
from stepladder.data.atlas import Atlas, generate_atlas


@cache
def world() -> Atlas:
    return generate_atlas("small", seed=7)


def checks(seed: int, chains: float = 0.0) -> Checks:
    return Checks(Source(world(), random.Random(seed)), chains=chains)


def verdicts(document: Document) -> list[str]:
    return [text for text, weight in document if weight == VERDICT]


@pytest.fixture(scope="module")
def chains() -> list[Document]:
    writer = checks(0)
    return [writer.chains() for _ in range(300)]


def test_a_conclusion_after_a_wrong_answer_is_wrong(chains: list[Document]) -> None:
    after_error = [each for each in map(verdicts, chains) if WRONG in each[:-1]]
    assert len(after_error) > 50
    assert all(each[-1] == WRONG for each in after_error)


def test_conclusions_of_right_answers_are_right_wrong_or_early(chains: list[Document]) -> None:
    ends = [each[-1] for each in map(verdicts, chains) if WRONG not in each[:-1]]
    assert 0.3 < ends.count(RIGHT) / len(ends) < 0.7


def test_only_verdicts_count(chains: list[Document]) -> None:
    assert {weight for document in chains for text, weight in document if text in (RIGHT, WRONG)} >= {VERDICT}
    others = (weight for document in chains for text, weight in document if text not in (RIGHT, WRONG))
    assert max(others) < VERDICT


def digest(writer: Checks) -> str:
    texts = "".join(text for _ in range(40) for text, _ in writer.write())
    return hashlib.sha256(texts.encode()).hexdigest()[:16]


def test_without_a_share_the_documents_are_those_of_the_included_model() -> None:
    assert digest(checks(3)) == "878278fc6d269256"
    assert digest(checks(3, 0.5)) != "878278fc6d269256"
