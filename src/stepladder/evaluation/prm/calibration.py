"""Metrics of a process reward model: ranking (AUC, pair accuracy) and calibration.

In: steps with scores and verdicts of the gold judge; control chains; pairs. Out: plain numbers. Confidence intervals
resample questions, because the steps of one question are correlated.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stepladder.core.answer_metrics import score_question
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Trajectory
from stepladder.evaluation.prm.ranking import as_probabilities, auc, auc_interval, brier, calibration_error, platt
from stepladder.evaluation.statistics import pooled_share
from stepladder.oracle.step_judge import judge
from stepladder.oracle.step_verdicts import Derived, reward_target


@dataclass(frozen=True, slots=True)
class GradedStep:
    """A step with its score and the verdict of the gold judge."""

    question_id: str
    kind: str
    score: float
    good: bool
    fault: str
    #: The number of the step in its episode, from 0.
    place: int = 0
    #: Whether an earlier step of the episode is faulty.
    after_fault: bool = False
    #: Whether the episode ends with the right answer.
    right: bool = False


def graded_steps(
    trajectories: Sequence[Trajectory], scores: Sequence[Sequence[float]], derived: Derived = "unjudged"
) -> list[GradedStep]:
    """All steps that the gold judge judges.

    `derived`: how steps count that follow from an earlier error. A final answer that is wrong is faulty.
    """
    graded = []
    for trajectory, found in zip(trajectories, scores, strict=True):
        after_fault = False
        right = score_question(trajectory.answer, trajectory.question).em == 1
        for place, (step, verdict, score) in enumerate(zip(trajectory.steps, judge(trajectory), found, strict=True)):
            kind, value = step.action.kind, reward_target(verdict, step.action.kind, derived)
            if verdict is not None and value is not None:
                fault = verdict.fault or ""
                described = (trajectory.question.id, kind.value, score, value == 1, fault, place, after_fault, right)
                graded.append(GradedStep(*described))
            after_fault = after_fault or (verdict is not None and verdict.faulty)
    return graded


def gold_agreement(steps: Sequence[GradedStep]) -> dict[str, Any]:
    """AUC over all steps and by kind of action, accuracy at threshold 0, and the share of each fault below it."""
    labels = [step.good for step in steps]
    by_kind, faults = {}, {}
    for kind in sorted({step.kind for step in steps}):
        same = [step for step in steps if step.kind == kind]
        by_kind[kind] = {"auc": _auc(same), "steps": len(same), "faulty": sum(not step.good for step in same)}
    for fault in sorted({step.fault for step in steps if step.fault}):
        same = [step for step in steps if step.fault == fault]
        faults[fault] = {"steps": len(same), "below_0": sum(step.score < 0 for step in same) / len(same)}
    return {
        "auc": _auc(steps),
        "steps": len(steps),
        "questions": len({step.question_id for step in steps}),
        "good": sum(labels) / len(labels),
        "right_at_0": sum((step.score >= 0) == step.good for step in steps) / len(steps),
        "by_kind": by_kind,
        "faults": faults,
    }


def _auc(steps: Sequence[GradedStep]) -> dict[str, float] | None:
    """AUC with its interval; None if all steps are good, or all faulty."""
    labels = [step.good for step in steps]
    if len(set(labels)) < 2:
        return None
    return asdict(auc_interval([step.score for step in steps], labels, [step.question_id for step in steps]))


def calibration_report(steps: Sequence[GradedStep]) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Calibration of sigmoid(score), raw and after Platt scaling; and the predictions of both.

    Platt scaling is cross-fitted: the parameters for one half of the questions are fitted on the other half.
    """
    scores, labels = [step.score for step in steps], [step.good for step in steps]
    halves = [seed_of("half", step.question_id) % 2 for step in steps]
    raw = as_probabilities(scores)
    scaled = {0: raw, 1: raw}
    for half in (0, 1):
        others = [(step.score, step.good) for step, side in zip(steps, halves) if side != half]
        if len({good for _, good in others}) == 2:
            scaled[half] = as_probabilities(scores, *platt(*map(list, zip(*others))))
    predictions = {"raw": raw, "rescaled": [scaled[half][index] for index, half in enumerate(halves)]}
    return {
        name: {"error": calibration_error(each, labels), "brier": brier(each, labels)}
        for name, each in predictions.items()
    }, predictions


def chain_metrics(lowest: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """By kind of chain, from the lowest step score: median, share at 0 or above, and AUC against gold."""
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
    """The share of pairs whose chosen step scores higher. In: question id, and whether it does."""
    wins, tries = Counter[str](), Counter[str]()
    for question, right in ranked:
        wins[question] += right
        tries[question] += 1
    found = pooled_share(list(wins.values()), list(tries.values()))
    return None if found is None else {**asdict(found), "pairs": tries.total()}
