"""Experiment trackers, the values of `report_to`: transformers' own callbacks by name.

In: names, and the logs of a trainer. Out: whatever the tracker records, besides `curves.jsonl`. A new tracker is a
`TrainerCallback` that takes no arguments, and one line here.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from stepladder.core.errors import StepladderError
from stepladder.core.registry import Registry

if TYPE_CHECKING:
    from transformers import TrainerCallback

#: Name -> callback. The name is also that of the package.
TRACKERS: "Registry[type[TrainerCallback]]" = Registry(
    "tracker",
    {
        "tensorboard": ("transformers.integrations:TensorBoardCallback", "event files in the stage's folder"),
        "wandb": ("transformers.integrations:WandbCallback", "Weights & Biases"),
        "trackio": ("transformers.integrations:TrackioCallback", "a local database, shown by `trackio show`"),
        "mlflow": ("transformers.integrations:MLflowCallback", "MLflow"),
    },
)


#: Trackers of transformers, which need a package of the same name.
_PACKAGES = tuple(TRACKERS)


def _split_names(value: Any) -> Any:
    """Names separated by commas as a list; `none` is empty."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        return value
    return [name for part in parts for name in part.replace(" ", "").split(",") if name not in ("", "none")]


#: Type of the setting: a list of names, or names separated by commas.
ReportTo = Annotated[tuple[Annotated[str, AfterValidator(TRACKERS.checked)], ...], BeforeValidator(_split_names)]


def check_trackers(names: Sequence[str]) -> None:
    """Raise if the package of a tracker is not installed."""
    for name in names:
        if name in _PACKAGES and find_spec(name) is None:
            raise StepladderError(f"report_to: {name} needs its package: pip install {name}")


@contextmanager
def tracking(names: Sequence[str], folder: Path, project: str, done: int = 0) -> "Iterator[list[TrainerCallback]]":
    """The callbacks of a training run that continues after `done` updates.

    Trackers that are told by the environment use `project`, unless it is set there. They print to stderr.
    """
    defaults = {"WANDB_PROJECT": project, "MLFLOW_EXPERIMENT_NAME": project}
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        with redirect_stdout(sys.stderr) if names else nullcontext(), ExitStack() as stack:
            if "wandb" in names:
                import wandb  # type: ignore[import-not-found]

                stack.callback(wandb.finish)  # the next stage is a run of its own
            yield [_callback(name, folder, done) for name in names]
    finally:
        for name in added:
            del os.environ[name]


def _callback(name: str, folder: Path, done: int) -> "TrainerCallback":
    callback = TRACKERS.get(name)()
    if name == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        # A killed run may have written updates after its checkpoint: they are hidden.
        writer: Any = SummaryWriter
        vars(callback)["tb_writer"] = writer(str(folder / name), purge_step=done + bool(done))
    return callback
