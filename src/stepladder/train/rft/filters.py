"""The filters of rejection sampling.

In: trajectories, with step scores or without. Out: a `FilterResult`: the kept trajectories, the filter that rejected
each other one, how many passed each filter, and at which step the rejected ones fail. Pure functions.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from stepladder.core.answer_metrics import score
from stepladder.core.errors import StepladderError
from stepladder.core.trace import Trajectory
from stepladder.train.transcripts.sample_checks import SampleRules, is_right, is_supported, solved_shares

#: The filters in order; what passes all of them is kept.
FILTERS = ("answered", "right_answer", "solved_share", "supported", "good_steps", "distinct", "kept")


@dataclass(slots=True)
class FilterResult:
    """Kept and rejected trajectories."""

    kept: list[Trajectory] = field(default_factory=list)
    #: One entry per trajectory: the filter that rejected it, or "".
    rejected_by: list[str] = field(default_factory=list)
    #: Ids of questions with at least one correct answer.
    solved: set[str] = field(default_factory=set)
    #: Of those rejected for their content: the first step below the threshold, counted from 1, and its kind.
    first_bad_step: Counter[int] = field(default_factory=Counter)
    first_bad_kind: Counter[str] = field(default_factory=Counter)
    #: How many of these have no step below the threshold.
    no_bad_step: int = 0

    def passed(self) -> dict[str, int]:
        """How many there were, and how many passed each filter."""
        count = len(self.rejected_by)
        passed = {"sampled": count}
        for name in FILTERS:
            count -= self.rejected_by.count(name)
            passed[name] = count
        return passed

    def expect_some(self, threshold: float | None) -> None:
        """Raise if nothing is kept, with the last filter and what to change."""
        if self.kept:
            return
        passed = self.passed()
        last = next(name for name in FILTERS if not passed[name])
        advice = {
            "answered": "the policy reaches no answer: train sft longer, or raise episode.max_steps",
            "right_answer": "the policy answers none of these questions: use a higher num_generations, more questions, "
            "a lower min_f1, or a better policy",
            "solved_share": "no question with right answers is between least_solved and most_solved: widen them",
            "supported": "no right answer occurs, with its sub-answers, in the passages found: set supported to false, "
            "or use a higher num_generations",
            "good_steps": f"no transcript with a correct answer has all scores at {threshold} or above: lower the "
            "threshold, set it to null to use no PRM, or train a better one",
        }
        counts = ", ".join(f"{name} {count:,}" for name, count in passed.items())
        found = f"no transcripts left: the filter '{last}' rejected the last of them ({counts})"
        raise StepladderError(f"{found}; {advice[last]}")


def filter_trajectories(
    trajectories: Sequence[Trajectory],
    scores: Sequence[Sequence[float | None]] | None,
    *,
    rules: SampleRules,
    threshold: float,
) -> FilterResult:
    """Keep correct answers that follow the rules, reached by good steps: the first `keep` distinct ones per question.

    `scores`: for each trajectory one per step; a step that is not judged has None and is not bad. Without scores, steps
    are not filtered.
    """
    result = FilterResult()
    known: dict[str, set[tuple[str, ...]]] = {}
    shares = solved_shares(trajectories, rules.min_f1)
    for number, trajectory in enumerate(trajectories):
        own = () if scores is None else scores[number]
        bad = [step for step, each in enumerate(own) if each is not None and each < threshold]
        rejected_by = _wrong(trajectory, rules.min_f1)
        if not rejected_by:
            result.solved.add(trajectory.question.id)
            if not rules.fits(shares[trajectory.question.id]):
                rejected_by = "solved_share"
            elif rules.supported and not is_supported(trajectory):
                rejected_by = "supported"
        rejected_by = rejected_by or ("good_steps" if bad else "")
        if rejected_by:
            _record_failure(result, trajectory, bad)
        else:
            rejected_by = _surplus(trajectory, known.setdefault(trajectory.question.id, set()), rules.keep)
        if not rejected_by:
            result.kept.append(trajectory)
        result.rejected_by.append(rejected_by)
    return result


def _wrong(trajectory: Trajectory, min_f1: float) -> str:
    row = score(trajectory)
    if row.prediction is None or not trajectory.is_strict:  # text outside the format is not imitated
        return "answered"
    return "" if is_right(trajectory, min_f1) else "right_answer"


def _surplus(trajectory: Trajectory, known: set[tuple[str, ...]], keep: int) -> str:
    """Why a good transcript is not kept: a duplicate, or enough others. It is added to `known` in any case."""
    texts = tuple(step.written.text for step in trajectory.steps)
    if texts in known:
        return "distinct"
    known.add(texts)
    return "kept" if len(known) > keep else ""


def _record_failure(result: FilterResult, trajectory: Trajectory, bad: Sequence[int]) -> None:
    if bad:
        result.first_bad_step[bad[0] + 1] += 1
        result.first_bad_kind[trajectory.steps[bad[0]].action.kind.value] += 1
    else:
        result.no_bad_step += 1
