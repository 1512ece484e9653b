"""How stages report what they did: a headline with detail lines, and a cost.

In: the summary numbers of a stage. Out: text for tables and reports, and a `StageCost`. Numbers that a summary lacks
are left out, because what is measured depends on the settings.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepladder.evaluation.statistics import Interval, interval_text
from stepladder.preferences.pair_stats import format_counts

if TYPE_CHECKING:
    from stepladder.pipeline.stage import FinishedStage

Numbers = Mapping[str, Any]
#: A headline, and lines by label; empty lines are not printed.
StageSummary = tuple[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class StageCost:
    """What a stage consumed. None means not counted, which is not the same as 0."""

    questions: int | None = None
    searches: int | None = None
    tokens_read: int | None = None
    tokens_written: int | None = None
    #: Tokens that training went over, repeats included.
    tokens_trained: int | None = None
    #: Spend of an LLM judge.
    judge: str = ""


def cost_from_summary(stage: "FinishedStage") -> StageCost:
    """The cost of a stage whose summary uses the common names."""
    numbers = stage.summary
    return StageCost(
        _first(numbers, ("questions", "asked", "trees")),
        _first(numbers, ("searches",)),
        _first(numbers, ("tokens_read",)),
        _first(numbers, ("tokens_written", "tokens_sampled")),
        _first(numbers, ("tokens",)),
        format_counts({name: value for name, value in numbers.get("spend", {}).items() if value is not None}),
    )


def _first(numbers: Numbers, names: Iterable[str]) -> int | None:
    """The first of these numbers that a summary has."""
    return next((numbers[name] for name in names if isinstance(numbers.get(name), int)), None)


def policy_lines(numbers: Numbers) -> dict[str, str]:
    """What a policy behind a paid server has spent."""
    spend = {name: value for name, value in numbers.get("policy_spend", {}).items() if value is not None}
    return {"spend of the policy": format_counts(spend)}


def judge_lines(numbers: Numbers) -> dict[str, str]:
    """Requests, problems and spend of an LLM judge."""
    problems = "; ".join(f"{count:,} times {problem}" for problem, count in numbers.get("problems", {}).items())
    spend = {name: value for name, value in numbers.get("spend", {}).items() if value is not None}
    return {"judge": format_counts(numbers.get("asked", {})), "problems": problems, "spend": format_counts(spend)}


def failure_note(numbers: Numbers) -> str:
    """How many trees failed, and the most frequent reason."""
    return f"; {numbers['failed']:,} failed: {next(iter(numbers['failures']))}" if numbers["failed"] else ""


def updates(numbers: Numbers) -> str:
    """Number of updates, first and last loss."""
    kept = "; none is kept: the initial policy was best" if numbers.get("best_step") == 0 else ""
    return f"{numbers['steps']:,}, loss {numbers['first_loss']:.3f} -> {numbers['last_loss']:.3f}{kept}"


def measured(numbers: Numbers, labels: Mapping[str, str], before: str = "") -> str:
    """The measures that exist, after a prefix."""
    found = ", ".join(f"{label} {numbers[name]:.3f}" for name, label in labels.items() if numbers.get(name) is not None)
    return before + found if found else ""


def share(found: Mapping[str, float] | None) -> str:
    """A mean with its interval, from plain data."""
    return interval_text(Interval(found["mean"], found["low"], found["high"]), 2) if found else "-"


def unless_zero(count: int | None) -> str:
    """A count, or nothing."""
    return f"{count:,}" if count else ""
