"""What the episodes of one question earned, step by step: rewards first, then advantages.

In: the episodes of a question, or a tree of them, and scores of their steps. Out: `CreditedEpisode` rows: a trajectory, an
advantage for each of its steps, and which of them are learnt from in this row. Arithmetic only; `advantage.py` has the
formulas.
"""

from collections.abc import Sequence
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
from stepladder.train.grpo.config import GRPOConfig, RewardConfig


@dataclass(frozen=True, slots=True)
class CreditedEpisode:
    """One episode and what it teaches."""

    trajectory: Trajectory
    #: What its end earned.
    reward: float
    #: One a step.
    advantages: tuple[float, ...]
    #: One a step: false where another row has the same step and teaches it.
    learns: tuple[bool, ...]

    @property
    def teaches(self) -> bool:
        """Whether there is anything to learn from it."""
        return any(advantage and learns for advantage, learns in zip(self.advantages, self.learns))


def outcome_reward(trajectory: Trajectory, settings: RewardConfig) -> float:
    """What an episode earned: for its answer, and for keeping the format to the end."""
    f1 = score(trajectory).f1
    kept = trajectory.stop is StopReason.ANSWERED
    answer = settings.f1_weight * f1 if f1 >= settings.min_f1 else 0.0
    return answer + (settings.format_bonus if kept else -settings.format_bonus)


def step_rewards(trajectory: Trajectory, scores: Sequence[float], settings: RewardConfig) -> list[float]:
    """What each step earned: its score, a logit, brought between 0 and 1, and for keeping the format."""
    return [
        sigmoid(score)
        + (-settings.step_format_bonus if step.action.kind is ActionKind.MALFORMED else settings.step_format_bonus)
        for step, score in zip(trajectory.steps, scores, strict=True)
    ]


def credit_group(
    group: Sequence[Trajectory], scores: Sequence[Sequence[float]] | None, settings: GRPOConfig
) -> list[CreditedEpisode]:
    """The episodes of one question. `scores` of their steps are needed unless the answer alone counts."""
    rewards = [outcome_reward(trajectory, settings.rewards) for trajectory in group]
    outcome = outcome_advantages(rewards)
    nothing = [np.zeros(len(trajectory.steps)) for trajectory in group]
    if settings.mode == "outcome":
        advantages = dual_advantages(outcome, nothing, 0.0)
    else:
        assert scores is not None
        steps = _by_scores(group, scores, settings)
        dual = settings.mode == "dual"
        advantages = dual_advantages(outcome, steps, settings.process_weight) if dual else steps
    return [_row(*each, [True] * len(each[0].steps)) for each in zip(group, rewards, advantages, strict=True)]


def _by_scores(group: Sequence[Trajectory], scores: Sequence[Sequence[float]], settings: GRPOConfig) -> list[Floats]:
    """What each step earned by its own score; 0 where that does not count."""
    answers_count = settings.grade_answers or settings.mode == "process"
    places = [
        [place for place, step in enumerate(each.steps) if answers_count or step.action.kind is not ActionKind.ANSWER]
        for each in group
    ]
    rewards = [step_rewards(each, found, settings.rewards) for each, found in zip(group, scores, strict=True)]
    found = process_advantages(
        [[earned[place] for place in own] for earned, own in zip(rewards, places)],
        [[len(each.steps[place].written.tokens) for place in own] for each, own in zip(group, places)],
        settings.normalize,
        [[_label(place, each.steps[place]) for place in own] for each, own in zip(group, places)],
        min_std=settings.min_std,
    )
    whole = [np.zeros(len(each.steps)) for each in group]
    for advantages, own, some in zip(whole, places, found):
        advantages[own] = some
    return whole


def _label(place: int, step: Step) -> tuple[int, str] | None:
    """Whom a step is compared with: those of its kind at its place. One that broke the format is compared with all."""
    return None if step.action.kind is ActionKind.MALFORMED else (place, step.action.kind.value)


def credit_tree(tree: Tree, settings: GRPOConfig) -> list[CreditedEpisode]:
    """The branches of a tree. A step that several of them share has one value, and is learnt from once, in the first.

    Where branches are credited as a whole, what they share is learnt from in each: it earns what they earn together.
    """
    ends = [node for node in tree.nodes if node.stop is not None]
    branches = {node.id: tree.branch(node)[1:] for node in ends}
    trajectories = {node.id: tree.trajectory(node) for node in ends}
    rewards = {each: outcome_reward(trajectory, settings.rewards) for each, trajectory in trajectories.items()}
    once = settings.tree.credit != "branches"
    if once:
        parents, standing = [node.parent for node in tree.nodes], settings.tree.credit == "steps"
        by_node = gain_advantages(parents, [rewards.get(node.id) for node in tree.nodes], standing=standing)
        advantages = [np.array([by_node[node.id] for node in branches[each]]) for each in branches]
    else:
        stems = [branch[0].id for branch in branches.values()]
        whole = branch_advantages(stems, list(rewards.values()))
        advantages = [np.full(len(branches[each]), one) for each, one in zip(branches, whole)]
    seen: set[int] = set()
    rows: list[CreditedEpisode] = []
    for each, found in zip(branches, advantages, strict=True):
        learns = [not (once and node.id in seen) for node in branches[each]]
        seen.update(node.id for node in branches[each])
        rows.append(_row(trajectories[each], rewards[each], found, learns))
    return rows


def _row(trajectory: Trajectory, reward: float, advantages: Floats, learns: Sequence[bool]) -> CreditedEpisode:
    return CreditedEpisode(trajectory, reward, tuple(float(each) for each in advantages), tuple(learns))
