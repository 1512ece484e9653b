"""BM25 search finds the right passages, in the right order, and keeps the contract of retrievers."""

import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from stepladder.core.errors import ContractViolation, StepladderError
from stepladder.core.trace import Passage
from stepladder.retrieval.base import Retriever, check_retriever
from stepladder.retrieval.corpus.passage_store import PassageStore, PassageWriter
from stepladder.retrieval.corpus.reader import read_corpus
from stepladder.retrieval.corpus.tables import CorpusError
from stepladder.retrieval.index import bm25
from stepladder.retrieval.index.bm25 import BM25Index, bm25s, tokenize, top_k
from stepladder.retrieval.index.build import build_index

WORLD = (
    Passage("p0", "Orla", "Orla is a city on the river Ven. Its oldest bridge is Span One."),
    Passage("p1", "Span One", "Span One is a bridge designed by the engineer Ena Voss in 1790."),
    Passage("p2", "Ena Voss", "Ena Voss was an engineer born in the town of Küstrow."),
    Passage("p3", "Küstrow", "Küstrow is a small town known for its bells."),
    Passage("p4", "Ven", "The Ven is a river. Fishing is popular."),
    Passage("p5", "Bells of Küstrow", "The bells were cast in 1701 and ring at noon."),
)
QUERIES = ("Who designed the bridge Span One?", "town bells", "river", "Where was Ena Voss born?", "1790")


