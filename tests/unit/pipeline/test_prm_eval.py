"""How a reward model is examined: against the gold judge, on held-out pairs, on chains that were spoilt on purpose."""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stepladder import Pair, Question, Step, Trajectory, Tree
from stepladder.agents import make_agent
from stepladder.core.errors import StepladderError
from stepladder.core.io.records import write_records
from stepladder.core.trace import Action, ActionKind, Author, Node, Passage, Segment, Side
from stepladder.data import DataSet
from stepladder.driver import Driver
from stepladder.engines.base import Engine
from stepladder.engines.scripted import ScriptedEngine
from stepladder.evaluation.prm.calibration import (
    GradedStep,
    calibration_report,
    chain_metrics,
    gold_agreement,
    graded_steps,
    pair_accuracy,
)
from stepladder.evaluation.prm.selection import mistake_auc
from stepladder.evaluation.prm.tree_scores import read_tree_scores, score_tree, write_tree_scores
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.explore.tree_store import TreeFile
from stepladder.judges.prm import reward_model as prm
from stepladder.judges.prm.reward_model import ProcessRewardModel, with_scalar_head
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from stepladder.oracle.control_chains import gold_chains
from stepladder.oracle.corruptions import CORRUPTIONS, Corruptor
from stepladder.oracle.engine import OracleEngine
from stepladder.oracle.step_judge import GoldScorer, judge
from stepladder.oracle.step_verdicts import reward_target
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.resources import ORACLE, RunContext, SearchConfig, SharedConfig
from stepladder.pipeline.stages import Task
from stepladder.pipeline.stages.prm_eval import EXAMINATION, STAGE, TREE_SCORES, PRMEvalConfig
from tests.support.samples import PASSAGES, QUESTION, WordRetriever
from tests.support.trees import stroll


def step(score: float, good: bool, question: str = "q", kind: str = "query", fault: str = "") -> GradedStep:
    return GradedStep(question, kind, score, good, fault)


def test_steps_are_graded_by_the_gold_judge() -> None:
    agent = make_agent("prorag-brief")
    (played,) = Driver(OracleEngine(agent), WordRetriever()).run(
        [lambda: episode(agent, QUESTION, EpisodeConfig(k=1), 0)]
    )
    assert played.value is not None
    found = graded_steps([played.value], [[float(n) for n in range(len(played.value.steps))]])
    assert [(each.kind, each.score) for each in found] == [
        ("query", 0.0), ("sub_answer", 1.0), ("query", 2.0), ("sub_answer", 3.0), ("answer", 4.0),
    ]  # fmt: skip
    assert all(each.good and not each.fault for each in found)


def test_numbers_worked_out_by_hand() -> None:
    steps = [
        step(2.0, True, "a"), step(1.0, True, "b"), step(-1.0, True, "b", "answer"),
        step(-2.0, False, "a", "query", "wrong"), step(0.5, False, "c", "query", "wrong"),
    ]  # fmt: skip
    numbers = gold_agreement(steps)
    assert numbers["auc"]["mean"] == pytest.approx(5 / 6)  # of the six comparisons, -1 against 0.5 is lost
    assert numbers["auc"]["low"] <= numbers["auc"]["mean"] <= numbers["auc"]["high"]
    assert (numbers["steps"], numbers["questions"], numbers["good"]) == (5, 3, 0.6)
    assert numbers["right_at_0"] == 3 / 5
    assert numbers["by_kind"]["query"]["auc"]["mean"] == 1.0
    assert numbers["by_kind"]["answer"] == {"auc": None, "steps": 1, "faulty": 0}
    assert numbers["faults"] == {"wrong": {"steps": 2, "below_0": 0.5}}


def test_scores_that_promise_too_much_are_rescaled_by_what_other_questions_show() -> None:
    """Scores of +-5 promise 0.993; in truth 3 of 4 hold."""
    steps = [step(5.0 if n % 2 else -5.0, bool(n % 2) == bool(n % 8 > 1), f"q{n}") for n in range(400)]
    numbers, predictions = calibration_report(steps)
    assert numbers["raw"]["error"] == pytest.approx(0.993 - 0.75, abs=0.01)
    assert numbers["rescaled"]["error"] < 0.06
    assert numbers["rescaled"]["brier"] < numbers["raw"]["brier"]
    assert max(predictions["rescaled"]) < 0.85


