"""Where models that were converted are kept, so that each is converted once.

In: a file and a function that writes the folder made from it. Out: the finished folder. Its name has a digest of all
that is in the file: the same file at another place is not converted again, another file of the same name is. Several
processes may ask at once: one converts, the others wait for it.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import file_digest
from logging import getLogger
from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_folder, expand_path

log = getLogger(__name__)

#: Goes up when folders of an earlier version are not to be used any more.
_VERSION = 1


def cache_folder() -> Path:
    """`$STEPLADDER_CACHE`, else `stepladder` in the user's cache folder."""
    if own := os.environ.get("STEPLADDER_CACHE"):
        return expand_path(own)
    users = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expand_path(users) / "stepladder"


def cached_conversion(source: Path, write: Callable[[Path, Path], None]) -> Path:
    """The folder that `write(source, folder)` makes, from the cache if it is there."""
    digest = _digest(source)
    name = re.sub(r"[^\w.-]+", "-", source.stem)[:60]
    folder = cache_folder() / "models" / f"{name}-{digest[:16]}"
    if _is_whole(folder):
        return folder
    with _alone(folder):
        if _is_whole(folder):  # another process has made it meanwhile
            return folder
        size = source.stat().st_size / 1e6
        log.warning("unpacking %s (%.0f MB) into %s, once ...", source.name, size, folder)
        with atomic_folder(folder, what="unpacked model") as fresh:
            write(source, fresh)
            note = {"source": str(source.absolute()), "sha256 with version": digest, "version": _VERSION}
            (fresh / "source.json").write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")
    return folder


def _is_whole(folder: Path) -> bool:
    """Folders appear whole; someone may have emptied one since."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def _digest(source: Path) -> str:
    """Of all that is in the file: 1 GB a second, less than it takes to load what is made from it."""
    try:
        with source.open("rb") as file:
            digest = file_digest(file, "sha256")
    except OSError as error:
        raise StepladderError(f"model file {source} cannot be read: {error.strerror or error}") from error
    digest.update(f"version {_VERSION}".encode())
    return digest.hexdigest()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process makes this folder."""
    lock = folder.with_name(f".{folder.name}.lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StepladderError(
            f"the cache of models {folder.parent} cannot be written: {error.strerror or error}. Set STEPLADDER_CACHE "
            "to a folder that can"
        ) from error
    try:
        if os.name != "nt":  # no locks of this kind there; the last of several writers wins
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
