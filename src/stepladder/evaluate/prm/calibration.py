"""How good a reward model is, in numbers: does it rank good steps above faulty ones, and does it mean what it says?

In: steps that the gold judge has graded, with their scores; chains; pairs. Out: plain numbers, with intervals that
resample questions, because the steps of one question are alike.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stepladder.core.seeding import seed_of
from stepladder.core.trace import Trajectory
from stepladder.evaluate.prm.ranking import as_probabilities, auc, auc_interval, brier, calibration_error, platt
from stepladder.evaluate.statistics import pooled_share
from stepladder.oracle.step_judge import judge


@dataclass(frozen=True, slots=True)
class GradedStep:
    """A step with its score, and what the gold judge says of it."""

    question_id: str
    kind: str
    score: float
    good: bool
    fault: str


def graded_steps(trajectories: Sequence[Trajectory], scores: Sequence[Sequence[float]]) -> list[GradedStep]:
    """Every step that the gold judge can grade."""
    return [
        GradedStep(trajectory.question.id, step.action.kind.value, score, verdict.good, verdict.fault or "")
        for trajectory, found in zip(trajectories, scores, strict=True)
        for step, verdict, score in zip(trajectory.steps, judge(trajectory), found, strict=True)
        if verdict is not None
    ]


def judged_by_gold(steps: Sequence[GradedStep]) -> dict[str, Any]:
    """AUC over all steps and by kind, how a threshold of 0 does, and how often each fault is noticed there."""
    labels = [step.good for step in steps]
    numbers: dict[str, Any] = {
        "auc": _auc(steps),
        "steps": len(steps),
        "questions": len({step.question_id for step in steps}),
        "good": sum(labels) / len(labels),
        "right_at_0": sum((step.score >= 0) == step.good for step in steps) / len(steps),
        "by_kind": {},
        "faults": {},
    }
    for kind in sorted({step.kind for step in steps}):
        same = [step for step in steps if step.kind == kind]
        numbers["by_kind"][kind] = {
            "auc": _auc(same),
            "steps": len(same),
            "faulty": sum(not step.good for step in same),
        }
    for fault in sorted({step.fault for step in steps if step.fault}):
        same = [step for step in steps if step.fault == fault]
        numbers["faults"][fault] = {"steps": len(same), "below_0": sum(step.score < 0 for step in same) / len(same)}
    return numbers


def _auc(steps: Sequence[GradedStep]) -> dict[str, float] | None:
    """With its interval; None where all steps are good, or all faulty."""
    labels = [step.good for step in steps]
    if len(set(labels)) < 2:
        return None
    return asdict(auc_interval([step.score for step in steps], labels, [step.question_id for step in steps]))


def calibrated(steps: Sequence[GradedStep]) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """How far sigmoid(score) is from the share of good steps, as it is and rescaled (Platt); and both predictions.

    The rescaling of a question's steps is learnt from other questions: from the half that it is not in.
    """
    raw = as_probabilities([step.score for step in steps])
    labels = [step.good for step in steps]
    half = [seed_of("half", step.question_id) % 2 for step in steps]
    rescaled = list(raw)
    for mine in (0, 1):
        others = [(step.score, step.good) for step, side in zip(steps, half) if side != mine]
        if len({good for _, good in others}) < 2:
            continue
        scale, offset = platt(*map(list, zip(*others)))
        for place, (step, side) in enumerate(zip(steps, half)):
            if side == mine:
                rescaled[place] = as_probabilities([step.score], scale, offset)[0]
    predictions = {"as it is": raw, "rescaled": rescaled}
    return {
        name: {"error": calibration_error(each, labels), "brier": brier(each, labels)}
        for name, each in predictions.items()
    }, predictions


def chain_numbers(lowest: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """For each kind of chain, its lowest step's score: the median, the share at 0 or more, and the AUC against gold."""
    gold = lowest["gold"]
    numbers: dict[str, Any] = {}
    for name, scores in lowest.items():
        if not scores:
            continue
        numbers[name] = {
            "chains": len(scores),
            "median": float(np.median(scores)),
            "passes_0": sum(score >= 0 for score in scores) / len(scores),
        }
        if name != "gold":
            numbers[name]["auc"] = auc([*gold, *scores], [True] * len(gold) + [False] * len(scores))
    return numbers


def pair_accuracy(ranked: Iterable[tuple[str, bool]]) -> dict[str, float] | None:
    """The share of pairs whose better step is scored higher; in: the question of a pair, and whether it is."""
    wins: dict[str, int] = {}
    tries: dict[str, int] = {}
    for question, right in ranked:
        wins[question] = wins.get(question, 0) + right
        tries[question] = tries.get(question, 0) + 1
    found = pooled_share(list(wins.values()), list(tries.values()))
    return None if found is None else {**asdict(found), "pairs": sum(tries.values())}
