"""The gold judge on natural queries: it agrees with the labels of people (`tests/support/labelled_queries.py`)."""

from collections import Counter

import pytest

from stepladder.oracle.step_judge import judge
from tests.support.labelled_queries import LabelledQuery, labelled_queries

SETS = ("hotpotqa", "2wikimultihopqa", "musique")
SOURCES = {"musique", "written", "smollm2-135m", "qwen2.5-coder-1.5b"}


@pytest.fixture(scope="module")
def queries() -> list[LabelledQuery]:
    return list(labelled_queries())


def test_the_file_has_enough_of_everything(queries: list[LabelledQuery]) -> None:
    counts = Counter((each.dataset, each.label) for each in queries)
    assert set(counts) == {(name, label) for name in SETS for label in ("good", "bad")}
    assert all(counts[name, "good"] + counts[name, "bad"] >= 100 for name in SETS)
    assert all(0.4 <= counts[name, "good"] / (counts[name, "good"] + counts[name, "bad"]) <= 0.6 for name in SETS)
    assert {each.source for each in queries} == SOURCES
    assert {each.split for each in queries} == {"develop", "held out"}
    bad = {each.why for each in queries if each.label == "bad"}
    assert bad == {"entity", "relation", "known", "unrelated", "whole"}


@pytest.mark.parametrize("label", ["good", "bad"])
@pytest.mark.parametrize("name", SETS)
def test_the_judge_agrees_with_the_labels(queries: list[LabelledQuery], name: str, label: str) -> None:
    rows = [each for each in queries if (each.dataset, each.label) == (name, label)]
    missed = []
    for each in rows:
        verdict = judge(each.trajectory)[-1]
        assert verdict is not None
        if verdict.good != (label == "good"):
            missed.append((each.split, each.trajectory.queries[-1], verdict.reason))
    assert len(missed) <= 0.05 * len(rows), missed


def test_every_known_hop_of_the_file_was_answered_well(queries: list[LabelledQuery]) -> None:
    for each in queries:
        before = judge(each.trajectory)[:-1]
        assert all(verdict is not None and verdict.good for verdict in before), each.trajectory
