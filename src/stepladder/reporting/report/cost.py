"""The cost of a run: time, tokens, searches and questions per stage.

In: a `RunData`. Out: one `CostRow` per started stage, and the total. None means not counted, which is not 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.run_folder import StageRecord
from stepladder.pipeline.stage_summary import StageCost
from stepladder.pipeline.stages import STAGES, get_stage
from stepladder.reporting.report.run_data import RunData, finished


@dataclass(frozen=True, slots=True)
class CostRow:
    """The cost of one stage."""

    stage: str
    kind: str
    done: bool
    attempts: int
    seconds: float
    used: StageCost


def costs_of(run: RunData) -> list[CostRow]:
    """The cost of every started stage, then the total; empty without any."""
    done = {stage.name for stage in run.report.stages}
    rows = [
        CostRow(
            stage.name,
            stage.kind,
            stage.name in done,
            stage.attempts,
            stage.seconds,
            cost_of(run, stage) if stage.name in done else StageCost(),
        )
        for stage in run.known_stages
    ]

    used = total_cost([row.used for row in rows])
    attempts, seconds = sum(row.attempts for row in rows), sum(row.seconds for row in rows)
    return [*rows, CostRow("total", "", all(row.done for row in rows), attempts, seconds, used)] if rows else []


def total_cost(costs: Sequence[StageCost]) -> StageCost:
    """The sum over stages. They share questions, whose sum would be meaningless."""

    def total(name: str) -> int | None:
        known = [value for each in costs if (value := getattr(each, name)) is not None]
        return sum(known) if known else None

    return StageCost(None, total("searches"), total("tokens_read"), total("tokens_written"), total("tokens_trained"))


def cost_of(run: RunData, stage: StageRecord) -> StageCost:
    """What a finished stage counted; nothing if this version does not have its kind."""
    if stage.kind not in STAGES:
        return StageCost()
    return get_stage(stage.kind).cost(finished(run, stage, RunContext(run.report.recipe.shared)))


def duration(seconds: float) -> str:
    """Seconds in readable units.

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
