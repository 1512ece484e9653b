"""Alarms that the guards raised while a stage learnt.

In: a `Run`. Out: for each stage that was watched its alarms, in the order of updates; of reinforcement learning also
that there were none.
"""

from dataclasses import dataclass

from stepladder.reporting.report.run_data import Run
from stepladder.train.grpo.monitors import ALARMS, Alarm, read_alarms

#: The kind of stage that is always watched.
_WATCHED = "grpo"


@dataclass(frozen=True, slots=True)
class StageAlarms:
    """The alarms of a stage."""

    stage: str
    alarms: tuple[Alarm, ...]


def alarms_of(run: Run) -> tuple[StageAlarms, ...]:
    """Alarms by stage, of those that have any or are always watched."""
    found = []
    for stage in run.in_order:
        path = run.folder / stage.name / ALARMS
        if path.is_file() or stage.kind == _WATCHED:
            found.append(StageAlarms(stage.name, tuple(read_alarms(path)) if path.is_file() else ()))
    return tuple(found)
