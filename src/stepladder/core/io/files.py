"""Write files and folders atomically.

In: a path and a block of code that writes. Out: the complete file or folder at that path or, after any failure (full
disk, exception, Ctrl-C, killed process), what was there before.

The block writes to a hidden sibling named `.NAME.HOST-PID-RANDOM.partial`, which is renamed on success. Leftovers of a
killed process are recognized by its dead process id and removed by the next attempt at the same path. Attempts of
running processes, and of other machines that share the disk, are not touched.

Long jobs use `resumable_folder`, whose hidden sibling `.NAME.unfinished` survives the process: the next attempt with
the same plan resumes from it.
"""

import errno
import json
import os
import platform
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO, Literal

from stepladder.core.errors import StepladderError

_HOST = re.sub(r"[^A-Za-z0-9]", "", platform.node()) or "host"

#: Subfolder for files that are needed only until the folder is complete.
_SCRATCH = "unfinished"

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
#: The same in the words of libraries that report it without an errno: NumPy, safetensors, PyTorch, FAISS.
_CUT_SHORT = re.compile(
    r"\d requested and \d+ written"
    rf"|I/O error: .*\(os error ({'|'.join(map(str, _DISK_FULL))})\)"
    r"|inline_container.*unexpected pos|PytorchStreamWriter"
    r"|write error in .*: \d+ != \d+"
)


class WriteError(StepladderError):
    """A write failed. No partial file remains, and previous content is unchanged."""


@contextmanager
def atomic_folder(path: Path, what: str = "folder") -> Iterator[Path]:
    """An empty folder to write into. On success it becomes `path`, replacing an existing folder.

    `what` names the object in error messages. Replacing takes two renames; if the process is killed between them, the
    old folder keeps a hidden name and the next attempt restores it.
    """
    target = path.resolve()
    with _temporary_sibling(path, what) as temporary:
        with _write_errors(path, what):
            if target.exists() and not target.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "a file with that name exists")
            temporary.mkdir()
        yield temporary
        with _write_errors(path, what):
            _make_readable(temporary)
            sync_all(temporary)
            _replace_folder(temporary, target)


def _make_readable(folder: Path) -> None:
    """Give files the read permissions of the folder: safetensors writes for the owner only."""
    readable = folder.stat().st_mode & 0o444
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink() and file.stat().st_nlink == 1:
            file.chmod(stat.S_IMODE(file.stat().st_mode) | readable)


@dataclass(frozen=True, slots=True)
class PartialFolder:
    """A folder that is being written."""

    #: Files of the final folder.
    folder: Path
    #: Files that are needed only until the folder is complete.
    scratch: Path


@contextmanager
def resumable_folder(
    path: Path,
    plan: Mapping[str, object],
    what: str = "folder",
    keep: Callable[[PartialFolder], bool] = lambda _: True,
) -> Iterator[PartialFolder]:
    """A folder to write into. It contains what a failed attempt with the same `plan` has left.

    On success it becomes `path`, replacing an existing folder. After an exception, `keep` decides whether the partial
    folder is kept for resuming; after a kill it always is. One process at a time.
    """
    target = path.resolve()
    folder = target.with_name(f".{target.name}.unfinished")
    partial = PartialFolder(folder, folder / _SCRATCH)
    with _write_errors(path, what):
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(target)
        if target.exists() and not target.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "a file with that name exists")
        if target.is_mount():  # detected now, not after hours of work
            raise OSError(errno.EBUSY, "it is a mount point, which cannot be replaced; choose a folder inside it")
        folder.mkdir(exist_ok=True)
    with _exclusive_lock(folder), _write_errors(path, what, only_full_disk=True):
        try:
            with _write_errors(path, what):
                _start_or_resume(partial, plan)
            yield partial
            with _write_errors(path, what):
                sync_all(folder)
                _replace_folder(folder, target)  # including the scratch files, which are needed to resume until then
                _remove(target / _SCRATCH)
        except BaseException:
            if not keep(partial):
                _remove(folder)
            raise


def lock_file(file: BinaryIO | int, path: Path) -> None:
    """Lock an open file against other processes until it is closed."""
    import fcntl  # not available on Windows, where the rest still works

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise WriteError(f"{path} is in use by another process: wait for it, or use another folder") from error


