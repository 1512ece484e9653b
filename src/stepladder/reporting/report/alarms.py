"""Alarms that the monitors raised during training.

In: a `RunData`. Out: the alarms of each monitored stage, ordered by update. `grpo` stages are always listed.
"""

from dataclasses import dataclass

from stepladder.reporting.report.run_data import RunData
from stepladder.train.grpo.monitors import ALARMS, Alarm, read_alarms

#: The kind of stage that is always monitored.
_MONITORED = "grpo"


@dataclass(frozen=True, slots=True)
class StageAlarms:
    """The alarms of one stage."""

    stage: str
    alarms: tuple[Alarm, ...]


def alarms_of(run: RunData) -> tuple[StageAlarms, ...]:
    """Alarms per stage, for stages that have any or are always monitored."""
    found = []
    for stage in run.known_stages:
        path = run.folder / stage.name / ALARMS
        if path.is_file() or stage.kind == _MONITORED:
            found.append(StageAlarms(stage.name, tuple(read_alarms(path)) if path.is_file() else ()))
    return tuple(found)
