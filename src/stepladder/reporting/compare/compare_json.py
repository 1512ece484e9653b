"""A comparison as plain data, for other programs.

In: a `Compared`. Out: what JSON holds: all that the table and the page show, and every evaluation by its place. What is
not known is null.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from stepladder.reporting.compare.comparison import MEANS, Compared, Difference, Line


def as_plain(compared: Compared, every_two: Sequence[Difference]) -> dict[str, Any]:
    """All of it. `every_two`: the differences between every two lines."""
    return {
        "metric": compared.metric,
        "questions": compared.questions,
        "known": compared.known,
        "by_hops": dict(compared.hops),
        "reference": compared.reference,
        "lines": [_line(line, compared.differences.get(line.label)) for line in compared.lines],
        "every_two": [_difference(each) for each in every_two],
    }


def _line(line: Line, difference: Difference | None) -> dict[str, Any]:
    return {
        "label": line.label,
        "agent": line.agent,
        "scores": {name: {**asdict(score), "over_seeds": line.range(name)} for name, score in line.scores.items()},
        "difference": None if difference is None else _difference(difference),
        **{name: line.mean(name) for name in MEANS},
        "by_hops": dict(line.by_hops),
        "training_questions": line.training_questions,
        "training_tokens": line.training_tokens,
        "training_minutes": line.training_minutes,
        "seeds": [asdict(seed) for seed in line.seeds],
    }


def _difference(each: Difference) -> dict[str, Any]:
    return {**asdict(each), "beyond_noise": each.beyond_noise}
