"""Index folders: build one from a corpus, look at it, open it for searching.

In: a corpus file or passages. Out: a folder with the files of the index and `index.json`, its manifest:

    {"stepladder_index": 1, "kind": "bm25", "passages": 20805, "settings": {"k1": 1.2, ...},
     "source": "corpus.jsonl.gz", "created": "2026-01-31T12:00:00+00:00", "checksum": "...",
     "files": {"passages.jsonl": 9113904, ...}}

The folder appears whole or not at all. The checksum is of the passages alone, so equal corpora have equal checksums.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from stepladder.errors import StepladderError, unknown_name
from stepladder.files import atomic_folder
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.bm25 import BM25Index
from stepladder.retrieval.corpus import Corpus, distinct, read_corpus
from stepladder.trace import Passage

INDEX_VERSION = 1

_MANIFEST = "index.json"
_VERSION_KEY = "stepladder_index"
_PROGRESS_EVERY = 1000


class IndexFolderError(StepladderError):
    """A folder that is not an index this Stepladder can read, or that must not be written over."""


@dataclass(frozen=True, slots=True)
class IndexKind:
    """How folders of one kind are built and opened."""

    #: (passages, folder, **settings) -> how it was made. Writes into the folder, reading the passages once.
    build: Callable[..., dict[str, str | int | float]]
    #: The retriever of a folder that `build` wrote.
    open: Callable[[Path], Retriever]


KINDS = {"bm25": IndexKind(BM25Index.build, BM25Index.open)}


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """The manifest of an index."""

    kind: str
    #: How many passages it holds.
    passages: int
    #: How it was made: parameters and libraries.
    settings: dict[str, str | int | float]
    #: Name of the corpus it was built from, as far as known.
    source: str
    #: When it was built, in UTC.
    created: str
    #: Hash of the passages' ids, titles and texts in their order.
    checksum: str
    #: Size in bytes of every other file in the folder.
    files: dict[str, int]
    #: What of the corpus is not in it, and how much: blank passages, duplicates, files that cannot be read.
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes that the index takes on disk."""
        return sum(self.files.values())


_MANIFEST_FIELDS = TypeAdapter(IndexInfo)


def build_index(
    corpus: str | Path | Iterable[Passage],
    folder: str | Path,
    kind: str = "bm25",
    *,
    source: str = "",
    overwrite: bool = False,
    on_progress: Callable[[int], None] | None = None,
    words: int = 100,
    overlap: int = 20,
    **settings: Any,
) -> IndexInfo:
    """Build an index of a corpus (a file, a folder, a pattern), or of passages, in a folder.

    Texts are split into passages of `words` words that share `overlap` of them with the one before.
    `settings` are those of the kind's own `build`. `on_progress` is called now and then with the number of passages
    read so far. An existing index is replaced only with `overwrite`, any other folder with files in it never.
    """
    builder, folder = _kind(kind), Path(folder)
    _check_free(folder, overwrite)
    passages: Iterable[Passage]
    if isinstance(corpus, str | Path):
        passages = read_corpus(corpus, words=words, overlap=overlap)
        source = source or Path(corpus).name
    else:
        passages = distinct(corpus)
    reading = _Reading(passages, on_progress)
    with atomic_folder(folder, what="index") as temporary:
        made = builder.build(reading, temporary, **settings)
        info = IndexInfo(
            kind=kind,
            passages=reading.count,
            settings=made,
            source=source,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            checksum=reading.hash.hexdigest(),
            files={
                file.relative_to(temporary).as_posix(): file.stat().st_size
                for file in sorted(temporary.rglob("*"))
                if file.is_file()
            },
            left_out=passages.left_out if isinstance(passages, Corpus) else {},
        )
        manifest = json.dumps({_VERSION_KEY: INDEX_VERSION, **asdict(info)}, indent=2, ensure_ascii=False)
        (temporary / _MANIFEST).write_text(manifest + "\n", encoding="utf-8")
    return info


def index_info(folder: str | Path) -> IndexInfo:
    """The manifest of the index in a folder."""
    folder = Path(folder)
    if not folder.exists():
        raise IndexFolderError(f"{folder}: there is no such folder. {_how_to_build(folder)}")
    path = folder / _MANIFEST
    if not path.is_file():
        raise IndexFolderError(f"{folder} is not an index: it has no {_MANIFEST}. {_how_to_build(folder)}")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        found = manifest.pop(_VERSION_KEY)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IndexFolderError(f"{path} is not the manifest of an index: {error!r}") from error
    if found != INDEX_VERSION:
        raise IndexFolderError(
            f"{folder} is an index of version {found}, this Stepladder reads version {INDEX_VERSION}: build it "
            f"again. {_how_to_build(folder)}"
        )
    try:
        return _MANIFEST_FIELDS.validate_python(manifest)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise IndexFolderError(f"{path} is not the manifest of an index: {where}: {first['msg']}") from error


def open_index(folder: str | Path) -> Retriever:
    """The index in a folder, ready to search."""
    folder = Path(folder)
    info = index_info(folder)
    kind = _kind(info.kind)
    for name, size in info.files.items():
        file = folder / name
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            state = "is missing" if found is None else f"has {found:,} bytes"
            raise IndexFolderError(
                f"{folder} is damaged: {name} {state}, expected {size:,} bytes. {_how_to_build(folder)}"
            )
    try:
        return kind.open(folder)
    except (ValueError, KeyError, TypeError, EOFError) as error:
        raise IndexFolderError(f"{folder} is damaged: {error}. {_how_to_build(folder)}") from error


class _Reading:
    """Passages on their way into an index: counted, hashed and reported."""

    def __init__(self, passages: Iterable[Passage], on_progress: Callable[[int], None] | None) -> None:
        self._passages = passages
        self._on_progress = on_progress
        self.count = 0
        self.hash = blake2b(digest_size=16)

    def __iter__(self) -> Iterator[Passage]:
        for passage in self._passages:
            self.count += 1
            fields = json.dumps([passage.id, passage.title, passage.text])
            self.hash.update(fields.encode() + b"\n")
            yield passage
            if self._on_progress and self.count % _PROGRESS_EVERY == 0:
                self._on_progress(self.count)
        if self._on_progress:
            self._on_progress(self.count)


def _kind(name: str) -> IndexKind:
    if name not in KINDS:
        raise unknown_name("kind of index", name, KINDS)
    return KINDS[name]


def _check_free(folder: Path, overwrite: bool) -> None:
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        ours = {_MANIFEST, *manifest["files"]} if _VERSION_KEY in manifest else set()
    except (OSError, ValueError, TypeError, KeyError):
        ours = set()
    if not {each.name for each in folder.iterdir()} <= ours:
        raise IndexFolderError(f"{folder} has other files than an index's in it; choose another folder")
    if not overwrite:
        raise IndexFolderError(f"{folder} is an index already; say overwrite (--overwrite) to replace it")


def _how_to_build(folder: Path) -> str:
    return f"Build one with: stepladder index build CORPUS --out {folder}"
