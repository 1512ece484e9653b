"""The cache of converted models, so that each file is converted once.

In: a file and a function that converts it into a folder. Out: the folder. Its name contains a digest of the file's
content: a moved file is not converted again, a changed file is. With several processes, one converts and the others
wait.
"""

import json
import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from hashlib import file_digest
from logging import getLogger
from pathlib import Path

from filelock import FileLock

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_folder, expand_path

log = getLogger(__name__)

#: Increase it to invalidate existing folders.
_VERSION = 1


def cache_folder() -> Path:
    """`$STEPLADDER_CACHE`, or else `stepladder` in the user's cache folder."""
    if folder := os.environ.get("STEPLADDER_CACHE"):
        return expand_path(folder)
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expand_path(user_cache) / "stepladder"


def cached_conversion(source: Path, write: Callable[[Path, Path], None]) -> Path:
    """The folder that `write(source, folder)` creates, from the cache if present."""
    digest = _digest(source)
    name = re.sub(r"[^\w.-]+", "-", source.stem)[:60]
    folder = cache_folder() / "models" / f"{name}-{digest[:16]}"
    if _is_complete(folder):
        return folder
    with _exclusive_lock(folder):
        if _is_complete(folder):  # created by another process in the meantime
            return folder
        size = source.stat().st_size / 1e6
        log.warning("unpacking %s (%.0f MB) into %s, once ...", source.name, size, folder)
        with atomic_folder(folder, what="unpacked model") as fresh:
            write(source, fresh)
            origin = {"source": str(source.absolute()), "sha256 with version": digest, "version": _VERSION}
            (fresh / "source.json").write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
    return folder


def _is_complete(folder: Path) -> bool:
    """Folders are written atomically, but files may have been deleted since."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def _digest(source: Path) -> str:
    """The digest of the file's content: 1 GB per second, faster than loading the converted model."""
    try:
        with source.open("rb") as file:
            digest = file_digest(file, "sha256")
    except OSError as error:
        raise StepladderError(f"model file {source} cannot be read: {error.strerror or error}") from error
    digest.update(f"version {_VERSION}".encode())
    return digest.hexdigest()


def _exclusive_lock(folder: Path) -> AbstractContextManager[object]:
    """Waits until no other process creates this folder; released on exit."""
    lock = folder.with_name(f".{folder.name}.lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(lock).acquire()
    except OSError as error:
        raise StepladderError(
            f"the model cache {folder.parent} cannot be written: {error.strerror or error}. Set STEPLADDER_CACHE "
            "to a writable folder"
        ) from error