def test_a_chain_is_as_good_as_its_lowest_step() -> None:
    numbers = chain_metrics({"gold": [1.0, 2.0, 3.0], "shuffled": [-1.0, 1.5], "truncated": []})
    assert numbers["gold"] == {"chains": 3, "median": 2.0, "passes_0": 1.0}
    assert numbers["shuffled"] == {"chains": 2, "median": 0.25, "passes_0": 0.5, "auc": 5 / 6}
    assert "truncated" not in numbers


def test_faulty_steps_are_compared_with_good_ones_of_the_same_kind_of_action() -> None:
    intact = [step(2.0, True), step(0.0, True), step(-3.0, True, kind="answer"), step(-9.0, False)]
    corrupted = [
        step(1.0, False, "a"),
        step(5.0, True, "a"),
        step(-3.0, False, "b", "answer"),
        step(9.0, False, kind="x"),
    ]
    found = mistake_auc(intact, corrupted)
    assert found is not None
    assert found["mean"] == pytest.approx((1 + 0 + 0.5) / 3)
    assert found["pairs"] == 3
    assert mistake_auc(intact, corrupted[1:2]) is None
    assert mistake_auc([], corrupted) is None


def test_the_accuracy_on_pairs_resamples_questions() -> None:
    found = pair_accuracy([("a", True), ("a", True), ("a", True), ("b", False)])
    assert found is not None
    assert (found["mean"], found["low"], found["high"], found["pairs"]) == (0.75, 0.0, 1.0, 4)
    assert pair_accuracy([]) is None


# --- scores of trees ----------------------------------------------------------------------------------------


def grown(question: Question = QUESTION) -> Tree:
    """Two ways to begin, the first of which goes on in two ways."""
    said = {1: "Who?", 2: "Where?", 3: "Velm", 4: "Oss"}
    steps = {
        number: Step((Segment(Author.PROMPT, "Next: "),), Segment(Author.POLICY, text), Action(ActionKind.QUERY, text))
        for number, text in said.items()
    }
    parents = {1: 0, 2: 0, 3: 1, 4: 1}
    return Tree(question, "prorag-brief", (Node(0, None, None), *(Node(n, parents[n], steps[n]) for n in said)))


def trees_in(path: Path, *trees: Tree) -> Path:
    with TreeFile(path) as file:
        for tree in trees:
            file.add(tree)
    return path


def by_letters(trajectories: Sequence[Trajectory]) -> list[list[float]]:
    """A step is worth its letters."""
    return [[float(len(step.action.content)) for step in each.steps] for each in trajectories]


def test_every_step_of_a_tree_is_scored_in_one_pass_a_branch(reward: Path) -> None:
    asked: list[int] = []

    def score(trajectories: Sequence[Trajectory]) -> list[list[float]]:
        asked.append(len(trajectories))
        return by_letters(trajectories)

    assert score_tree(grown(), score) == {1: 4.0, 2: 6.0, 3: 4.0, 4: 3.0}
    assert asked == [3]
    assert score_tree(replace(grown(), nodes=grown().nodes[:1]), score) == {}

    model = ProcessRewardModel.load(reward, device="cpu")
    tree = grown()
    ((*_, last),) = model.score_logits([tree.trajectory(tree.nodes[4])])
    assert score_tree(tree, model.score_logits)[4] == pytest.approx(last, abs=1e-5)


def test_scores_are_those_of_their_own_trees(tmp_path: Path) -> None:
    trees = trees_in(tmp_path / "trees.jsonl.gz", grown(), grown(replace(QUESTION, id="other")))
    scores = tmp_path / "scores.json"
    assert read_tree_scores(scores, trees) == {}
    write_tree_scores(scores, trees, by_letters)
    expected = {1: 4.0, 2: 6.0, 3: 4.0, 4: 3.0}
    assert read_tree_scores(scores, trees) == {QUESTION.id: expected, "other": expected}
    grown_anew = trees_in(tmp_path / "anew.jsonl.gz", replace(grown(), seed=1))
    assert read_tree_scores(scores, grown_anew) == {}
    scores.write_text('{"trees": 1}')
    with pytest.raises(StepladderError, match=r"scores\.json: not a file of tree scores: .* made it again"):
        read_tree_scores(scores, trees)


