"""The contract of step scorers: anything that grades the steps of a trajectory.

In: trajectories. Out: for each trajectory one probability per step that the step is good (`score`), or the logits
(`score_logits`). A step that the scorer cannot judge has None, which is neither good nor bad: it gets no advantage,
passes every threshold and makes no pair. Process reward models (judges/prm), the gold judge (oracle) and LLM judges
(judges/llm) implement it. `check_step_scorer` tests an implementation against the contract.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from stepladder.core.errors import expect
from stepladder.core.trace import Trajectory

#: The result for one trajectory: one number per step, None for a step that is not judged; or why there is no result.
StepScores = tuple[float | None, ...] | Exception
#: How the gold judge counts a step that follows faithfully from an earlier error (oracle/step_verdicts.py): not at all,
#: as a good step, or as a faulty one.
Derived = Literal["unjudged", "good", "faulty"]
#: The probability that takes the place of None where a number is needed.
NEUTRAL = 0.5
#: Probabilities are clipped to [_CLIP, 1 - _CLIP] before they become logits.
_CLIP = 1e-6


class StepScorer(ABC):
    """Grades the steps of trajectories. Implement `score`, or both methods where logits are what the model gives."""

    #: The largest number of trajectories per call.
    max_batch: int
    #: How many calls may run at the same time, each in its own thread.
    concurrency: int
    #: Whether a query is scored with the passages that it found, so that it must be retrieved first.
    reads_passages: bool = False

    @abstractmethod
    def score(self, trajectories: Sequence[Trajectory]) -> Sequence[StepScores]:
        """For each trajectory one probability per step (None: not judged), or the error that prevented it."""

    def score_logits(self, trajectories: Sequence[Trajectory]) -> Sequence[StepScores]:
        """For each trajectory one logit per step, or an error; by default the inverse sigmoid of `score`."""
        return [
            each if isinstance(each, Exception) else tuple(None if p is None else logit(p) for p in each)
            for each in self.score(trajectories)
        ]

    def rank(self, groups: Sequence[Sequence[Trajectory]]) -> Sequence[StepScores]:
        """For each group of trajectories from one state, the values of their newest steps; by default their scores."""
        flat = self.score([trajectory for group in groups for trajectory in group])
        results, start = [], 0
        for group in groups:
            own, start = flat[start : start + len(group)], start + len(group)
            failed = next((each for each in own if isinstance(each, Exception)), None)
            results.append(failed or tuple(each[-1] for each in own if not isinstance(each, Exception)))
        return results

    def cost(self) -> str:
        """What scoring has cost so far, for a progress bar; empty if it is free."""
        return ""

    def summary(self) -> dict[str, Any]:
        """Counts and costs for the summary of a stage."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Free what the scorer holds."""


def sigmoid(logit: float) -> float:
    """The probability of a logit."""
    return 1 / (1 + math.exp(-logit)) if logit > -500 else 0.0


def logit(probability: float) -> float:
    """The inverse of `sigmoid`, clipped so that it is finite.

    >>> logit(0.5), round(sigmoid(logit(0.25)), 9), round(logit(1.0), 1)
    (0.0, 0.25, 13.8)
    """
    clipped = min(max(probability, _CLIP), 1 - _CLIP)
    return math.log(clipped / (1 - clipped))


def raise_errors(results: Sequence[StepScores]) -> list[tuple[float | None, ...]]:
    """The scores of every trajectory; raises the first error among them."""
    for result in results:
        if isinstance(result, Exception):
            raise result
    return [result for result in results if not isinstance(result, Exception)]


# --- the public contract test ---------------------------------------------------------------------------------


def check_step_scorer(scorer: StepScorer, trajectories: Sequence[Trajectory], *, tolerance: float = 1e-4) -> None:
    """Test a step scorer against its contract; raises `ContractViolation` with what is wrong.

    Run it on your own scorer in your own tests, with a few `trajectories` that it can score. `tolerance` is the
    difference allowed between equal scores.
    """
    sizes = scorer.max_batch, scorer.concurrency
    expect(min(sizes) >= 1, f"max_batch and concurrency are {sizes}; both must be at least 1")
    expect(any(each.steps for each in trajectories), "at least one of the trajectories must have a step")
    expect(list(scorer.score([])) == [], "an empty batch must give an empty list")
    scores = _checked(trajectories, scorer.score(trajectories))
    logits = _checked(trajectories, scorer.score_logits(trajectories))
    for own, beside in zip(scores, logits):
        unjudged = [p is None for p in own]
        expect(unjudged == [x is None for x in beside], f"a step has a score or a logit, not both: {own}, {beside}")
        judged = [(p, x) for p, x in zip(own, beside) if p is not None and x is not None]
        expect(all(0 <= p <= 1 for p, _ in judged), f"scores must be probabilities between 0 and 1: {own}")
        same_side = all((p - 0.5) * x >= 0 or min(abs(p - 0.5), abs(x)) <= tolerance for p, x in judged)
        expect(same_side, f"a logit must be above 0 where its probability is above 0.5: {own}, {beside}")
    alone = [_checked([each], scorer.score([each]))[0] for each in trajectories]
    _expect_same(scores, alone, "depends on its batch", tolerance)
    without_steps = Trajectory(trajectories[0].question, trajectories[0].agent)
    expect(tuple(scorer.score([without_steps])) == ((),), "a trajectory without steps must give an empty tuple")
    if scorer.concurrency > 1:
        with ThreadPoolExecutor(scorer.concurrency) as pool:
            for found in pool.map(lambda _: scorer.score(trajectories), range(4 * scorer.concurrency)):
                _expect_same(scores, _checked(trajectories, found), "depends on concurrent calls", tolerance)


def _checked(trajectories: Sequence[Trajectory], results: Sequence[StepScores]) -> list[tuple[float | None, ...]]:
    expect(len(results) == len(trajectories), f"{len(trajectories)} trajectories gave {len(results)} results")
    for trajectory, found in zip(trajectories, results):
        expect(isinstance(found, tuple), f"a result is not a tuple with one number per step: {found!r}")
        about = f"a trajectory of {len(trajectory.steps)} steps got {found!r}"
        expect(len(found) == len(trajectory.steps), about)  # type: ignore[arg-type]
        expect(all(each is None or math.isfinite(each) for each in found), about)  # type: ignore[union-attr]
    return raise_errors(results)


def _expect_same(
    expected: Sequence[tuple[float | None, ...]],
    found: Sequence[tuple[float | None, ...]],
    problem: str,
    tolerance: float,
) -> None:
    for ours, theirs in zip(expected, found, strict=True):
        same = all(
            a is b or (a is not None and b is not None and math.isclose(a, b, abs_tol=tolerance))
            for a, b in zip(ours, theirs, strict=True)
        )
        expect(same, f"a score {problem}: {ours}, {theirs}")