@contextmanager
def _exclusive_lock(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes."""
    if os.name == "nt":  # no flock on Windows: the user must avoid two builds of one folder
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        lock_file(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _start_or_resume(partial: PartialFolder, plan: Mapping[str, object]) -> None:
    """Store the plan; files of an attempt with another plan are removed."""
    plan_file, text = partial.scratch / "plan.json", json.dumps(plan, indent=2, sort_keys=True)
    if plan_file.is_file() and plan_file.read_bytes() == text.encode():
        return
    for each in partial.folder.iterdir():
        _remove(each)
    partial.scratch.mkdir()
    with atomic_file(plan_file) as file:
        file.write(text)


@contextmanager
def atomic_file(path: Path, mode: Literal["w", "wb"] = "w", what: str = "file") -> Iterator[Any]:
    """An open file to write to. On success it becomes `path`. Text is UTF-8 with plain newlines."""
    target = path.resolve()
    text: Any = {"encoding": "utf-8", "newline": "\n"} if mode == "w" else {}
    with _temporary_sibling(path, what) as temporary:
        with _write_errors(path, what):
            if target.is_dir():
                raise IsADirectoryError(errno.EISDIR, "a folder with that name exists")
            file = temporary.open(mode, **text)
        with file:
            yield file
        with _write_errors(path, what):
            sync(temporary)
            temporary.replace(target)
            sync(target.parent)


@contextmanager
def _temporary_sibling(path: Path, what: str) -> Iterator[Path]:
    """A temporary path next to the target. It is removed if the block fails."""
    target = path.resolve()
    with _write_errors(path, what):
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(target)
    temporary = _sibling(target, "partial")
    with _write_errors(path, what, only_full_disk=True):
        try:
            yield temporary
        except BaseException:
            _remove(temporary)
            raise


@contextmanager
def _write_errors(path: Path, what: str, *, only_full_disk: bool = False) -> Iterator[None]:
    """Raise an `OSError` inside the block as `WriteError`; `only_full_disk`: the block also reads."""
    with full_disk_errors(path, what):
        try:
            yield
        except OSError as error:
            if only_full_disk or _is_full_disk(error):
                raise
            raise write_error(path, what, error) from error


@contextmanager
def full_disk_errors(path: Path, what: str, afterwards: str | None = None) -> Iterator[None]:
    """Raise what a full disk does to a writer inside the block, a library's among them, as `WriteError`.

    `afterwards`: the end of the message, what is left at the path.
    """
    try:
        yield
    except Exception as error:
        if not _is_full_disk(error):
            raise
        raise write_error(path, what, error, afterwards) from error


def _is_full_disk(error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _DISK_FULL
    return not isinstance(error, StepladderError) and _CUT_SHORT.search(str(error)) is not None


def reserve_space(path: Path) -> None:
    """Reserve the disk space of a sparse file that will be mapped: a full disk is an error now, not a dead process."""
    if reserve := getattr(os, "posix_fallocate", None):  # not on macOS
        with path.open("r+b") as file:
            reserve(file.fileno(), 0, path.stat().st_size)


def write_error(path: Path, what: str, error: Exception, afterwards: str | None = None) -> WriteError:
    """The error for a failed write, with the free space of the disk. `afterwards`: the end of the message."""
    target = path.resolve()
    free = shutil.disk_usage(next(parent for parent in target.parents if os.access(parent, os.F_OK))).free / 1e6
    cause = (error.strerror or str(error)) if isinstance(error, OSError) else f"the disk took only a part ({error})"
    if afterwards is None:
        unchanged = os.access(target, os.F_OK)
        afterwards = "The previous content is unchanged." if unchanged else "No partial files remain."
    return WriteError(f"could not write the {what} {path}: {cause}. {free:,.1f} MB are free on that disk. {afterwards}")


def _replace_folder(new: Path, target: Path) -> None:
    old = _sibling(target, "replaced")
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


def _sibling(target: Path, role: str) -> Path:
    return target.with_name(f".{target.name}.{_HOST}-{os.getpid()}-{token_hex(4)}.{role}")


def _clear_leftovers(target: Path) -> None:
    from psutil import pid_exists  # type: ignore[import-untyped]  # slow to import

    ours = re.compile(rf"\.{re.escape(target.name)}\.{_HOST}-(\d{{1,9}})-[0-9a-f]{{8}}\.(partial|replaced)")
    for leftover in target.parent.iterdir():
        match = ours.fullmatch(leftover.name)
        if match and not pid_exists(int(match[1])):
            if match[2] == "replaced" and not target.exists():
                leftover.rename(target)
            else:
                _remove(leftover)


def _remove(path: Path) -> None:
    # Errors are ignored: what cannot be removed now keeps a name that the next attempt recognizes.
    with suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def sync_all(folder: Path) -> None:
    """fsync all files of a folder."""
    for each in folder.rglob("*"):
        sync(each)
    sync(folder)


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def expand_path(path: str | Path) -> Path:
    """The path with `~` expanded."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise StepladderError(f"{path}: no such user, or the user has no home folder") from error
