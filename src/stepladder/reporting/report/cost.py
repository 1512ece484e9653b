"""The cost of a run: time, tokens, searches and questions per stage.

In: a `RunData`. Out: one `CostRow` per started stage, and the total. None means not counted, which is not 0.
"""

from collections.abc import Iterable
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

    @property
    def time(self) -> str:
        """The seconds, formatted."""
        return duration(self.seconds)


@dataclass(frozen=True, slots=True)
class Costs:
    """All stages and their total."""

    stages: tuple[CostRow, ...]
    total: CostRow


def costs_of(run: RunData) -> Costs | None:
    """The cost of every started stage; None without any."""
    done = {stage.name for stage in run.report.stages}
    stages = tuple(_cost(run, stage, done=stage.name in done) for stage in run.known_stages)
    if not stages:
        return None
    total = CostRow(
        "total",
        "",
        all(each.done for each in stages),
        sum(each.attempts for each in stages),
        sum(each.seconds for each in stages),
        StageCost(
            None,  # stages share questions: a sum would be meaningless
            _sum(each.used.searches for each in stages),
            _sum(each.used.tokens_read for each in stages),
            _sum(each.used.tokens_written for each in stages),
            _sum(each.used.tokens_trained for each in stages),
        ),
    )
    return Costs(stages, total)


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


def _cost(run: RunData, stage: StageRecord, *, done: bool) -> CostRow:
    used = StageCost()
    if done and stage.kind in STAGES:
        used = get_stage(stage.kind).cost(finished(run, stage, RunContext(run.report.recipe.shared)))
    return CostRow(stage.name, stage.kind, done, stage.attempts, stage.seconds, used)


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
