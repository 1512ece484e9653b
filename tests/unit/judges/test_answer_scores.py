"""Answers scored by the worst step so far: the arithmetic, the examples, and a trained model."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from stepladder.agents import make_agent
from stepladder.core.step_scorer import sigmoid
from stepladder.core.trace import ActionKind, Node, StopReason, Trajectory, Tree
from stepladder.explore.episode import EpisodeConfig
from stepladder.judges.prm.answer_scores import least_scores, with_least_scores
from stepladder.judges.prm.reward_model import ProcessRewardModel, with_scalar_head
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from stepladder.train.loop.context import TrainingContext
from stepladder.train.prm.config import PRMConfig
from stepladder.train.prm.prm_data import PRMExample, collate_examples, from_chains, from_trees
from stepladder.train.prm.trainer import batch_loss, count_targets, train_prm
from stepladder.train.sft.demonstrations import gold_demonstrations
from tests.support.prm_training import AGENT, builder
from tests.support.samples import QUESTION, WordRetriever


def played(agent: str = AGENT) -> Trajectory:
    episode = EpisodeConfig(max_steps=6, k=2)
    (made,) = gold_demonstrations(make_agent(agent), [QUESTION], WordRetriever(), episode, seed=0).kept
    assert [step.action.kind is ActionKind.ANSWER for step in made.steps] == [False] * (len(made.steps) - 1) + [True]
    return made


@settings(max_examples=50)
@given(st.lists(st.floats(-12, 12), min_size=3, max_size=7))
def test_training_and_scoring_use_the_same_arithmetic(logits: list[float]) -> None:
    scores = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    last = len(logits) - 1
    before = torch.tensor([[0, 0], *([1, step] for step in range(last))])
    found = least_scores(scores, torch.tensor([1, last]), before)
    assert found.tolist() == [logits[0], min(logits[:2]), *logits[2:last], min(logits)]
    (gradient,) = torch.autograd.grad(found[last], scores)
    assert gradient[:last].tolist() == [0.0] * last  # good steps are not blamed for a wrong answer
    assert gradient[last] == float(logits[last] <= min(logits[:last]))


def test_an_answer_without_steps_before_it_has_its_own_score() -> None:
    scores = torch.tensor([0.5, -1.0])
    none = torch.zeros((0, 2), dtype=torch.long)
    assert least_scores(scores, torch.tensor([1]), none).tolist() == [0.5, -1.0]
    assert least_scores(scores, torch.tensor([], dtype=torch.long), none).tolist() == [0.5, -1.0]


def test_only_answers_take_the_least_score() -> None:
    trajectory = played()
    logits = [0.5, -1.0, 2.0, 0.25, 1.5][: len(trajectory.steps)]
    assert with_least_scores(trajectory, logits) == (*logits[:-1], -1.0)


def branching_tree() -> Tree:
    """Two answers from one state."""
    *steps, answer = played().steps
    nodes = [Node(0, None, None), *(Node(number, number - 1, each) for number, each in enumerate(steps, start=1))]
    other = replace(answer, action=replace(answer.action, content="Ossmond"))
    ends = [
        Node(len(nodes) + place, len(steps), each, stop=StopReason.ANSWERED)
        for place, each in enumerate((answer, other))
    ]
    return Tree(QUESTION, AGENT, (*nodes, *ends))


def verdicts(tree: Tree) -> list[float | None]:
    return [None, *[1.0] * (len(tree.nodes) - 2), 0.0]


def test_a_branch_keeps_the_steps_that_its_answer_rests_on() -> None:
    tree = branching_tree()
    steps = len(tree.nodes) - 2
    first, second = from_trees([tree], builder(), verdicts, "least")
    assert (first.values, second.values) == ((1.0,) * steps, (*(None,) * (steps - 1), 0.0))
    assert (first.targets, second.targets) == (steps, 1)  # no step is learned twice
    assert first.answers == second.answers == ((steps - 1, tuple(range(steps - 1))),)
    alone = list(from_trees([tree], builder(), verdicts))
    assert [each.values for each in alone] == [(1.0,) * steps, (0.0,)]
    assert not any(each.answers for each in alone)


@pytest.mark.parametrize("agent", [AGENT, "reasonrag-brief"])  # one context, and one for every step
def test_an_answer_rests_on_steps_of_all_contexts(agent: str) -> None:
    (example,) = from_chains([played(agent)], builder(), answer_score="least")
    steps = len(played(agent).steps)
    assert len(example.inputs) == (1 if agent == AGENT else steps)
    assert example.answers == ((steps - 1, tuple(range(steps - 1))),)
    masked = list(from_chains([played(agent)], builder(), answers=False, answer_score="least"))
    assert not any(each.answers for each in masked)
    assert sum(each.targets for each in masked) == steps - 1


def test_the_loss_is_that_of_the_least_score() -> None:
    examples: list[PRMExample] = list(from_trees([branching_tree()], builder(), verdicts, "least"))
    steps = len(examples[0].values)
    batch = collate_examples(examples)
    scores = torch.linspace(-1.0, 2.0, 2 * steps)
    chosen = scores.tolist()
    right, wrong = min(chosen[:steps]), min(chosen[steps:])
    good = [*chosen[: steps - 1], right]
    expected = -sum(math.log(sigmoid(each)) for each in good) - math.log(1 - sigmoid(wrong))
    loss, seen = batch_loss(scores, batch, centering=0.0)
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    assert seen["error"] == pytest.approx(sum(1 - sigmoid(each) for each in good) + sigmoid(wrong), rel=1e-4)
    assert count_targets(batch) == steps + 1


def test_a_trained_model_scores_as_it_was_trained(tmp_path: Path) -> None:
    def examples(builder: Any) -> Any:
        return list(from_trees([branching_tree()], builder, verdicts, config.answer_score)), [], {}

    config = PRMConfig(
        objective="verdicts", answer_score="least", num_train_epochs=10, batch_size=2, learning_rate=5e-3, dense=0.5
    )
    context = TrainingContext(make_agent(AGENT), (), (), None, EpisodeConfig(), tmp_path, device="cpu")
    report = train_prm("tiny", context, config, examples)
    assert json.loads((report.reward / "config.json").read_text())["stepladder_answer_score"] == "least"
    tree = branching_tree()
    right, wrong = (tree.trajectory(node) for node in tree.nodes[-2:])
    model = ProcessRewardModel.load(report.reward, device="cpu")
    assert model.answer_score == "least"
    alone = ProcessRewardModel.load(report.reward, device="cpu", answer_score="step")
    for trajectory, own in zip((right, wrong), alone.score_logits([right, wrong])):
        assert model.score_logits([trajectory])[0] == pytest.approx(with_least_scores(trajectory, own), abs=1e-4)
    assert min(model.score([right])[0][:-1]) > 0.8  # the steps before are learned as ever
    model.save(tmp_path / "again")
    assert ProcessRewardModel.load(tmp_path / "again", device="cpu").answer_score == "least"
    alone.save(tmp_path / "alone")
    assert "stepladder_answer_score" not in json.loads((tmp_path / "alone" / "config.json").read_text())


def test_a_model_says_nothing_about_answers_by_default(tmp_path: Path) -> None:
    scoring: Any = with_scalar_head(tiny_model(), tiny_tokenizer(), "tiny")
    ProcessRewardModel(scoring, tiny_tokenizer()).save(tmp_path / "plain")
    assert ProcessRewardModel.load(tmp_path / "plain", device="cpu").answer_score == "step"
