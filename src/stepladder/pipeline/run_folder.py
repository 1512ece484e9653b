"""The folder of a run: its files, its lock, and the record of each stage.

In: a path. Out: a `RunFolder` with the recipe, the stage records and the newest outputs. `claim` locks it for one
process.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.core.io.known_servers import servers_from_files
from stepladder.core.io.masking import masked
from stepladder.core.version import __version__
from stepladder.pipeline.recipe import Recipe, read_yaml
from stepladder.pipeline.stages import get_stage

#: Increased when the layout of run folders or recipe keys change. Format 1 was written by Stepladder 0.1.
RUN_VERSION = 2

_VERSION_KEY = "stepladder_run"
_RECIPE, _RUN, _LOCK, _FAILURE = "recipe.yaml", "run.json", ".lock", "failure.json"
_DONE, _STARTED = "stage.json", "started.json"
#: Attempts to lock a run, and seconds between them: a program that only looks at a run locks it for a moment.
_LOCK_ATTEMPTS, _LOCK_PAUSE = 5, 0.05
_OUTDATED = ".outdated"


@dataclass(frozen=True, slots=True)
class StageRecord:
    """The record of a stage: its fingerprinted ingredients and, once it is done, its results."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    kind: str
    fingerprint: str
    ingredients: dict[str, Any]
    #: By role: the stage an input was taken from, `base` or `oracle`.
    inputs: dict[str, str]
    #: Attempts, including the successful one.
    attempts: int = 1
    #: Wall-clock seconds, over all attempts that were not killed.
    seconds: float = 0.0
    #: Processor seconds of the main process, over the same attempts; None: not known, the record of an earlier version.
    cpu_seconds: float | None = None
    #: Summary numbers for tables and reports.
    summary: dict[str, Any] = field(default_factory=dict)
    #: By role: path of each output inside the stage's folder, and its content hash.
    outputs: dict[str, str] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)


_RECORD = TypeAdapter(StageRecord)


def is_run(path: Path) -> bool:
    """Whether a folder holds a run."""
    return os.path.isfile(path / _RUN)  # noqa: PTH113 - Path.is_file raises if the text is too long to be a path


class DamagedRecord(StepladderError):
    """A stage's record that cannot be read."""


class OtherRunFormat(StepladderError):
    """A run that was written by a version of Stepladder with another run format."""


@dataclass(frozen=True, slots=True)
class StageFailure:
    """Why the last session of a run ended."""

    stage: str
    message: str


