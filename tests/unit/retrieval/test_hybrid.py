"""Several retrievers as one, by ranks and by scores."""

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Passage
from stepladder.data import load_dataset
from stepladder.retrieval.base import Retriever, check_retriever
from stepladder.retrieval.hybrid import HybridRetriever, fuse_by_ranks, fuse_by_scores
from stepladder.retrieval.index.bm25 import BM25Index
from tests.support.samples import WordRetriever


def passages(ids: str) -> list[Passage]:
    return [Passage(each, "", f"about {each}", 1.0) for each in ids]


class Fixed(Retriever):
    """Finds the same for every query."""

    def __init__(self, ids: str, max_batch: int = 256, concurrency: int = 1) -> None:
        self.ids, self.max_batch, self.concurrency = ids, max_batch, concurrency
        self.asked: list[int] = []
        self.closed = False

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        self.asked.append(k)
        return [tuple(passages(self.ids)[:k]) for _ in queries]

    def close(self) -> None:
        self.closed = True
        if self.ids == "!":
            raise OSError("gone")


def test_ranks_are_added_up() -> None:
    # a: 1/61; b: 1/62 + 1/61; c: 1/62
    found = fuse_by_ranks([passages("ab"), passages("bc")], k=3)
    assert [(each.id, each.score) for each in found] == [
        ("b", pytest.approx(1 / 62 + 1 / 61)),
        ("a", pytest.approx(1 / 61)),
        ("c", pytest.approx(1 / 62)),
    ]
    assert found[0].text == "about b"


def test_equal_sums_are_ordered_as_the_first_retriever_orders_them() -> None:
    assert [each.id for each in fuse_by_ranks([passages("ab"), passages("cd")], k=4)] == ["a", "c", "b", "d"]


@given(st.lists(st.lists(st.sampled_from("abcdef"), unique=True), min_size=1, max_size=4), st.integers(1, 8))
def test_a_passage_comes_once_and_one_that_all_rank_first_is_first(rankings: list[list[str]], k: int) -> None:
    found = [each.id for each in fuse_by_ranks([passages("".join(ids)) for ids in rankings], k)]
    assert len(found) == len(set(found)) == min(k, len({each for ids in rankings for each in ids}))
    firsts = {ids[0] for ids in rankings if ids}
    if len(firsts) == 1 and all(rankings):
        assert found[0] in firsts


def test_different_passages_with_one_id_are_refused() -> None:
    tea, same, film = (
        Passage("7", "", "Tea is a hot drink of leaves and water."),
        Passage("7", "Tea", "Tea is a hot drink"),  # cut by a server
        Passage("7", "Dust", "Dust was filmed in Orla by Ena Voss."),
    )
    assert [each.text for each in fuse_by_ranks([[tea], [same]], k=3)] == [tea.text]
    with pytest.raises(StepladderError, match=r"different passages with the id '7'.* corpora whose ids differ"):
        fuse_by_ranks([[tea], [film]], k=3)


def test_each_retriever_is_asked_for_more_than_is_wanted() -> None:
    one, other = Fixed("abc", max_batch=8, concurrency=4), Fixed("cab", concurrency=2)
    hybrid = HybridRetriever([one, other], depth=2)
    assert [each.id for each in hybrid.search(["?"], 1)[0]] == ["a"]
    assert [len(found) for found in hybrid.search(["?", "!"], 3)] == [3, 3]
    assert one.asked == other.asked == [2, 3]
    assert (hybrid.max_batch, hybrid.concurrency) == (8, 2)


def test_it_keeps_the_contract() -> None:
    world = load_dataset("atlas").passages or ()
    hybrid = HybridRetriever([BM25Index.from_passages(world), BM25Index.from_passages(world, k1=0.5, title_weight=1)])
    check_retriever(hybrid, [passage.title for passage in world[:5]])
    assert hybrid.search([], 3) == []


def test_all_are_closed_also_if_one_fails() -> None:
    bad, good = Fixed("!"), Fixed("a")
    with pytest.raises(OSError, match="gone"):
        HybridRetriever([good, bad]).close()
    assert good.closed
    assert bad.closed


def test_what_cannot_be_fused_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one retriever"):
        HybridRetriever([])
    with pytest.raises(ValueError, match="depth=0"):
        HybridRetriever([WordRetriever()], depth=0)


# --- By scores --------------------------------------------------------------------------------------------


def scored(**scores: float) -> list[Passage]:
    return [Passage(each, "", f"about {each}", score) for each, score in scores.items()]


def test_scores_are_stretched_weighted_and_added_up() -> None:
    # 10 to 20 becomes 0 to 1, as does 0.2 to 0.6
    found = fuse_by_scores([scored(a=20, b=14, c=10), scored(c=0.6, b=0.5, d=0.2)], k=4, weights=[0.6, 0.4])
    assert [(each.id, each.score) for each in found] == [
        ("a", pytest.approx(0.6)),
        ("b", pytest.approx(0.6 * 0.4 + 0.4 * 0.75)),
        ("c", pytest.approx(0.4)),
        ("d", 0.0),
    ]


def test_a_ranking_of_equal_scores_counts_whole() -> None:
    assert [each.score for each in fuse_by_scores([scored(a=3), []], k=2)] == [1.0]


def test_scores_cannot_be_fused_where_there_are_none() -> None:
    with pytest.raises(StepladderError, match="fuse by ranks"):
        fuse_by_scores([[Passage("a", "", "a")]], k=1)


def test_fusion_by_scores_keeps_the_contract() -> None:
    data = load_dataset("atlas")
    world = (data.passages or ())[:200]
    parts = [BM25Index.from_passages(world), BM25Index.from_passages(world, title_weight=1)]
    check_retriever(
        HybridRetriever(parts, fusion="scores", weights=[0.6, 0.4]), [passage.title for passage in world[:3]]
    )


@pytest.mark.parametrize("weights", [[1.0], [0.0, 0.0], [1.0, -1.0]])
def test_weights_must_fit(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="a weight >= 0 for each retriever"):
        HybridRetriever([Fixed("a"), Fixed("b")], fusion="scores", weights=weights)
