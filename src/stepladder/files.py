"""Write files and folders whole or not at all.

In: a place and a block of code that writes. Out: the finished file or folder at that place, or, after any failure
(a full disk, an exception, Ctrl-C, a killed process), whatever was there before.

The block writes to a hidden sibling named `.NAME.HOST-PID-RANDOM.partial`, which is renamed when the block has
ended well. A process that is killed outright cannot tidy up; the next attempt at the same place recognises what it
left by the dead process id and removes it. Attempts of living processes, and of other machines that share the
disk, are left alone.
"""

import errno
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO, Literal, TextIO, overload

from stepladder.errors import StepladderError

_HOST = re.sub(r"[^A-Za-z0-9]", "", platform.node()) or "host"

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
            for each in temporary.rglob("*"):
                _sync(each)
            _sync(temporary)
            _put_folder(temporary, target)


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
            _sync(temporary)
            temporary.replace(target)
            _sync(target.parent)


@contextmanager
def _attempt(path: Path, target: Path, what: str) -> Iterator[Path]:
    """A free name beside the target. What stands there when the block fails is removed."""
    with _explained(path, target, what):
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(target)
    temporary = target.with_name(f".{target.name}.{_HOST}-{os.getpid()}-{token_hex(4)}.partial")
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
    old = new.with_suffix(".replaced")
    with suppress(FileNotFoundError):
        target.rename(old)
    try:
        new.rename(target)
    except BaseException:
        if old.exists():
            old.rename(target)
        raise
    _sync(target.parent)
    _remove(old)


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


def _sync(path: Path) -> None:
    """Ask the system to have the file or folder on disk before going on."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def expanded(path: str | Path) -> Path:
    """The path with `~` resolved."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise StepladderError(f"{path}: there is no such user, or the user has no home folder") from error
