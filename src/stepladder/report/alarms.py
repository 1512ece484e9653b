"""Alarms that were raised while a stage learnt.

In: a `Run`. Out: for each stage that was watched its alarms, in the order of updates; of reinforcement learning also
that there were none.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepladder.errors import StepladderError
from stepladder.report.gather import Run
from stepladder.report.steps import readable

ALARMS = "alarms.jsonl"
#: The kind of stage that is always watched.
_WATCHED = "grpo"


@dataclass(frozen=True, slots=True)
class ShownAlarm:
    """One alarm; `value` passed `limit`."""

    step: int
    name: str
    message: str
    value: str
    limit: str
    #: Whether the stage was ended by it.
    stopped: bool


@dataclass(frozen=True, slots=True)
class StageAlarms:
    """The alarms of a stage."""

    stage: str
    alarms: tuple[ShownAlarm, ...]


def alarms_of(run: Run) -> tuple[StageAlarms, ...]:
    """Alarms by stage, of those that have any or are always watched."""
    found = []
    for stage in run.in_order:
        path = run.folder / stage.name / ALARMS
        if path.is_file() or stage.kind == _WATCHED:
            found.append(StageAlarms(stage.name, _read(path) if path.is_file() else ()))
    return tuple(found)


def _read(path: Path) -> tuple[ShownAlarm, ...]:
    alarms = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            alarms.append(
                ShownAlarm(
                    int(row["step"]),
                    readable(str(row["name"])),
                    readable(str(row["message"])),
                    _number(row.get("value")),
                    _number(row.get("limit")),
                    bool(row.get("stopped")),
                )
            )
        except (ValueError, TypeError, KeyError) as error:
            raise StepladderError(
                f"{path}:{number}: not an alarm: expected an object with step, name and message, found {line[:60]!r}"
            ) from error
    return tuple(alarms)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "–"
