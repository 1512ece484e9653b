"""Alarms that the monitors raised during training.

In: a `RunData`. Out: the alarms of each monitored stage, ordered by update. `grpo` stages are always listed.
"""

from stepladder.reporting.report.run_data import RunData
from stepladder.train.grpo.monitors import ALARMS, Alarm, read_alarms

#: The kind of stage that is always monitored.
_MONITORED = "grpo"


def alarms_of(run: RunData) -> dict[str, list[Alarm]]:
    """Alarms by stage, for stages that have any or are always monitored."""
    paths = [(stage, run.folder / stage.name / ALARMS) for stage in run.known_stages]
    return {
        stage.name: list(read_alarms(path)) if path.is_file() else []
        for stage, path in paths
        if path.is_file() or stage.kind == _MONITORED
    }
