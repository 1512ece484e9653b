"""Which sampled trajectories are good enough to learn from, and where the others fail.

In: trajectories, with a reward model's scores or without. Out: a `FilterResult`: those kept, what became of every other one,
how many were left after each filter, and at which step those that were left out fail. Pure: no model, no file.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from stepladder.core.answer_metrics import score
from stepladder.core.errors import StepladderError
from stepladder.core.trace import Trajectory

#: The filters in their order; what passes all of them is kept.
FILTERS = ("answered", "right_answer", "good_steps", "distinct", "kept")


@dataclass(slots=True)
class FilterResult:
    """What became of some trajectories."""

    kept: list[Trajectory] = field(default_factory=list)
    #: One entry a trajectory: the filter that it did not pass, or "" for those kept.
    failed: list[str] = field(default_factory=list)
    #: The questions that some trajectory answers rightly.
    solved: set[str] = field(default_factory=set)
    #: Of those not kept for what they say: the first step below the threshold, counted from 1, and its kind.
    first_bad_step: Counter[int] = field(default_factory=Counter)
    first_bad_kind: Counter[str] = field(default_factory=Counter)
    #: Those not kept for what they say in which no step is below the threshold.
    no_bad_step: int = 0

    def left(self) -> dict[str, int]:
        """How many there were, and how many were left after each filter."""
        count = len(self.failed)
        left = {"sampled": count}
        for name in FILTERS:
            count -= self.failed.count(name)
            left[name] = count
        return left

    def expect_some(self, threshold: float | None) -> None:
        """Raise where nothing is left: which filter it was, and what to change."""
        if self.kept:
            return
        left = self.left()
        last = next(name for name in FILTERS if not left[name])
        advice = {
            "answered": "the policy does not come to an answer: warm it up longer, or raise episode.max_steps",
            "right_answer": "the policy answers none of these questions: take more samples or questions, a lower "
            "min_f1, or a policy that was warmed up longer",
            "good_steps": f"no transcript with a right answer has every step at {threshold} or more: lower the "
            "threshold, set it to null to do without the reward model, or train a better one",
        }
        counts = ", ".join(f"{name} {count:,}" for name, count in left.items())
        found = f"nothing is left to learn from: the filter '{last}' refused the last of them ({counts})"
        raise StepladderError(f"{found}; {advice[last]}")


def sift(
    trajectories: Sequence[Trajectory],
    scores: Sequence[Sequence[float]] | None,
    *,
    min_f1: float,
    threshold: float,
    keep: int,
) -> FilterResult:
    """Keep right answers reached by good steps: up to `keep` different ones a question, in their order.

    `scores`: one a step, for each trajectory; None asks nothing of the steps.
    """
    sifted = FilterResult()
    known: dict[str, set[tuple[str, ...]]] = {}
    for number, trajectory in enumerate(trajectories):
        bad = [] if scores is None else [step for step, each in enumerate(scores[number]) if each < threshold]
        wrong = _wrong(trajectory, min_f1)
        if not wrong:
            sifted.solved.add(trajectory.question.id)
        failed = wrong or ("good_steps" if bad else "")
        if failed:
            _note_failure(sifted, trajectory, bad)
        else:
            failed = _surplus(trajectory, known.setdefault(trajectory.question.id, set()), keep)
        if not failed:
            sifted.kept.append(trajectory)
        sifted.failed.append(failed)
    return sifted


def _wrong(trajectory: Trajectory, min_f1: float) -> str:
    row = score(trajectory)
    if row.prediction is None:
        return "answered"
    return "" if row.em == 1 or row.f1 >= min_f1 else "right_answer"


def _surplus(trajectory: Trajectory, known: set[tuple[str, ...]], keep: int) -> str:
    """Why a good transcript is not kept: there is one like it, or enough of others. It is remembered either way."""
    words = tuple(step.written.text for step in trajectory.steps)
    if words in known:
        return "distinct"
    known.add(words)
    return "kept" if len(known) > keep else ""


def _note_failure(sifted: FilterResult, trajectory: Trajectory, bad: Sequence[int]) -> None:
    if bad:
        sifted.first_bad_step[bad[0] + 1] += 1
        sifted.first_bad_kind[trajectory.steps[bad[0]].action.kind.value] += 1
    else:
        sifted.no_bad_step += 1
