"""Write files and folders whole or not at all.

In: a place and a block of code that writes. Out: the finished file or folder at that place, or, after any failure
(a full disk, an exception, Ctrl-C, a killed process), whatever was there before.

The block writes to a hidden sibling named `.NAME.HOST-PID-RANDOM.partial`, which is renamed when the block has
ended well. A process that is killed outright cannot tidy up; the next attempt at the same place recognises what it
left by the dead process id and removes it. Attempts of living processes, and of other machines that share the
disk, are left alone.

Work of hours is written with `resumable_folder`, whose hidden sibling `.NAME.unfinished` outlives the process: the next
attempt with the same plan finds it there and goes on.
"""

import errno
import json
import os
import platform
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO, Literal, TextIO, overload

from stepladder.core.errors import StepladderError

_HOST = re.sub(r"[^A-Za-z0-9]", "", platform.node()) or "host"

#: Folder of what is needed only until a folder is finished.
_NOTES = "unfinished"

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class WriteError(StepladderError):
    """Something could not be written; nothing half-written remains and what was there before is unchanged."""


@contextmanager
def atomic_folder(path: Path, what: str = "folder") -> Iterator[Path]:
    """An empty folder to write into. It becomes `path` when the block ends well, replacing an older folder there.

    `what` names the thing in error messages. With an older folder there are two renames; a process killed exactly
    between them leaves the old folder under its hidden name, and the next attempt puts it back.
    """
    target = path.resolve()
    with _attempt(path, target, what) as temporary:
        with _explained(path, target, what):
            if target.exists() and not target.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "a file of that name is in the way")
            temporary.mkdir()
        yield temporary
        with _explained(path, target, what):
            _let_read(temporary)
            sync_all(temporary)
            _put_folder(temporary, target)


def _let_read(folder: Path) -> None:
    """Let those read the files who may read the folder: safetensors writes for the owner alone."""
    readable = folder.stat().st_mode & 0o444
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink() and file.stat().st_nlink == 1:
            file.chmod(stat.S_IMODE(file.stat().st_mode) | readable)


@dataclass(frozen=True, slots=True)
class PartialFolder:
    """A folder on its way."""

    #: What is written here stays.
    folder: Path
    #: What is needed only until the folder is finished.
    notes: Path


@contextmanager
def resumable_folder(
    path: Path,
    plan: Mapping[str, object],
    what: str = "folder",
    keep: Callable[[PartialFolder], bool] = lambda _: True,
) -> Iterator[PartialFolder]:
    """A folder to write into, with what an attempt with the same `plan` that did not end well has left in it.

    It becomes `path` when the block ends well, replacing an older folder there. After a failure `keep` says whether
    there is anything in it worth going on with; after a kill it is always there. One process at a time.
    """
    target = path.resolve()
    folder = target.with_name(f".{target.name}.unfinished")
    unfinished = PartialFolder(folder, folder / _NOTES)
    with _explained(path, target, what):
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(target)
        if target.exists() and not target.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "a file of that name is in the way")
        if target.is_mount():  # found out now, not when the work of hours is to take its place
            raise OSError(errno.EBUSY, "it is a mount point, which cannot be replaced; choose a folder inside it")
        folder.mkdir(exist_ok=True)
    with _alone(folder, what):
        try:
            with _explained(path, target, what):
                _begin(unfinished, plan)
            yield unfinished
            with _explained(path, target, what):
                sync_all(folder)
                _put_folder(folder, target)  # with the notes: until it is there, they say how to go on
                _remove(target / _NOTES)
        except BaseException as error:
            if not keep(unfinished):
                _remove(folder)
            if isinstance(error, OSError) and _ran_out_of_room(error):
                raise _failure(path, target, what, error) from error
            raise


@contextmanager
def _alone(folder: Path, what: str) -> Iterator[None]:
    """Nobody else writes into the folder meanwhile."""
    if os.name == "nt":  # no locks of this kind there; two builders of one folder are the user's to avoid
        yield
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WriteError(
                f"the {what} is being written by another process, in {folder}: wait for its end"
            ) from error
        yield
    finally:
        os.close(descriptor)


def _begin(unfinished: PartialFolder, plan: Mapping[str, object]) -> None:
    """Write down the plan; what was made by another one is removed."""
    file, text = unfinished.notes / "plan.json", json.dumps(plan, indent=2, sort_keys=True)
    if file.is_file() and file.read_bytes() == text.encode():
        return
    for each in unfinished.folder.iterdir():
        _remove(each)
    unfinished.notes.mkdir()
    with atomic_file(file) as written:
        written.write(text)


