"""Credit assignment: rewards and advantages for the episodes of one question.

In: the episodes of a question, or a tree of them, and step scores. Out: `CreditedEpisode`s: a trajectory, one advantage
per step, and a loss mask. `advantage.py` has the formulas.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stepladder.core.answer_metrics import score
from stepladder.core.step_scorer import sigmoid
from stepladder.core.trace import ActionKind, Step, StopReason, Trajectory, Tree
from stepladder.train.grpo.advantage import (
    Floats,
    branch_advantages,
    dual_advantages,
    gain_advantages,
    outcome_advantages,
    process_advantages,
)
from stepladder.train.grpo.config import ESTIMATORS, GRPOConfig, RewardConfig


@dataclass(frozen=True, slots=True)
class EpisodeGroup:
    """The episodes of one question and their rewards."""

    episodes: Sequence[Trajectory]
    #: One per episode.
    outcome_rewards: Sequence[float]
    #: Per episode one logit per step, None for a step that is not judged; None unless the estimator needs scores.
    step_scores: Sequence[Sequence[float | None]] | None


@dataclass(frozen=True, slots=True)
class AdvantageEstimator:
    """A pure function from a group to one advantage per step of each episode."""

    advantages: Callable[[EpisodeGroup, GRPOConfig], Sequence[Floats]]
    #: Whether it needs a step scorer.
    needs_scores: bool = False


@dataclass(frozen=True, slots=True)
class CreditedEpisode:
    """One episode with its credit."""

    trajectory: Trajectory
    #: Of the outcome.
    reward: float
    #: One per step.
    advantages: tuple[float, ...]
    #: One entry per step: false if another episode of the tree has the same step in the loss.
    loss_mask: tuple[bool, ...]

    @property
    def has_signal(self) -> bool:
        """Whether any step in the loss has an advantage other than 0."""
        return any(advantage and masked for advantage, masked in zip(self.advantages, self.loss_mask))


def outcome_reward(trajectory: Trajectory, settings: RewardConfig) -> float:
    """The reward of an episode: for its answer, and for keeping the format to the end."""
    f1 = score(trajectory).f1
    kept = trajectory.stop is StopReason.ANSWERED and trajectory.is_strict  # however leniently it was played
    answer = settings.f1_weight * f1 if f1 >= settings.min_f1 else 0.0
    return answer + (settings.format_bonus if kept else -settings.format_bonus)


def step_rewards(trajectory: Trajectory, scores: Sequence[float | None], settings: RewardConfig) -> list[float | None]:
    """One reward per step: the sigmoid of its score, and for keeping the format. None if it is not judged."""
    return [
        None
        if score is None
        else sigmoid(score) + (settings.step_format_bonus if step.action.is_strict else -settings.step_format_bonus)
        for step, score in zip(trajectory.steps, scores, strict=True)
    ]


def credit_group(
    group: Sequence[Trajectory], scores: Sequence[Sequence[float | None]] | None, settings: GRPOConfig
) -> list[CreditedEpisode]:
    """Credit the episodes of one question with the estimator of `mode`, which may need step `scores`."""
    rewards = [outcome_reward(trajectory, settings.rewards) for trajectory in group]
    advantages = ESTIMATORS.get(settings.mode).advantages(EpisodeGroup(group, rewards, scores), settings)
    return [_row(*each, [True] * len(each[0].steps)) for each in zip(group, rewards, advantages, strict=True)]


def _outcome(group: EpisodeGroup, settings: GRPOConfig) -> list[Floats]:  # noqa: ARG001
    zeros = [np.zeros(len(trajectory.steps)) for trajectory in group.episodes]
    return dual_advantages(outcome_advantages(group.outcome_rewards), zeros, 0.0)


def _dual(group: EpisodeGroup, settings: GRPOConfig) -> list[Floats]:
    return dual_advantages(
        outcome_advantages(group.outcome_rewards), _process(group, settings), settings.process_weight
    )


def _process(group: EpisodeGroup, settings: GRPOConfig) -> list[Floats]:
    """The advantages of steps by their own scores; 0 for steps that are not graded, or not judged by the scorer."""
    assert group.step_scores is not None
    episodes = group.episodes
    scored = zip(episodes, group.step_scores, strict=True)
    rewards = [
        {
            index: reward
            for index, reward in enumerate(step_rewards(each, found, settings.rewards))
            if reward is not None and (settings.grade_answers or each.steps[index].action.kind is not ActionKind.ANSWER)
        }
        for each, found in scored
    ]
    graded = [list(each) for each in rewards]
    found = process_advantages(
        [list(each.values()) for each in rewards],
        [[len(each.steps[index].written.tokens) for index in own] for each, own in zip(episodes, graded)],
        settings.normalize,
        [[_label(index, each.steps[index]) for index in own] for each, own in zip(episodes, graded)],
        min_std=settings.min_std,
    )
    all_steps = [np.zeros(len(each.steps)) for each in episodes]
    for advantages, own, some in zip(all_steps, graded, found):
        advantages[own] = some
    return all_steps


OUTCOME = AdvantageEstimator(_outcome)
PROCESS = AdvantageEstimator(_process, needs_scores=True)
DUAL = AdvantageEstimator(_dual, needs_scores=True)


def _label(index: int, step: Step) -> tuple[int, str] | None:
    """The peers of a step: those of its kind at its position. A malformed step is compared with all."""
    return None if step.action.kind is ActionKind.MALFORMED else (index, step.action.kind.value)


def credit_tree(tree: Tree, settings: GRPOConfig) -> list[CreditedEpisode]:
    """Credit the branches of a tree. A shared step has one value and is in the loss once, in the first branch.

    With `branches` credit, shared steps are in the loss of each branch.
    """
    leaves = [node for node in tree.nodes if node.stop is not None]
    branches = {node.id: tree.branch(node)[1:] for node in leaves}
    trajectories = {node.id: tree.trajectory(node) for node in leaves}
    rewards = {each: outcome_reward(trajectory, settings.rewards) for each, trajectory in trajectories.items()}
    once = settings.tree.credit != "branches"
    if once:
        parents, relative = [node.parent for node in tree.nodes], settings.tree.credit == "steps"
        by_node = gain_advantages(parents, [rewards.get(node.id) for node in tree.nodes], relative_to_root=relative)
        advantages = [np.array([by_node[node.id] for node in branches[each]]) for each in branches]
    else:
        stems = [branch[0].id for branch in branches.values()]
        whole = branch_advantages(stems, list(rewards.values()))
        advantages = [np.full(len(branches[each]), one) for each, one in zip(branches, whole)]
    seen: set[int] = set()
    rows: list[CreditedEpisode] = []
    for each, found in zip(branches, advantages, strict=True):
        loss_mask = [not (once and node.id in seen) for node in branches[each]]
        seen.update(node.id for node in branches[each])
        rows.append(_row(trajectories[each], rewards[each], found, loss_mask))
    return rows


def _row(trajectory: Trajectory, reward: float, advantages: Floats, loss_mask: Sequence[bool]) -> CreditedEpisode:
    return CreditedEpisode(trajectory, reward, tuple(float(each) for each in advantages), tuple(loss_mask))
