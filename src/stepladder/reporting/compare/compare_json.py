"""A comparison as JSON-compatible data.

In: a `RunComparison`. Out: everything that the table and the page show, and every evaluation with its path. Unknown
values are null.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from stepladder.reporting.compare.comparison import MEANS, Arm, Difference, RunComparison


def comparison_json(comparison: RunComparison, pairwise: Sequence[Difference]) -> dict[str, Any]:
    """The comparison. `pairwise`: the differences between all pairs of arms."""
    return {
        "metric": comparison.metric,
        "questions": comparison.questions,
        "scored": comparison.scored,
        "by_hops": dict(comparison.hops),
        "reference": comparison.reference,
        "arms": [_arm(arm, comparison.differences.get(arm.label)) for arm in comparison.arms],
        "pairwise": [_difference(each) for each in pairwise],
    }


def _arm(arm: Arm, difference: Difference | None) -> dict[str, Any]:
    return {
        "label": arm.label,
        "agent": arm.agent,
        "scores": {name: {**asdict(score), "over_seeds": arm.range(name)} for name, score in arm.scores.items()},
        "difference": None if difference is None else _difference(difference),
        **{name: arm.mean(name) for name in MEANS},
        "by_hops": dict(arm.by_hops),
        "training_questions": arm.training_questions,
        "training_tokens": arm.training_tokens,
        "training_minutes": arm.training_minutes,
        "seeds": [asdict(seed) for seed in arm.seeds],
    }


def _difference(each: Difference) -> dict[str, Any]:
    return {**asdict(each), "significant": each.significant}
