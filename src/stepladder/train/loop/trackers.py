"""Experiment trackers by name: the values of `report_to`. A new one is a file with a `Tracker` and one line here.

In: the rows of the metrics log, as they are added. Out: whatever the tracker records. `curves.jsonl` is always written.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from stepladder.core.errors import StepladderError
from stepladder.core.registry import Registry


class Tracker(Protocol):
    """Receives every row of a training run."""

    def log(self, row: dict[str, Any]) -> None:
        """One row: `step` and the metrics of an update or of an evaluation."""

    def flush(self) -> None:
        """Called when the metrics log is written."""


class TensorBoard:
    """Writes event files for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise StepladderError("report_to: tensorboard needs the package: pip install tensorboard") from error
        self.writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def log(self, row: dict[str, Any]) -> None:
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float):
                self.writer.add_scalar(name, value, row["step"])

    def flush(self) -> None:
        self.writer.flush()


#: Name -> a function of the stage's folder that opens the tracker.
TRACKERS: Registry[Callable[[Path], Tracker]] = Registry(
    "tracker", {"tensorboard": (f"{__name__}:TensorBoard", "event files in the stage's folder")}
)


def open_trackers(names: Iterable[str], folder: Path) -> list[Tracker]:
    """The trackers of a training run."""
    return [TRACKERS.get(name)(folder) for name in names]
