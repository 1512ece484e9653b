"""Indexes of towns in Milvus and in others, and what is found in them."""

from contextlib import closing
from pathlib import Path

import pytest

from stepladder.core.trace import Passage
from stepladder.retrieval.index.build import build_index, open_index

QUERIES = ["the river a1", "Town 12", "where does it lie?"]


def build(corpus: object, folder: Path, model: Path, kind: str = "milvus", **settings: object) -> Path:
    build_index(corpus, folder, kind, encoder=str(model), device="cpu", dtype="fp32", **settings)  # type: ignore[arg-type]
    return folder


def found(folder: Path, k: int = 10) -> list[tuple[Passage, ...]]:
    with closing(open_index(folder)) as index:
        return index.search(QUERIES, k)


def expect_same(results: list[tuple[Passage, ...]], expected: list[tuple[Passage, ...]]) -> None:
    for ours, theirs in zip(results, expected, strict=True):
        assert [passage.id for passage in ours] == [passage.id for passage in theirs]
        assert [passage.score for passage in ours] == pytest.approx([passage.score for passage in theirs], abs=1e-4)
