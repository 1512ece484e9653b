"""The folder of a run: what is in it, who may write to it, and what is known of each stage.

In: a path. Out: a `RunFolder`: its recipe, the records of its stages, and the policy that was made last. `claim` gives
it to one process at a time.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.pipeline.recipe import Recipe, read_yaml
from stepladder.pipeline.stages import get_stage

RUN_VERSION = 1

_VERSION_KEY = "stepladder_run"
_RECIPE, _RUN, _LOCK = "recipe.yaml", "run.json", ".lock"
_DONE, _STARTED = "stage.json", "started.json"
_OUTDATED = ".outdated"


@dataclass(frozen=True, slots=True)
class StageRecord:
    """What is known of a stage: what it was made from and, once it is done, what came out."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    kind: str
    fingerprint: str
    ingredients: dict[str, Any]
    #: By role: the stage it was taken from, `base` or `gold`.
    inputs: dict[str, str]
    #: Attempts, with the one that ended well.
    attempts: int = 1
    #: Seconds of work, over all attempts that ended in good order.
    seconds: float = 0.0
    #: Numbers for the reader.
    summary: dict[str, Any] = field(default_factory=dict)
    #: By role: the path of what was made, inside the stage's folder, and a hash of it.
    outputs: dict[str, str] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)


_RECORD = TypeAdapter(StageRecord)


class DamagedRecord(StepladderError):
    """A stage's record that cannot be read."""


class RunFolder:
    """The files of one run. Reading needs no claim."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """The run in a folder; an error when there is none."""
        if not (path / _RUN).is_file():
            if (path / "config.json").is_file() or (path / "adapter_config.json").is_file():
                raise StepladderError(
                    f"{path} is not a run but a model: `ask`, `eval` and `serve-agent` take it as --model"
                )
            found = "has no run.json" if path.is_dir() else "does not exist"
            raise StepladderError(f"{path} is not a run: it {found} (`stepladder run RECIPE --out {path}` makes one)")
        _check_version(path / _RUN)
        return cls(path)

    def recipe(self) -> Recipe:
        """The recipe that the run was last told to carry out."""
        path = self.path / _RECIPE
        if not path.is_file():
            raise StepladderError(f"the run {self.path} has no {_RECIPE}: the command that made it writes it again")
        return Recipe.read(read_yaml(path), str(path))

    def write_recipe(self, recipe: Recipe) -> None:
        """Keep the recipe, with every value."""
        with atomic_file(self.path / _RECIPE) as file:
            file.write("# The recipe of this run, with every value.\n" + recipe.as_yaml())

    def add_session(self, session: Mapping[str, Any]) -> None:
        """Note who works on the run from now on, and where."""
        path = self.path / _RUN
        sessions = _read_json(path).get("sessions", []) if path.exists() else []
        _write_json(path, {_VERSION_KEY: RUN_VERSION, "sessions": [*sessions, dict(session)]})

    def stage_names(self) -> list[str]:
        """Every stage that was begun here, also those that the recipe no longer has."""
        found = {path.parent.name for name in (_DONE, _STARTED) for path in self.path.glob(f"*/{name}")}
        return sorted(name for name in found if not name.startswith("."))

    def done(self, name: str) -> StageRecord | None:
        """The record of a stage that is done, with its outputs where they were put."""
        record = self._record(name, _DONE)
        if record is None or not all((self.path / name / output).exists() for output in record.outputs.values()):
            return None
        return record

    def known(self, name: str) -> StageRecord | None:
        """The record of a stage that was begun at least."""
        return self._record(name, _DONE) or self._record(name, _STARTED)

    def begin(self, record: StageRecord) -> Path:
        """Note that a stage begins, or goes on; returns its folder."""
        folder = self.path / record.name
        kept = get_stage(record.kind).persistent_files
        if folder.exists() and self.known(record.name) is None and (not folder.is_dir() or _others(folder, *kept)):
            raise StepladderError(f"{folder} is in the way of the stage '{record.name}': it is none of this run's")
        folder.mkdir(exist_ok=True)
        _write_json(folder / _STARTED, asdict(record))
        (folder / _DONE).unlink(missing_ok=True)  # there only if an output has gone
        return folder

    def pause(self, record: StageRecord) -> None:
        """Note how far a stage came. One that has left nothing is forgotten: then its settings may still change."""
        if _others(self.path / record.name, _STARTED):
            _write_json(self.path / record.name / _STARTED, asdict(record))
        else:
            self.remove(record.name)

    def finish(self, record: StageRecord) -> None:
        """Note that a stage is done; the last thing that is written of it."""
        _write_json(self.path / record.name / _DONE, asdict(record))
        (self.path / record.name / _STARTED).unlink(missing_ok=True)

    def remove(self, name: str, but: Sequence[str] = ()) -> None:
        """Remove a stage, `but` for some files. Renamed first: cut half-way, it is no stage to go on with."""
        folder, hidden = self.path / name, self.path / f".{name}-{token_hex(4)}{_OUTDATED}"
        folder.rename(hidden)
        for kept in but:
            if (hidden / kept).exists():
                folder.mkdir(exist_ok=True)
                (hidden / kept).rename(folder / kept)
        shutil.rmtree(hidden)

    def newest(self, role: str) -> Path | None:
        """The output of that role that the last of the done stages made."""
        for stage in reversed(self.recipe().stages):
            record = self.done(stage.name)
            if record is not None and role in record.outputs:
                return self.path / stage.name / record.outputs[role]
        return None

    def _record(self, name: str, file: str) -> StageRecord | None:
        path = self.path / name / file
        if not path.exists():
            return None
        try:
            return _RECORD.validate_python(_read_json(path))
        except (ValidationError, StepladderError) as error:
            raise DamagedRecord(f"{path} cannot be read as the record of a stage") from error


@contextmanager
def claim(path: Path) -> Iterator[RunFolder]:
    """A folder for a run, for this process alone while the block runs. A folder with other files in it is refused."""
    if path.exists() and not path.is_dir():
        raise StepladderError(f"{path} is a file; a run needs a folder")
    if path.is_dir() and not (path / _RUN).is_file() and (others := _others(path, _LOCK)):
        raise StepladderError(
            f"{path} has other files in it ({', '.join(others[:3])}) and is not a run; choose another --out"
        )
    path.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        if (path / _RUN).exists():
            _check_version(path / _RUN)
        for left in path.glob(f".*{_OUTDATED}"):
            shutil.rmtree(left)
        yield RunFolder(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl  # not on Windows, where the rest can still be read

    with (path / _LOCK).open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            owner = lock.read().strip() or "another process"
            raise StepladderError(
                f"{path} is in use by {owner}: wait until it is done, or choose another --out"
            ) from error
        lock.truncate(0)
        lock.write(f"process {os.getpid()}")
        lock.flush()
        yield


def _others(folder: Path, *known: str) -> list[str]:
    """What a folder holds besides the names that are known and what a killed process left half-written."""
    return sorted(each.name for each in folder.iterdir() if each.name not in known and each.suffix != ".partial")


def _check_version(path: Path) -> None:
    found = _read_json(path).get(_VERSION_KEY)
    if found != RUN_VERSION:
        raise StepladderError(
            f"{path}: found a run of version {found}, expected version {RUN_VERSION}; choose another --out"
        )


def _read_json(path: Path) -> dict[str, Any]:
    with suppress(ValueError):
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict):
            return data
    raise StepladderError(f"{path} is damaged: expected a JSON object")


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    with atomic_file(path) as file:
        json.dump(data, file, indent=2, ensure_ascii=False)
        file.write("\n")