@overload
def atomic_file(path: Path, mode: Literal["w"] = "w", what: str = "file") -> AbstractContextManager[TextIO]: ...
@overload
def atomic_file(path: Path, mode: Literal["wb"], what: str = "file") -> AbstractContextManager[BinaryIO]: ...
def atomic_file(
    path: Path, mode: Literal["w", "wb"] = "w", what: str = "file"
) -> AbstractContextManager[TextIO] | AbstractContextManager[BinaryIO]:
    """An open file to write to. It becomes `path` when the block ends well. Text is UTF-8 with plain newlines."""
    return _atomic_file(path, mode, what)


@contextmanager
def _atomic_file(path: Path, mode: str, what: str) -> Iterator[Any]:
    target = path.resolve()
    text = {"encoding": "utf-8", "newline": "\n"} if mode == "w" else {}
    with _attempt(path, target, what) as temporary:
        with _explained(path, target, what):
            if target.is_dir():
                raise IsADirectoryError(errno.EISDIR, "a folder of that name is in the way")
            file = temporary.open(mode, **text)  # type: ignore[call-overload]
        with file:
            yield file
        with _explained(path, target, what):
            sync(temporary)
            temporary.replace(target)
            sync(target.parent)


@contextmanager
def _attempt(path: Path, target: Path, what: str) -> Iterator[Path]:
    """A free name beside the target. What stands there when the block fails is removed."""
    with _explained(path, target, what):
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(target)
    temporary = _beside(target, "partial")
    try:
        yield temporary
    except BaseException as error:
        _remove(temporary)
        if isinstance(error, OSError) and _ran_out_of_room(error):
            raise _failure(path, target, what, error) from error
        raise


@contextmanager
def _explained(path: Path, target: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _failure(path, target, what, error) from error


def _ran_out_of_room(error: OSError) -> bool:
    # The caller's block also reads, so only errors that writing alone can cause are taken for ours.
    # NumPy reports a short write without an errno, as "N requested and M written".
    return error.errno in _NO_ROOM or (error.errno is None and " requested and " in str(error))


def _failure(path: Path, target: Path, what: str, error: OSError) -> WriteError:
    place = next(parent for parent in target.parents if _exists(parent))
    free = shutil.disk_usage(place).free / 1e6
    return WriteError(
        f"could not write the {what} {path}: {error.strerror or error}. {free:,.1f} MB are free on that disk. "
        + ("What was there before is unchanged." if _exists(target) else "Nothing half-written remains.")
    )


def _put_folder(new: Path, target: Path) -> None:
    old = _beside(target, "replaced")
    with suppress(FileNotFoundError):
        target.rename(old)
    try:
        new.rename(target)
    except BaseException:
        if old.exists():
            old.rename(target)
        raise
    sync(target.parent)
    _remove(old)


def _beside(target: Path, role: str) -> Path:
    return target.with_name(f".{target.name}.{_HOST}-{os.getpid()}-{token_hex(4)}.{role}")


def _clear_leftovers(target: Path) -> None:
    ours = re.compile(rf"\.{re.escape(target.name)}\.{_HOST}-(\d+)-[0-9a-f]{{8}}\.(partial|replaced)")
    for leftover in target.parent.iterdir():
        match = ours.fullmatch(leftover.name)
        if match and not _is_alive(int(match[1])):
            if match[2] == "replaced" and not target.exists():
                leftover.rename(target)
            else:
                _remove(leftover)


def _is_alive(pid: int) -> bool:
    if os.name == "nt":  # there, signal 0 would end the process; leftovers stay
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _remove(path: Path) -> None:
    # Errors are left to the next attempt: whatever cannot be removed now keeps a name it will recognise.
    with suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _exists(path: Path) -> bool:
    """Whether there is something at the path, as far as this process may see."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def sync_all(folder: Path) -> None:
    """Ask the system to have all of a folder on disk before going on."""
    for each in folder.rglob("*"):
        sync(each)
    sync(folder)


def sync(path: Path) -> None:
    """Ask the system to have the file or folder on disk before going on."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def expand_path(path: str | Path) -> Path:
    """The path with `~` resolved."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise StepladderError(f"{path}: there is no such user, or the user has no home folder") from error