@pytest.fixture(params=["memory", "folder"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> BM25Index:
    """The same small world, in memory and on disk."""
    if request.param == "memory":
        return BM25Index.from_passages(WORLD)
    BM25Index.build(WORLD, tmp_path)
    return BM25Index.open(tmp_path, WORLD)


def test_finds_passages_best_first(index: BM25Index) -> None:
    (found,) = index.search(["Which engineer designed Span One?"], k=3)
    assert [passage.id for passage in found] == ["p1", "p0", "p2"]
    assert replace(found[0], score=None) == WORLD[1]


def test_keeps_the_contract(index: BM25Index) -> None:
    check_retriever(index, QUERIES)
    index.close()


def test_passages_that_share_no_word_are_not_results(index: BM25Index) -> None:
    assert [[passage.id for passage in found] for found in index.search(["noon", "zebra", "the", ""], k=5)] == [
        ["p5"],
        [],
        [],
        [],
    ]


@pytest.mark.parametrize("query", ["KUSTROW", "küstrow", "Ku\u0308strow"])
def test_case_and_accents_do_not_matter(index: BM25Index, query: str) -> None:
    (found,) = index.search([query], k=1)
    assert found[0].id == "p3"


def test_words_are_stemmed_and_stop_words_dropped() -> None:
    assert tokenize("The bridges designed by X, in 1790!") == ["bridg", "design", "x", "1790"]
    assert tokenize("fishing fished fish") == ["fish"] * 3


def test_scores_are_those_of_the_formula() -> None:
    """Lucene's BM25, worked out term by term: idf(t) tf / (tf + k1 (1 - b + b length / mean length))."""
    texts = ["apple apple pear", "apple plum plum plum plum", "kiwi"]
    k1, b = 1.5, 0.6
    index = BM25Index.from_passages([Passage(str(i), "", text) for i, text in enumerate(texts)], k1=k1, b=b)
    mean = (3 + 5 + 1) / 3
    idf_apple, idf_pear = math.log(1 + (3 - 2 + 0.5) / 2.5), math.log(1 + (3 - 1 + 0.5) / 1.5)
    long, short = k1 * (1 - b + b * 5 / mean), k1 * (1 - b + b * 3 / mean)
    (found,) = index.search(["apples and a pear"], k=3)
    assert [(passage.id, passage.score) for passage in found] == [
        ("0", pytest.approx(idf_apple * 2 / (2 + short) + idf_pear * 1 / (1 + short))),
        ("1", pytest.approx(idf_apple * 1 / (1 + long))),
    ]


def test_words_of_the_title_count_more() -> None:
    passages = [Passage("text", "x y", "bell bell"), Passage("title", "bell", "x y x")]
    (plain,) = BM25Index.from_passages(passages, title_weight=1).search(["bell"], k=2)
    (weighted,) = BM25Index.from_passages(passages, title_weight=3).search(["bell"], k=2)
    assert [passage.id for passage in plain] == ["text", "title"]
    assert [passage.id for passage in weighted] == ["title", "text"]


def test_equal_scores_come_in_the_order_of_the_corpus() -> None:
    index = BM25Index.from_passages([Passage(f"p{i}", "", "same words") for i in range(3000)])
    (found,) = index.search(["words"], k=4)
    assert [passage.id for passage in found] == ["p0", "p1", "p2", "p3"]


def test_agrees_with_the_library() -> None:
    random = np.random.default_rng(0)
    texts = [" ".join(f"w{n}x" for n in random.zipf(1.3, 30) % 500) for _ in range(2000)]
    queries = [" ".join(f"w{n}x" for n in random.zipf(1.3, 5) % 500) for _ in range(50)]
    index = BM25Index.from_passages([Passage(str(i), "", text) for i, text in enumerate(texts)])
    plain = bm25s.BM25(k1=1.2, b=0.75, method="lucene")
    plain.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
    _, expected = plain.retrieve(bm25s.tokenize(queries, show_progress=False), k=10, show_progress=False)
    found = [[passage.score for passage in passages] for passages in index.search(queries, k=10)]
    np.testing.assert_allclose(np.array(found), expected, rtol=1e-5)


def test_without_numba_it_finds_the_same(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    index = BM25Index.from_passages(WORLD)
    expected = index.search(QUERIES, k=5)
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(bm25, "_SCORER", bm25._compiled_scorer())
    assert index.search(QUERIES, k=5) == expected
    assert "numba is not installed" in caplog.text


def test_a_damaged_index_writes_to_no_other_memory() -> None:
    index = BM25Index.from_passages(WORLD)
    index._postings[1][:] = 2**30  # passages that do not exist
    with pytest.raises(IndexError):
        index.search(QUERIES, k=1)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=400), st.integers(1, 12))
def test_best_is_a_stable_sort(values: list[int], k: int) -> None:
    expected = sorted((i for i, value in enumerate(values) if value > 0), key=lambda i: (-values[i], i))[:k]
    assert top_k(np.array(values, dtype=np.float32), k) == expected


def test_threads_may_share_an_index(index: BM25Index) -> None:
    expected = index.search(QUERIES, k=3)
    with ThreadPoolExecutor(4) as pool:
        assert all(found == expected for found in pool.map(lambda _: index.search(QUERIES, k=3), range(50)))


def test_settings_and_corpora_that_make_no_sense_are_refused() -> None:
    for settings in ({"k1": -1.0}, {"b": 1.5}, {"title_weight": 0}, {"k2": 1.0}):
        with pytest.raises(StepladderError, match=f"^bm25: {next(iter(settings))}: "):
            BM25Index.from_passages(WORLD, **settings)
    with pytest.raises(CorpusError, match="there are no passages"):
        BM25Index.from_passages([])
    with pytest.raises(CorpusError, match="passages 0 and 1 have the same id 'p0'"):
        BM25Index.from_passages([WORLD[0], WORLD[0]])
    with pytest.raises(CorpusError, match="none of the 1 passages has a searchable word"):
        BM25Index.from_passages([Passage("a", "The", "of ...")])


@pytest.mark.parametrize("already_imported", [True, False])
def test_jax_is_never_started(tmp_path: Path, already_imported: bool) -> None:
    """JAX takes most of a GPU's memory when it starts, and bm25s would start it."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("print('jax imported')\n")
    (tmp_path / "jax" / "lax.py").write_text("def top_k(*_): print('jax started')\n")
    first = "import jax.lax" if already_imported else ""
    script = f"{first}\nimport stepladder.retrieval.index.bm25\nprint('ready')\nimport jax.lax\njax.lax.top_k"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = ["jax imported", "ready"] if already_imported else ["ready", "jax imported"]
    assert done.stdout.split("\n")[:-1] == expected


def test_passages_on_disk(tmp_path: Path) -> None:
    passages = (*WORLD, Passage("odd", 'quo"te', "line\nbreak \u2028 \N{ROCKET} \ud800", score=3.0))
    with PassageWriter(tmp_path) as writer:
        for passage in passages:
            writer.add(passage)
    store = PassageStore(tmp_path)
    assert len(store) == len(passages)
    assert [store[i] for i in (3, 0)] == [WORLD[3], WORLD[0]]
    assert store[6] == replace(passages[6], score=None)
    for position in (-1, 7):
        with pytest.raises(IndexError, match=f"passage {position} is out of range: there are passages 0 to 6"):
            store[position]


def test_the_passages_of_an_index_are_a_corpus(tmp_path: Path) -> None:
    build_index(WORLD, tmp_path / "index")
    assert tuple(read_corpus(tmp_path / "index" / "passages.jsonl")) == WORLD


class Broken(Retriever):
    """Searches as BM25 does, and then does something to the results."""

    def __init__(self, spoil: Callable[[Sequence[str], int, list[tuple[Passage, ...]]], object]) -> None:
        self._index = BM25Index.from_passages(WORLD)
        self._spoil = spoil

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        return self._spoil(queries, k, self._index.search(queries, k))  # type: ignore[return-value]


calls = iter(range(1000))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda queries, k, found: found or None, "an empty batch"),
        (lambda queries, k, found: found[:-1], "5 queries gave 4 results"),
        (lambda queries, k, found: [list(each) for each in found], "not a tuple"),
        (lambda queries, k, found: [each * 3 for each in found], "more than k=5|twice"),
        (lambda queries, k, found: [each[:2][::-1] for each in found], "not ordered by score"),
        (lambda queries, k, found: [tuple(replace(p, score=None) for p in each) for each in found], "finite"),
        (lambda queries, k, found: [tuple(replace(p, score=math.nan) for p in each) for each in found], "finite"),
        (lambda queries, k, found: [tuple(replace(p, id="x") for p in each) for each in found], "twice"),
        (lambda queries, k, found: [each[: 1 + len(queries) // 3] for each in found], "depends on its batch"),
        (lambda queries, k, found: found[::-1], "depends on its batch"),
        (lambda queries, k, found: [each[1:] for each in found] if k == 1 else found, "depends on k"),
        (lambda queries, k, found: [each[: 1 + next(calls) % 2] for each in found], "changes between calls"),
        (lambda queries, k, found: [() for _ in queries], "must have a result"),
        (lambda queries, k, found: [each[:1] for each in found], "must have several results"),
    ],
)
def test_the_contract_test_notices(spoil: Callable[..., object], message: str) -> None:
    with pytest.raises(ContractViolation, match=message):
        check_retriever(Broken(spoil), QUERIES)


def test_the_contract_test_notices_queries_that_raise() -> None:
    def spoil(queries: Sequence[str], k: int, found: object) -> object:
        if "" in queries:
            raise ZeroDivisionError
        return found

    with pytest.raises(ContractViolation, match=r"the query '' raised ZeroDivisionError"):
        check_retriever(Broken(spoil), QUERIES)


def test_the_contract_test_notices_a_k_that_is_not_refused() -> None:
    class Lenient(BM25Index):
        def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
            return super().search(queries, max(k, 1))

    with pytest.raises(ContractViolation, match="k=0 must raise a ValueError"):
        check_retriever(Lenient.from_passages(WORLD), QUERIES)
