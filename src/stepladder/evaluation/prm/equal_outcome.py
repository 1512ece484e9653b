"""Whether scores of steps tell more than the outcome of an episode.

In: steps with scores, verdicts and the outcome of their episode. Out: plain numbers, with intervals that resample
questions.

A model that only knows whether an episode will end well ranks steps well too, because faults make answers wrong. Here
steps are compared only with steps of episodes that ended alike, all right or all wrong. Final answers, which are the
outcome, are left out.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from stepladder.evaluation.prm.calibration import GradedStep
from stepladder.evaluation.prm.ranking import as_probabilities
from stepladder.evaluation.prm.selection import ANSWER
from stepladder.evaluation.statistics import pooled_share


def equal_outcome(steps: Sequence[GradedStep]) -> dict[str, Any]:
    """The AUC over comparisons of a good with a faulty step of the same kind, in episodes with the same outcome.

    Also for right and for wrong episodes alone, with what the scores promise (`predicted`) and what is true (`good`).
    """
    inner = [step for step in steps if step.kind != ANSWER]
    groups = {
        name: [step for step in inner if step.right is right] for name, right in (("right", True), ("wrong", False))
    }
    return {"auc": _auc(*groups.values()), **{name: _report(each) for name, each in groups.items()}}


def _report(steps: Sequence[GradedStep]) -> dict[str, Any]:
    return {
        "steps": len(steps),
        "faulty": sum(not step.good for step in steps),
        "good": fmean(step.good for step in steps) if steps else None,
        "predicted": fmean(as_probabilities([step.score for step in steps])) if steps else None,
        "auc": _auc(steps),
    }


def _auc(*groups: Sequence[GradedStep]) -> dict[str, float] | None:
    """How often a good step scores higher than a faulty one of its kind and group; a tie counts half."""
    wins, tries = defaultdict[str, float](float), defaultdict[str, int](int)
    for steps in groups:
        good = defaultdict[str, list[float]](list)
        for step in steps:
            if step.good:
                good[step.kind].append(step.score)
        for step in steps:
            if not step.good:
                others = good[step.kind]
                wins[step.question_id] += sum((score > step.score) + 0.5 * (score == step.score) for score in others)
                tries[step.question_id] += len(others)
    found = pooled_share([wins[each] for each in tries], list(tries.values()))
    return None if found is None else {**asdict(found), "pairs": sum(tries.values())}