class RunFolder:
    """The files of one run. Reading needs no lock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """The run in a folder; raises if there is none."""
        if not is_run(path):
            raise StepladderError(f"{path} is {_what_else(path)}")
        _refuse_links(path)
        _check_version(path / _RUN)
        return cls(path)

    def recipe(self) -> Recipe:
        """The recipe of the last session."""
        path = self.path / _RECIPE
        if not path.is_file():
            raise StepladderError(f"the run {self.path} has no {_RECIPE}: repeat the command that created the run")
        data = read_yaml(path)
        servers_from_files(data)  # the run may be somebody else's
        return Recipe.read(data, str(path), leave_out=lambda key: True)  # noqa: ARG005 # checked before

    def write_recipe(self, recipe: Recipe) -> None:
        """Write the recipe with every value."""
        with atomic_file(self.path / _RECIPE) as file:
            file.write("# The recipe of this run, with every value that has an effect.\n" + recipe.as_yaml())

    def add_session(self, session: Mapping[str, Any]) -> None:
        """Append a session (versions, machine, command line) to run.json."""
        path = self.path / _RUN
        sessions = read_json_object(path).get("sessions", []) if path.exists() else []
        _write_json(path, {_VERSION_KEY: RUN_VERSION, "sessions": [*sessions, dict(session)]})

    def stage_names(self) -> list[str]:
        """Every stage that was started here, also those that are no longer in the recipe."""
        found = {path.parent.name for name in (_DONE, _STARTED) for path in self.path.glob(f"*/{name}")}
        return sorted(name for name in found if not name.startswith("."))

    def done(self, name: str) -> StageRecord | None:
        """The record of a finished stage whose outputs still exist."""
        record = self._record(name, _DONE)
        if record is None or not all((self.path / name / output).exists() for output in record.outputs.values()):
            return None
        return record

    def known(self, name: str) -> StageRecord | None:
        """The record of a stage that was started, finished or not."""
        return self._record(name, _DONE) or self._record(name, _STARTED)

    def begin(self, record: StageRecord) -> Path:
        """Record that a stage starts or resumes; returns its folder."""
        folder = self.path / record.name
        kept = get_stage(record.kind).persistent_files
        if folder.exists() and self.known(record.name) is None and (not folder.is_dir() or _others(folder, *kept)):
            raise StepladderError(f"{folder} blocks the stage '{record.name}': it was not created by this run")
        folder.mkdir(exist_ok=True)
        _write_json(folder / _STARTED, asdict(record))
        (folder / _DONE).unlink(missing_ok=True)  # exists only if an output was deleted
        (self.path / _FAILURE).unlink(missing_ok=True)
        return folder

    def fail(self, stage: str, error: Exception) -> None:
        """Record why a stage failed, until a stage is started again."""
        message = str(error) or type(error).__name__
        _write_json(self.path / _FAILURE, asdict(StageFailure(stage, message)))

    def failure(self) -> StageFailure | None:
        """Why the last session failed; None if it did not."""
        path = self.path / _FAILURE
        if not path.is_file():
            return None
        data = read_json_object(path)
        return StageFailure(str(data.get("stage", "")), str(data.get("message", "")))

    def in_use(self) -> bool:
        """Whether a process is working on the run."""
        try:
            import fcntl
        except ImportError:  # Windows, where no run can be claimed
            return False
        try:
            with (self.path / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # there is none, or it may not be read
            return False
        return False

    def pause(self, record: StageRecord) -> None:
        """Record an interrupted stage. If it left no files it is forgotten, so its settings may still change."""
        if _others(self.path / record.name, _STARTED, "tensorboard"):
            _write_json(self.path / record.name / _STARTED, asdict(record))
        else:
            self.remove(record.name)

    def finish(self, record: StageRecord) -> None:
        """Record that a stage is done; the last file written of it."""
        _write_json(self.path / record.name / _DONE, asdict(record))
        (self.path / record.name / _STARTED).unlink(missing_ok=True)

    def size(self, name: str, but: Sequence[str] = ()) -> int:
        """Bytes of a stage's files except those in `but`."""
        folder = self.path / name
        files = (path for path in folder.rglob("*") if path.is_file() and path.relative_to(folder).parts[0] not in but)
        return sum(path.stat().st_size for path in files)

    def remove(self, name: str, but: Sequence[str] = ()) -> None:
        """Remove a stage except the files in `but`. It is renamed first, so a half-removed stage is never resumed."""
        folder, hidden = self.path / name, self.path / f".{name}-{token_hex(4)}{_OUTDATED}"
        folder.rename(hidden)
        for kept in but:
            if (hidden / kept).exists():
                folder.mkdir(exist_ok=True)
                (hidden / kept).rename(folder / kept)
        shutil.rmtree(hidden)

    def newest(self, role: str) -> Path | None:
        """The output of this role from the last finished stage that has one."""
        return next(reversed(self.outputs(role).values()), None)

    def outputs(self, role: str) -> dict[str, Path]:
        """The outputs of this role by stage, of the finished stages in the order of the recipe."""
        records = [record for stage in self.recipe().stages if (record := self.done(stage.name)) is not None]
        return {each.name: self.path / each.name / each.outputs[role] for each in records if role in each.outputs}

    def _record(self, name: str, file: str) -> StageRecord | None:
        path = self.path / name / file
        if not path.exists():
            return None
        try:
            return _RECORD.validate_python(read_json_object(path))
        except (ValidationError, StepladderError) as error:
            raise DamagedRecord(f"{path} is not a valid stage record") from error