# --- the stage ----------------------------------------------------------------------------------------------


class Knowing(ProcessRewardModel):
    """Scores as the gold judge would, and pairs by the number of their words."""

    def score_logits(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...]]:
        found = GoldScorer().score(trajectories)
        return [tuple(0.0 if each is None else 4 * each - 2 for each in scores) for scores in found]


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunContext:
    shop = RunContext(SharedConfig(agent="prorag-brief", search=SearchConfig(k=1)))
    questions = tuple(replace(QUESTION, id=f"q{number}") for number in range(12))

    @contextmanager
    def engine(self: RunContext, policy: str, name: str | None = None, **_: object) -> Iterator[Engine]:
        yield OracleEngine(self.agent) if policy == ORACLE else ScriptedEngine(stroll)

    monkeypatch.setattr(RunContext, "engine", engine)
    monkeypatch.setattr(RunContext, "split", lambda self, name: questions)
    monkeypatch.setattr(RunContext, "retriever", WordRetriever(PASSAGES))
    monkeypatch.setattr(RunContext, "data", DataSet("samples", {}, PASSAGES))
    return shop


@pytest.fixture
def reward(tmp_path: Path) -> Path:
    model = with_scalar_head(tiny_model(), tiny_tokenizer(), "tiny")
    torch.nn.init.normal_(model.score.weight, std=0.5, generator=torch.Generator().manual_seed(0))  # type: ignore[union-attr, arg-type]
    ProcessRewardModel(model, tiny_tokenizer()).save(tmp_path / "reward")
    return tmp_path / "reward"


def pairs_in(folder: Path) -> Path:
    folder.mkdir()
    context = (Segment(Author.PROMPT, "Question: Where?\n"),)
    sides = [Side(Segment(Author.POLICY, text), Action(ActionKind.QUERY, text)) for text in ("Who?", "Why though?")]
    write_records(folder / "dev.jsonl", [Pair("q1", "prorag-brief", context, sides[0], sides[1], 0, "spre")])
    return folder


def examine(context: RunContext, reward: Path, folder: Path, **settings: Any) -> dict[str, Any]:
    inputs = {"policy": "tiny", "reward": str(reward), "pairs": str(pairs_in(folder / "pairs"))}
    inputs |= {"trees": str(folder / "trees.jsonl.gz")} if settings.get("score_trees") else {}
    chosen = PRMEvalConfig(**{"questions": 8, "num_generations": 3, "retokenize": True, **settings})
    STAGE.check(chosen, context)
    result = STAGE.run(chosen, context, Task("prm-eval", folder / "stage", 0, inputs))
    assert result.outputs == {EXAMINATION: folder / "stage" / EXAMINATION}
    return dict(result.summary)


def test_the_stage_writes_numbers_and_pictures(context: RunContext, reward: Path, tmp_path: Path) -> None:
    summary = examine(context, reward, tmp_path)
    folder = tmp_path / "stage" / EXAMINATION
    assert json.loads((folder / "summary.json").read_text()) == summary
    rows = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert len(rows) == summary["steps"] > 24
    assert {row["question_id"] for row in rows} <= {f"q{number}" for number in range(12)}
    assert summary["pair_accuracy"]["pairs"] == 1
    assert set(summary["chains"]) == {"gold", "shuffled", "truncated", "answer_first", *CORRUPTIONS}
    assert summary["chains"]["gold"]["chains"] == 8
    for picture in ("chains.svg", "calibration.svg"):
        assert (folder / picture).read_text().startswith("<svg")
    assert not (folder / TREE_SCORES).exists()


