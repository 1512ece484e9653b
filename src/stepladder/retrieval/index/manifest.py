"""The manifest of an index folder, `index.json`: what the index contains and how it was built; checks of its files.

{"stepladder_index": 1, "kind": "bm25", "passages": 20805, "settings": {"k1": 1.2, ...},
 "source": "corpus.jsonl.gz", "created": "2026-01-31T12:00:00+00:00", "checksum": "...",
 "files": {"passages.jsonl": 9113904, ...}, "manifest_checksum": "..."}

`manifest_checksum` is the hash of the rest, compared whenever the manifest is read; older indexes have none.
`unread.jsonl` lists the files of the corpus that could not be read, with the reason.
`checksums.json` has two hashes of every other file: of a few blocks, compared whenever the index is opened, and of all
bytes, compared by `check_index`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from stepladder.core.errors import StepladderError
from stepladder.core.io.checksums import checksum, difference, quick_checksum
from stepladder.core.io.jsonl import read_objects
from stepladder.retrieval.base import ProgressCallback, no_progress
from stepladder.retrieval.corpus.reader import read_corpus
from stepladder.retrieval.corpus.tables import CorpusError

INDEX_VERSION = 1

MANIFEST = "index.json"
CHECKSUMS = "checksums.json"
#: The files of the corpus that could not be read, one object with file and reason per line. Only if there are any.
UNREAD = "unread.jsonl"
_VERSION_KEY, _CHECKSUM_KEY = "stepladder_index", "manifest_checksum"

#: How an index was built: parameters and libraries.
BuildDetails = Mapping[str, str | int | float]


class IndexFolderError(StepladderError):
    """A folder that is not a readable index, or that must not be overwritten."""


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """The manifest of an index."""

    kind: str
    #: Number of passages.
    passages: int
    #: How it was built: parameters and libraries.
    settings: dict[str, str | int | float]
    #: Name of the corpus, if known.
    source: str
    #: When it was built, in UTC.
    created: str
    #: Hash of the passages' ids, titles and texts, in order.
    checksum: str
    #: Size in bytes of every other file in the folder.
    files: dict[str, int]
    #: Counts of what was skipped: blank passages, duplicates, other files.
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Size of the index on disk, in bytes."""
        return sum(self.files.values())


_FIELDS = TypeAdapter(IndexInfo)
_CHECKSUMS = TypeAdapter(dict[str, tuple[str, str]])


