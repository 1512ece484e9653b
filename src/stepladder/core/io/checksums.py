"""Checksums of files: a full one, and one of a few blocks that is cheap for files of any size.

In: a path. Out: a hash, or the description of a difference. A truncated, missing or zeroed file differs in its size or
its blocks; a single changed byte in a large file only in the full checksum. `describe` reads files up to 1 GiB whole.
"""

import os
from collections.abc import Iterable
from hashlib import blake2b, file_digest
from pathlib import Path

#: Files up to this size are read whole by `quick_checksum`, of larger ones this many bytes in all.
_QUICK_BYTES = 1 << 20
_BLOCKS = 16
_CHUNK = 1 << 22
#: `describe` reads files up to this size whole (0.3 s for 200 MB), and marks their hashes.
_WHOLE_BYTES = 1 << 30
_WHOLE = "sha256:"


def checksum(path: Path) -> str:
    """The hash of all bytes."""
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def quick_checksum(path: Path) -> str:
    """The hash of the size, the first and the last bytes and evenly spaced blocks between them."""
    size, digest = path.stat().st_size, blake2b(digest_size=16)
    digest.update(b"%d\n" % size)
    with path.open("rb") as file:
        if size <= _QUICK_BYTES:
            digest.update(file.read())
        else:
            block = _QUICK_BYTES // _BLOCKS
            for number in range(_BLOCKS):
                file.seek((size - block) * number // (_BLOCKS - 1), os.SEEK_SET)
                digest.update(file.read(block))
    return digest.hexdigest()


def describe(folder: Path, names: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Size and hash of files in a folder, by name: of all bytes, or the quick checksum of very large ones."""
    sizes = {name: (folder / name).stat().st_size for name in names}
    return {
        name: (size, (_whole_checksum if size <= _WHOLE_BYTES else quick_checksum)(folder / name))
        for name, size in sizes.items()
    }


def _whole_checksum(path: Path) -> str:
    with path.open("rb") as file:  # with the processor's own instructions faster than blake2b
        return _WHOLE + file_digest(file, "sha256").hexdigest()


def difference(path: Path, size: int, quick: str | None) -> str | None:
    """How a file differs from its size and hash, as the end of a sentence; None if it does not."""
    if not path.is_file():
        return "is missing"
    if (found := path.stat().st_size) != size:
        return f"has {found:,} bytes, expected {size:,} bytes"
    compute = _whole_checksum if quick is not None and quick.startswith(_WHOLE) else quick_checksum
    if quick is not None and compute(path) != quick:
        return "has other content than was written"
    return None