def check_no_other_files(path: Path) -> None:
    """Raise if the path cannot be a run folder: a file, or a folder with unrelated files."""
    if path.exists() and not path.is_dir():
        raise StepladderError(f"{path} is a file; a run needs a folder")
    if path.is_dir() and not (path / _RUN).is_file() and (others := _others(path, _LOCK)):
        raise StepladderError(
            f"{path} contains other files ({', '.join(others[:3])}) and is not a run; choose another --out"
        )


@contextmanager
def claim(path: Path) -> Iterator[RunFolder]:
    """Create or open a run folder, locked for this process. A folder with unrelated files is refused."""
    check_no_other_files(path)
    path.mkdir(parents=True, exist_ok=True)
    _refuse_links(path)
    with _locked(path):
        if (path / _RUN).exists():
            _check_version(path / _RUN)
        for left in path.glob(f".*{_OUTDATED}"):
            shutil.rmtree(left)
        yield RunFolder(path)


def _refuse_links(path: Path) -> None:
    """Raise if a link leads out of a run: it may be somebody else's, and writing into it would change other files."""
    root = path.resolve()
    for folder, folders, files in os.walk(path):
        for each in (Path(folder, name) for name in (*folders, *files)):
            if each.is_symlink() and not each.resolve().is_relative_to(root):
                raise StepladderError(
                    f"{each} is a link out of the run, to {each.readlink()}: replace it by a copy, or delete it"
                )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl  # not on Windows, where the rest can still be read

    with (path / _LOCK).open("a+", encoding="utf-8") as lock:
        for attempt in range(_LOCK_ATTEMPTS):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if attempt < _LOCK_ATTEMPTS - 1:
                    time.sleep(_LOCK_PAUSE)
                    continue
                lock.seek(0)
                owner = lock.read().strip() or "another process"
                raise StepladderError(
                    f"{path} is in use by {owner}: wait until it is done, or choose another --out"
                ) from error
        lock.truncate(0)
        lock.write(f"process {os.getpid()}")
        lock.flush()
        yield


def _what_else(path: Path) -> str:
    """What a path is that is not a run, and what to do about it."""
    if (path / "config.json").is_file() or (path / "adapter_config.json").is_file():
        return "a model, not a run: pass it to `ask`, `eval`, `adapter` and `serve-agent` as --model"
    if any(is_run(folder := each) for each in path.absolute().parents):
        return f"inside of a run: give the run itself, {folder}"
    if path.is_file():
        return "a file; expected the folder of a run"
    if inside := sorted(each.parent.name for each in path.glob(f"*/{_RUN}")):
        return f"not a run, but holds some: add the name of one ({', '.join(inside[:5])})"
    found = "has no run.json" if path.is_dir() else "does not exist"
    return f"not a run: it {found}. `stepladder run RECIPE --out DIR` makes a run"


def _others(folder: Path, *known: str) -> list[str]:
    """Files in a folder besides these names and partial files of killed processes."""
    return sorted(each.name for each in folder.iterdir() if each.name not in known and each.suffix != ".partial")


def _check_version(path: Path) -> None:
    data = read_json_object(path)
    if (found := data.get(_VERSION_KEY)) == RUN_VERSION:
        return
    versions = [session.get("versions", {}).get("stepladder") for session in data.get("sessions", [])]
    writer = f"Stepladder {versions[-1]}" if versions and versions[-1] else "another version of Stepladder"
    raise OtherRunFormat(
        f"{path.parent} was written by {writer} (run format {found}); this is Stepladder {__version__}, which reads "
        f"run format {RUN_VERSION}. Use the version that wrote it, or run the recipe again with another --out"
    )


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    with suppress(ValueError):
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict):
            return data
    raise StepladderError(f"{path} is damaged: expected a JSON object")


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    with atomic_file(path) as file:
        json.dump(masked(dict(data)), file, indent=2, ensure_ascii=False)
        file.write("\n")