def write_manifest(folder: Path, info: IndexInfo) -> None:
    """Write the manifest into a folder."""
    plain = asdict(info)
    manifest = {_VERSION_KEY: INDEX_VERSION, **plain, _CHECKSUM_KEY: _checksum_of(plain)}
    text = json.dumps(manifest, indent=2, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _checksum_of(manifest: dict[str, Any]) -> str:
    return blake2b(json.dumps(manifest, sort_keys=True).encode(), digest_size=16).hexdigest()


def index_info(folder: str | Path) -> IndexInfo:
    """The manifest of the index in a folder."""
    folder = Path(folder)
    if not folder.exists():
        raise IndexFolderError(f"{folder}: no such folder. {build_hint(folder)}")
    path = folder / MANIFEST
    if not path.is_file():
        raise IndexFolderError(f"{folder} is not an index: {_other_content(folder)}")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        found = manifest.pop(_VERSION_KEY)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IndexFolderError(f"{path} is not the manifest of an index: {error!r}") from error
    if found != INDEX_VERSION:
        raise IndexFolderError(
            f"{folder} is an index of version {found}, this Stepladder reads version {INDEX_VERSION}: rebuild it. "
            f"{build_hint(folder)}"
        )
    stored = manifest.pop(_CHECKSUM_KEY, None)
    unknown = set(manifest) - {each.name for each in fields(IndexInfo)}
    if unknown or (stored is not None and stored != _checksum_of(manifest)):
        raise IndexFolderError(
            f"{folder} is damaged: {MANIFEST} has other content than was written. {build_hint(folder)}. If you have "
            f"edited it yourself, delete its line {_CHECKSUM_KEY}"
        )
    try:
        return _FIELDS.validate_python(manifest)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise IndexFolderError(f"{path} is not the manifest of an index: {where}: {first['msg']}") from error


def read_info(data: object) -> IndexInfo | None:
    """The manifest reported by a server; None if it is invalid."""
    try:
        return _FIELDS.validate_python(data)
    except ValidationError:
        return None


def write_checksums(folder: Path, names: Iterable[str]) -> None:
    """Write the hashes of these files, of a few blocks and of all bytes, into the folder."""
    found = {name: [quick_checksum(folder / name), checksum(folder / name)] for name in names}
    (folder / CHECKSUMS).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def write_unread(folder: Path, reasons: Mapping[str, str]) -> None:
    """Write the list of files that could not be read, if there are any, into the folder."""
    (folder / UNREAD).unlink(missing_ok=True)
    if reasons:
        lines = (json.dumps({"file": file, "reason": reason}) + "\n" for file, reason in reasons.items())
        (folder / UNREAD).write_text("".join(lines), encoding="utf-8")


def unread_files(folder: Path) -> dict[str, str]:
    """The files of the corpus that could not be read, with the reason."""
    if not (folder / UNREAD).is_file():
        return {}
    return {each.text("file"): each.text("reason") for each in read_objects(folder / UNREAD, IndexFolderError)}


def check_files(folder: Path, info: IndexInfo) -> None:
    """Raise if a file of the index is missing, truncated or visibly overwritten. Reads little of large files."""
    checksums = _checksums(folder, info)
    for name, size in info.files.items():
        file = folder / name
        if file.suffix == ".json" and file.is_file():  # validated when opened; users may correct a path in it
            continue
        if (problem := difference(file, size, checksums.get(name, (None, None))[0])) is not None:
            raise IndexFolderError(f"{folder} is damaged: {name} {problem}. {build_hint(folder)}")


def check_index(folder: Path, progress: ProgressCallback = no_progress) -> IndexInfo:
    """Read all files of an index; raises with the names of those that are not as they were built."""
    info = index_info(folder)
    checksums = _checksums(folder, info)
    if CHECKSUMS not in info.files:
        raise IndexFolderError(f"{folder} was built without checksums; build it again to have it checked")
    damaged: list[str] = []
    for number, (name, size) in enumerate(info.files.items()):
        progress("Checking files", number, len(info.files))
        problem = difference(folder / name, size, None)
        if problem is None and name in checksums and checksum(folder / name) != checksums[name][1]:
            problem = "has other content than was written"
        if problem is not None:
            damaged.append(f"{name} {problem}")
    if damaged:
        raise IndexFolderError(f"{folder} is damaged: {'; '.join(damaged)}. {build_hint(folder)}")
    return info


def _checksums(folder: Path, info: IndexInfo) -> dict[str, tuple[str, str]]:
    """The hashes of the files by name; empty for an index of an older version, which has none."""
    if CHECKSUMS not in info.files:
        return {}
    try:
        return _CHECKSUMS.validate_json((folder / CHECKSUMS).read_bytes())
    except (OSError, ValidationError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it does not list the hashes of files"
        raise IndexFolderError(f"{folder} is damaged: {CHECKSUMS}: {problem}. {build_hint(folder)}") from error


def check_overwrite(folder: Path, overwrite: bool) -> None:
    """Raise if building an index would overwrite something else, or an index without `overwrite`."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        ours = {MANIFEST, *manifest["files"]} if _VERSION_KEY in manifest else set()
    except (OSError, ValueError, TypeError, KeyError):
        ours = set()
    if ours:  # a build that was killed at the very end leaves its scratch files
        ours = {"unfinished", *(Path(name).parts[0] for name in ours)}
    if not {each.name for each in folder.iterdir()} <= ours:
        raise IndexFolderError(f"{folder} contains files that are not part of an index; choose another folder")
    if not overwrite:
        raise IndexFolderError(f"{folder} is already an index; use overwrite (--overwrite) to replace it")


def _other_content(folder: Path) -> str:
    """What is at a path that is not an index, and a command that leaves it alone."""
    if folder.is_dir() and not any(folder.iterdir()):
        return f"it is empty. {build_hint(folder)}"
    try:
        read_corpus(folder)
    except CorpusError:
        return f"it has no {MANIFEST}. {build_hint(Path('NEW_FOLDER'))}"
    name = folder.resolve().name
    new = f"{name.partition('.')[0] or name}-index"
    return f"it is a corpus. Build its index with: stepladder index build {folder} --out {new}"


def build_hint(folder: Path) -> str:
    """The command that builds an index in a folder."""
    return f"Build one with: stepladder index build CORPUS --out {folder}"
