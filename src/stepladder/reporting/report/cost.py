"""What a run cost: time, tokens, searches and questions, stage by stage.

In: a `Run`. Out: one `Cost` a stage that was begun, and their sum. What a stage did not count is None, not 0.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from stepladder.evaluate.evaluator import load_scores
from stepladder.pipeline.run_folder import StageRecord
from stepladder.pipeline.stages.eval import EVALUATION
from stepladder.preferences.pair_stats import listed
from stepladder.reporting.report.run_data import Run

#: The names under which stages tell how many questions they used, and how many tokens their policy wrote.
_QUESTIONS = ("questions", "asked", "trees")
_WRITTEN = ("tokens_written", "tokens_sampled")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one stage took."""

    stage: str
    kind: str
    done: bool
    attempts: int
    seconds: float
    questions: int | None = None
    searches: int | None = None
    #: Tokens that models read and wrote while they played.
    read: int | None = None
    written: int | None = None
    #: Tokens that training went over, repeats included.
    trained: int | None = None
    #: What a model as judge took.
    judge: str = ""

    @property
    def time(self) -> str:
        """The seconds, as a person says them."""
        return duration(self.seconds)


@dataclass(frozen=True, slots=True)
class Costs:
    """All stages, and the sum of what they counted."""

    stages: tuple[Cost, ...]
    total: Cost


def costs_of(run: Run) -> Costs | None:
    """The cost of every stage that was begun."""
    done = {stage.name for stage in run.report.stages}
    stages = tuple(_cost(run, stage, done=stage.name in done) for stage in run.in_order)
    if not stages:
        return None
    total = Cost(
        "total",
        "",
        all(each.done for each in stages),
        sum(each.attempts for each in stages),
        sum(each.seconds for each in stages),
        None,  # stages share questions: their sum would say nothing
        _sum(each.searches for each in stages),
        _sum(each.read for each in stages),
        _sum(each.written for each in stages),
        _sum(each.trained for each in stages),
    )
    return Costs(stages, total)


def duration(seconds: float) -> str:
    """A time as a person says it.

    >>> duration(0.94), duration(203.2), duration(7_265)
    ('0.9 s', '3 min 23 s', '2 h 01 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02d} min"


def _cost(run: Run, stage: StageRecord, *, done: bool) -> Cost:
    told = Cost(stage.name, stage.kind, done, stage.attempts, stage.seconds)
    if not done:
        return told
    numbers = stage.summary
    searches = read = None
    written = _first(stage, _WRITTEN)
    if stage.kind == "eval":
        rows = load_scores(run.folder / stage.name / EVALUATION)
        searches = sum(row.searches for row in rows)
        # Zero is what an engine says that does not count.
        read = sum(row.tokens_read for row in rows) or None
        written = sum(row.tokens_written for row in rows) or None
    return Cost(
        stage.name,
        stage.kind,
        done,
        stage.attempts,
        stage.seconds,
        _first(stage, _QUESTIONS),
        searches if searches is not None else _first(stage, ("searches",)),
        read if read is not None else _first(stage, ("tokens_read",)),
        written,
        _first(stage, ("tokens",)),
        listed({name: value for name, value in numbers.get("spend", {}).items() if value is not None}),
    )


def _first(stage: StageRecord, names: Iterable[str]) -> int | None:
    """The first of these numbers that a stage tells."""
    return next((stage.summary[name] for name in names if isinstance(stage.summary.get(name), int)), None)


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