def test_a_reward_model_that_knows_is_found_perfect(
    context: RunContext, reward: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prm, "ProcessRewardModel", Knowing)
    summary = examine(context, reward, tmp_path)
    assert summary["auc"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert summary["right_at_0"] == 1.0
    assert summary["chains"]["gold"]["passes_0"] == 1.0
    for name in ("shuffled", "truncated", "answer_first", *CORRUPTIONS):
        assert summary["chains"][name]["passes_0"] == 0.0
        assert summary["chains"][name]["auc"] == 1.0
        assert summary["chains"][name]["faulty_steps"]["mean"] == 1.0
    assert "faulty_steps" not in summary["chains"]["gold"]


def test_nothing_is_judged_by_gold_passages_that_the_index_does_not_have(
    context: RunContext, reward: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunContext, "data", DataSet("samples", {}, [Passage("x", "Dust", "Dust is a film.")]))
    with pytest.raises(StepladderError, match=r"in the index: 0 of 2 \(by id\). Steps cannot be labelled"):
        examine(context, reward, tmp_path)
    assert not (tmp_path / "stage").exists()


def test_pairs_with_a_query_are_left_out_where_queries_are_scored_after_retrieval(
    context: RunContext, reward: Path, tmp_path: Path
) -> None:
    ProcessRewardModel.load(reward, device="cpu", score_after_retrieval=True).save(tmp_path / "after")
    summary = examine(context, tmp_path / "after", tmp_path)
    assert (summary["pair_accuracy"], summary["pairs_with_queries"]) == (None, 1)
    assert summary["auc"]["mean"] >= 0


def test_chains_with_mistakes_are_faulty_and_intact_ones_are_not(context: RunContext) -> None:
    agent = make_agent("prorag-brief")
    golds = gold_chains(agent, [QUESTION] * 3, WordRetriever(), EpisodeConfig(k=1), seed=0)
    corruptor = Corruptor(agent, WordRetriever(), 1, [QUESTION], random.Random(0))
    for gold in golds:
        assert all(verdict is not None and verdict.good for verdict in judge(gold))
        made = corruptor.one_of_each(gold)
        assert set(made) == set(CORRUPTIONS)
        for chain in made.values():
            values = [
                reward_target(verdict, each.action.kind)
                for verdict, each in zip(judge(chain), chain.steps, strict=True)
            ]
            assert 0 in values


def test_without_pairs_nothing_is_said_of_them(context: RunContext, reward: Path, tmp_path: Path) -> None:
    assert examine(context, reward, tmp_path, held_out_pairs=False)["pair_accuracy"] is None
    assert STAGE.unused_inputs(PRMEvalConfig(held_out_pairs=False, score_trees=True)) == {"pairs"}


def test_the_stage_scores_the_steps_of_trees_where_told_so(context: RunContext, reward: Path, tmp_path: Path) -> None:
    trees = trees_in(tmp_path / "trees.jsonl.gz", grown())
    examine(context, reward, tmp_path, score_trees=True)
    scores = read_tree_scores(tmp_path / "stage" / EXAMINATION / TREE_SCORES, trees)
    model = ProcessRewardModel.load(reward, device="cpu")
    assert scores[QUESTION.id] == pytest.approx(score_tree(grown(), model.score_logits), abs=1e-5)


def test_trees_are_taken_only_where_their_steps_are_to_be_scored() -> None:
    before = {"sft": {}, "explore": {}, "pairs": {}, "prm": {}}
    told = Recipe.read({"stages": {**before, "prm-eval": {"score_trees": True}}})
    assert told.stages[-1].inputs == {"policy": "sft", "reward": "prm", "pairs": "pairs", "trees": "explore"}
    assert "trees" not in Recipe.read({"stages": {**before, "prm-eval": {}}}).stages[-1].inputs


def test_questions_that_the_gold_judge_knows_nothing_of_are_refused(
    context: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = (Question("q", "Where?", ("Velm",)),)
    monkeypatch.setattr(RunContext, "split", lambda self, name: bare)
    with pytest.raises(StepladderError, match="gold decomposition or gold passages"):
        STAGE.check(PRMEvalConfig(), context)
    assert all(verdict is None for verdict in judge(Trajectory(bare[0], "prorag-brief")))
