"""RAG-Gym's process data: actions ranked at every step, and what is learnt from them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from stepladder.core.errors import StepladderError
from stepladder.core.requests import Sampling
from stepladder.core.trace import ActionKind, Node, Pair, Question, StopReason, Tree
from stepladder.driver import Driver
from stepladder.explore.episode import EpisodeConfig
from stepladder.explore.ranked import RANK, RankedConfig, best_branch, ranked
from stepladder.explore.tree_store import read_trees
from stepladder.oracle.step_judge import GoldScorer
from stepladder.pipeline import run_recipe
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.stages.pairs import PairConfig
from stepladder.preferences.pairs import tree_pairs
from stepladder.reporting.compare.evaluations import load_sources
from stepladder.reporting.compare.provenance import ProvenanceResolver
from stepladder.train.sft.demonstrations import tree_demonstrations
from tests.support.sampled_steps import AGENT, BAD, GOOD, OTHER, Likes, Sampled
from tests.support.samples import QUESTION, WordRetriever

SETTINGS = RankedConfig(EpisodeConfig(6, 1, Sampling(temperature=1.0)), n=12)
KNOWS = {"designed": 0.9, "born": 0.8, "Velm": 0.7, "Oss": 0.2}


def grown(lines: Sequence[object], scorer: object = None, question: Question = QUESTION, seed: int = 0) -> Tree:
    engine = Sampled(lines)  # type: ignore[arg-type]
    driver = Driver(engine, WordRetriever(), scorer or Likes(**KNOWS))  # type: ignore[arg-type]
    (outcome,) = driver.run([lambda: ranked(AGENT, question, SETTINGS, seed)])
    if outcome.failure is not None:
        raise StepladderError(outcome.failure.reason)
    assert outcome.value is not None
    return outcome.value


def test_the_best_action_is_gone_on_with_and_the_others_stay_beside_it() -> None:
    tree = grown([GOOD, OTHER, BAD])
    branch = tree.trajectory(best_branch(tree)[-1])
    assert [step.action.content for step in branch.steps] == [
        "Who designed Orm Tower?",
        "Where was Ada Tarn born?",
        "Velm",
    ]
    assert branch.stop is StopReason.ANSWERED
    children_by_node = [family for family in tree.children_by_node() if family]
    assert [len(family) for family in children_by_node] == [3, 3, 3]  # one that is good, another, one malformed
    assert [sum(node.visits for node in family) for family in children_by_node] == [12, 12, 12]
    assert all(node.scores == {RANK: node.value} for node in tree.nodes[1:])
    assert sorted(node.reward or 0 for node in children_by_node[-1] if node.stop is StopReason.ANSWERED) == [0.0, 1.0]


def test_nothing_outside_the_grammar_is_gone_on_with_whatever_its_score() -> None:
    tree = grown([OTHER, BAD], Likes(nonsense=1.0))
    assert tree.trajectory(best_branch(tree)[-1]).stop is StopReason.ANSWERED
    assert [node.reward for node in tree.nodes if node.stop is StopReason.MALFORMED] == [0.0] * 3


def test_the_best_branch_of_a_search_tree_is_the_most_visited() -> None:
    """Also where that ends sooner than others."""
    step = grown([GOOD]).nodes[1].step
    nodes = (
        Node(0, None, None, 20),
        Node(1, 0, step, 15, 1.0, stop=StopReason.ANSWERED, reward=1.0),
        Node(2, 0, step, 5, 0.1),
        Node(3, 2, step, 4, 0.1, stop=StopReason.ANSWERED, reward=0.0),
    )
    assert [node.id for node in best_branch(Tree(QUESTION, AGENT.name, nodes))] == [0, 1]


def test_a_question_without_answers_is_refused() -> None:
    with pytest.raises(StepladderError, match="has no answers"):
        grown([GOOD], question=replace(QUESTION, answers=()))


def pairs_of(tree: Tree, **rules: object) -> list[Pair]:
    settings = PairConfig.read({"judge": "rank", "per_state": 1, **rules})
    (outcome,) = Driver().run([lambda: tree_pairs(tree, settings.make_judge(), settings)])
    assert outcome.value is not None
    return list(outcome.value.pairs)


def test_best_and_worst_of_a_state_make_a_pair() -> None:
    tree = grown([GOOD, OTHER, BAD])
    found = [(pair.chosen.action.content, pair.rejected.action.content, pair.judge) for pair in pairs_of(tree)]
    assert [chosen for chosen, _, _ in found] == ["Who designed Orm Tower?", "Where was Ada Tarn born?", "Velm"]
    assert {judge for _, _, judge in found} == {"rank"}
    assert found[2][1] == BAD  # which scores 0, less than the other answer
    assert [pair.chosen.action.kind for pair in pairs_of(tree, both_valid=True)][-1] is ActionKind.ANSWER


def test_a_branch_with_a_wrong_answer_gives_nothing_when_that_is_asked_for() -> None:
    wrong = grown([GOOD, OTHER], Likes(River=0.9, Oss=0.9))
    assert tree_demonstrations([wrong], 1.0).dropped == {"wrong_answer": 1}
    assert pairs_of(wrong)
    assert pairs_of(wrong, right_branch=True) == []
    right = grown([GOOD, OTHER])
    assert pairs_of(right, right_branch=True) == pairs_of(right)
    (kept,) = tree_demonstrations([right, wrong], 1.0).kept
    assert kept.answer == "Velm"


def test_the_gold_judge_ranks_by_the_decomposition() -> None:
    tree = grown([GOOD, OTHER], GoldScorer())
    assert tree.trajectory(best_branch(tree)[-1]).answer == "Velm"
    assert {node.value for node in tree.nodes[1:]} == {0.0, 1.0}


def test_a_run_ranks_then_imitates_prefers_and_scores(tmp_path: Path) -> None:
    """All three uses of the data, with the tiny model: what matters is who takes what from whom."""
    quick = {"num_train_epochs": 0.5, "batch_size": 2, "dev_questions": 0}
    recipe = Recipe.read(
        {
            "policy": "nano",
            "agent": "search-r1-brief",
            "data": {"name": "atlas-small"},
            "search": {"k": 1},
            "episode": {"max_steps": 4, "max_tokens": 60},
            "device": "cpu",
            "stages": {
                "warm": {"kind": "sft", "questions": 24, "num_train_epochs": 4, "batch_size": 4, "dev_questions": 0},
                "rank": {"questions": 12, "n": 4},
                "pairs": {"judge": "rank", "per_state": 1},
                "imitated": {"kind": "sft", "source": "trees", "policy": "warm", "min_f1": 0.01, **quick},
                "prm": {"policy": "warm", "num_train_epochs": 0.5, "batch_size": 2},
                "reranked": {"kind": "rank", "policy": "warm", "judge": "prm", "questions": 4, "n": 2},
                "after": {"kind": "eval", "policy": "imitated", "limit": 4, "guide": {"n": 2}},
            },
        }
    )
    report = run_recipe(recipe, tmp_path / "run")
    stages = {stage.name: stage for stage in report.stages}
    assert stages["imitated"].inputs == {"policy": "warm", "trees": "rank"}
    assert stages["reranked"].inputs == {"policy": "warm", "reward": "prm"}
    assert stages["after"].inputs == {"policy": "imitated", "reward": "prm"}
    trees = list(read_trees(tmp_path / "run" / "rank" / "trees.jsonl.gz"))
    assert len(trees) == 12
    assert stages["rank"].summary["trees"] == 12
    assert 0 < stages["imitated"].summary["transcripts"] <= 12
    for tree in read_trees(tmp_path / "run" / "reranked" / "trees.jsonl.gz"):
        assert all(0 < node.value < 1 for node in tree.nodes[1:])
    warm, questions = stages["warm"].summary["asked"], {tree.question.id for tree in trees}
    trained = {name: ProvenanceResolver().of_stages(tmp_path / "run", name) for name in ("warm", "imitated")}
    warmed = trained["warm"].stages[0].questions or frozenset()
    both = {each for _, each in warmed} | questions
    assert (len(warmed), trained["imitated"].questions) == (warm, len(both))
    assert trained["imitated"].tokens_written == stages["rank"].summary["tokens_written"]
    (guided,) = load_sources([str(tmp_path / "run")])
    assert guided.provenance is not None
    assert {use.stage for use in guided.provenance.stages} == {"warm", "rank", "pairs", "imitated", "prm"}
    rows = (tmp_path / "run" / "after" / "evaluation" / "scores.jsonl").read_text().splitlines()
    assert all(json.loads(row)["searches_made"] is not None for row in rows)
