"""The manifest of an index folder, `index.json`: what the index contains and how it was built.

{"stepladder_index": 1, "kind": "bm25", "passages": 20805, "settings": {"k1": 1.2, ...},
 "source": "corpus.jsonl.gz", "created": "2026-01-31T12:00:00+00:00", "checksum": "...",
 "files": {"passages.jsonl": 9113904, ...}}
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from stepladder.core.errors import StepladderError
from stepladder.retrieval.corpus.reader import read_corpus
from stepladder.retrieval.corpus.tables import CorpusError

INDEX_VERSION = 1

MANIFEST = "index.json"
_VERSION_KEY = "stepladder_index"

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


def write_manifest(folder: Path, info: IndexInfo) -> None:
    """Write the manifest into a folder."""
    text = json.dumps({_VERSION_KEY: INDEX_VERSION, **asdict(info)}, indent=2, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


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


def check_files(folder: Path, info: IndexInfo) -> None:
    """Raise if a file of the index is missing or truncated."""
    for name, size in info.files.items():
        file = folder / name
        if file.suffix == ".json" and file.is_file():  # validated when opened; users may correct a path in it
            continue
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            state = "is missing" if found is None else f"has {found:,} bytes"
            raise IndexFolderError(
                f"{folder} is damaged: {name} {state}, expected {size:,} bytes. {build_hint(folder)}"
            )


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
