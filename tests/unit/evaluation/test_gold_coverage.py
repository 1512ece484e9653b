"""How many gold passages an index has is counted before steps are labelled by them."""

from pathlib import Path

import pytest

from stepladder.core.errors import StepladderError
from stepladder.core.questions.excerpts import gold_text
from stepladder.core.trace import Hop, Node, Passage, Question, Tree
from stepladder.data.dataset import DataSet
from stepladder.evaluation.gold_coverage import gold_coverage
from stepladder.explore.tree_store import TreeFile
from stepladder.pipeline.resources import RunContext, SharedConfig
from stepladder.pipeline.search_config import ExploreConfig
from stepladder.pipeline.stage import Task
from stepladder.pipeline.stages.pairs import PairConfig, run_pairs
from stepladder.pipeline.stages.rank import RankConfig
from stepladder.pipeline.tree_search import check_tree_stage
from stepladder.retrieval.index.bm25 import BM25Index
from stepladder.retrieval.index.build import build_index

PASSAGES = [
    Passage(
        f"p{number}", f"Bridge {name}", f"The bridge {name} in the north was designed by the engineer {name}a Voss."
    )
    for number, name in enumerate(("Orl", "Velm", "Tarn", "Rook"))
]


def question(passage: Passage, *, described: bool = True) -> Question:
    answer = passage.text.split("engineer ")[1].rstrip(".")
    text = gold_text(passage.id, passage.title, passage.text, [answer])
    hop = Hop(f"Who designed {passage.title}?", answer, (passage.id,), gold_texts=(text,) if described else ())
    return Question(passage.id, hop.question, (answer,), (hop,), ((passage.id,),))


def foreign(*passages: Passage) -> BM25Index:
    return BM25Index.from_passages(Passage(str(n), each.title, each.text) for n, each in enumerate(passages))


QUESTIONS = [question(passage) for passage in PASSAGES]


def test_own_passages_are_looked_up_by_id() -> None:
    coverage = gold_coverage(QUESTIONS, foreign(*PASSAGES), PASSAGES[:3])
    assert coverage is not None
    assert coverage.line() == "gold passages in the index: 3 of 4 (by id)"
    coverage.check()
    assert coverage.warning() == ""


def test_another_index_is_searched_for_titles_and_texts() -> None:
    coverage = gold_coverage(QUESTIONS, foreign(*PASSAGES))
    assert coverage is not None
    assert coverage.line() == "gold passages in the index: 4 of 4 (searched by title and text)"


def test_steps_are_not_labelled_where_most_gold_passages_are_missing() -> None:
    coverage = gold_coverage(QUESTIONS, foreign(PASSAGES[2]))
    assert coverage is not None
    assert "with most of them missing" in coverage.warning()
    with pytest.raises(StepladderError, match=r"in the index: 1 of 4 .* cannot be labelled .*source mined"):
        coverage.check()


def test_trees_are_not_scored_by_gold_passages_that_the_index_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index([Passage("1", "Dust", "Dust is a film.")], tmp_path / "ix")
    monkeypatch.setattr(RunContext, "data", DataSet("samples", {"train": tuple(QUESTIONS)}, None))
    context = RunContext(SharedConfig.read({"data": {"index": str(tmp_path / "ix")}}))
    for settings in (RankConfig(), ExploreConfig(evaluate="gold")):
        with pytest.raises(StepladderError, match=r"in the index: 0 of 4 .* cannot be labelled"):
            check_tree_stage(settings, context)
    check_tree_stage(ExploreConfig(), context)  # by rollouts


def test_pairs_are_not_made_by_gold_passages_that_the_index_does_not_have(tmp_path: Path) -> None:
    build_index([Passage("1", "Dust", "Dust is a film.")], tmp_path / "ix")
    context = RunContext(SharedConfig.read({"data": {"index": str(tmp_path / "ix")}}))
    with TreeFile(tmp_path / "trees.jsonl.gz") as file:
        for each in QUESTIONS:
            file.add(Tree(each, "prorag", (Node(0, None, None),)))
    task = Task("pairs", tmp_path, 0, {"trees": str(tmp_path / "trees.jsonl.gz")})
    with pytest.raises(StepladderError, match=r"in the index: 0 of 4 .* cannot be labelled"):
        run_pairs(PairConfig(judge="gold"), context, task)
    with pytest.raises(StepladderError, match="no pairs in 4 trees"):
        run_pairs(PairConfig(judge="mc"), context, task)


def test_ids_alone_are_looked_up_in_a_local_index() -> None:
    bare = [question(passage, described=False) for passage in PASSAGES]
    coverage = gold_coverage(bare, BM25Index.from_passages(PASSAGES[:2]))
    assert coverage is not None
    assert coverage.line() == "gold passages in the index: 2 of 4 (by id)"


def test_of_many_gold_passages_a_sample_is_searched() -> None:
    many = [
        Passage(f"m{n}", f"Bridge {n}", f"The bridge {n} was designed by the engineer V{n}a Voss.") for n in range(450)
    ]
    coverage = gold_coverage([question(passage) for passage in many], foreign(*many))
    assert coverage is not None
    assert coverage.line() == "gold passages in the index: 200 of a sample of 200 of 450 (searched by title and text)"


def test_questions_without_gold_passages_have_nothing_to_count() -> None:
    assert gold_coverage([Question("q", "Who?", ("Ena",))], foreign(*PASSAGES)) is None
