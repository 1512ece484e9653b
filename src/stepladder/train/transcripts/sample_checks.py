"""Which correct samples are worth imitating, as far as that can be told from answers alone.

In: sampled trajectories. Out: whether what one states was in the passages it had found, and how often each question was
answered right. A right answer that no passage states was guessed or remembered. One right sample of many may be luck.
A question that is always answered right has nothing left to teach. Pure functions.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, Self

from stepladder.core.answer_metrics import normalize, score
from stepladder.core.trace import ActionKind, Passage, Trajectory
from stepladder.oracle.decomposition import mentions

#: Answers that are inferred from passages and do not occur in them.
_INFERRED = frozenset({"yes", "no", "true", "false"})


class HasRules(Protocol):
    """Settings of a trainer that samples transcripts."""

    min_f1: float
    keep: int
    supported: bool
    least_solved: float
    most_solved: float


@dataclass(frozen=True, slots=True)
class SampleRules:
    """What a sample must have to be kept; the settings of the same names."""

    min_f1: float = 1.0
    keep: int = 1
    supported: bool = False
    least_solved: float = 0.0
    most_solved: float = 1.0

    @classmethod
    def of(cls, config: HasRules) -> Self:
        """The rules in the settings of a trainer."""
        return cls(config.min_f1, config.keep, config.supported, config.least_solved, config.most_solved)

    def fits(self, solved: float) -> bool:
        """Whether a question with this share of right samples is neither too hard nor too easy."""
        return self.least_solved <= solved <= self.most_solved


def is_right(trajectory: Trajectory, min_f1: float) -> bool:
    """Whether the answer is correct, by exact match or by its F1."""
    row = score(trajectory)
    return row.em == 1 or row.f1 >= min_f1


def is_supported(trajectory: Trajectory) -> bool:
    """Whether a passage was found, and every sub-answer and the answer occur in passages found before them.

    "yes", "no", and an answer that the question itself names are chosen from what was read: they need not occur.
    """
    found: list[Passage] = []
    asked = f" {normalize(trajectory.question.text)} "
    for step in trajectory.steps:
        states = step.action.kind in (ActionKind.SUB_ANSWER, ActionKind.ANSWER)
        stated = normalize(step.action.content)
        is_chosen = stated in _INFERRED or (step.action.kind is ActionKind.ANSWER and f" {stated} " in asked)
        if states and not is_chosen and not mentions((step.action.content,), found):
            return False
        found += step.passages
    return bool(found)


def solved_shares(trajectories: Iterable[Trajectory], min_f1: float) -> dict[str, float]:
    """The share of the samples of each question that end right."""
    right: dict[str, list[bool]] = {}
    for trajectory in trajectories:
        right.setdefault(trajectory.question.id, []).append(is_right(trajectory, min_f1))
    return {question: sum(each) / len(each) for question, each in right.items()}
