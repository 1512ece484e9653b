"""Add passages to an index.

In: an index folder, and a corpus or passages. Out: the index with both, as if it had been built from both: the old
passages first, then the new ones. The vectors of old passages are reused; term statistics, graphs and cells, which
depend on all passages, are computed again.

An added passage with the id and the text of an old one, or with the title and text of another, is a duplicate and
skipped. One with the id of an old one and another text is an error or, with `replace`, takes its place. `replace` also
removes what the index has of a text or document that was read again, and that no longer is in it.

The folder is replaced atomically: until then the old index is in place. The same command resumes an interrupted one.
"""

import json
import sqlite3
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import PartialFolder, resumable_folder
from stepladder.core.trace import Passage
from stepladder.core.version import __version__
from stepladder.retrieval.base import ProgressCallback, no_progress
from stepladder.retrieval.corpus.passage_store import PassageStore
from stepladder.retrieval.corpus.reader import (
    IN_PART,
    OTHERS,
    UNKNOWN_FORMAT,
    UNREADABLE,
    Corpus,
    content_hash,
)
from stepladder.retrieval.corpus.tables import CorpusError
from stepladder.retrieval.index.build import (
    READ_FIRST,
    corpus_name,
    finish_index,
    keep_to_resume,
    open_corpus,
    read_passages,
)
from stepladder.retrieval.index.dense_config import EncoderConfig, Layout
from stepladder.retrieval.index.manifest import IndexInfo, check_files, check_overwrite, index_info, unread_files
from stepladder.retrieval.index.registry import DEFAULT_MEMORY, IndexKind, parse_kinds, split_settings

_ADDED, _DROPPED = READ_FIRST


class _NothingNewError(Exception):
    """All passages are in the index already."""


def add_to_index(
    corpus: str | Path | Iterable[Passage],
    folder: str | Path,
    *,
    source: str = "",
    replace: bool = False,
    progress: ProgressCallback = no_progress,
    memory: int = DEFAULT_MEMORY,
    words: int = 100,
    overlap: int = 20,
    **settings: Any,
) -> IndexInfo:
    """Add a corpus (a file, a folder, a pattern), or passages, to the index in a folder, with the settings it has.

    `settings` are those that do not change vectors: device, dtype, batch. Other parameters as in `build_index`.
    """
    folder = Path(folder)
    info = index_info(folder)
    kinds = parse_kinds(info.kind)
    configs = _stored_settings(folder, info, kinds, settings)
    check_overwrite(folder, overwrite=True)
    check_files(folder, info)
    passages, signature = open_corpus(corpus, words, overlap)
    plan = {
        "add": signature or token_hex(),
        "to": [info.checksum, info.created],
        "settings": {name: each.model_dump(mode="json") for name, each in configs.items()},
        "replace": replace,
        "version": __version__,
    }
    keep = keep_to_resume(kinds) if signature else lambda _: False
    try:
        with (
            resumable_folder(folder, plan, what="index", keep=keep) as partial,
            closing(PassageStore(folder)) as old,
        ):
            added = PartialFolder(partial.scratch / _ADDED, partial.scratch / _ADDED)
            added.folder.mkdir(exist_ok=True)
            new = read_passages(passages, added, progress)
            documents = passages.documents if isinstance(passages, Corpus) else set()
            merged = _Merged(old, added.folder, documents, replace, partial.scratch / _DROPPED)
            merged.left_out = dict(Counter(info.left_out) + Counter(new.left_out))
            merged.not_read = unread_files(folder)
            stats = read_passages(merged, partial, progress)
            if stats.checksum == info.checksum:
                raise _NothingNewError
            _reuse_vectors(folder, kinds, partial, stats.passages, progress)
            sources = dict.fromkeys((*info.source.split(" + "), source or corpus_name(corpus)))
            return finish_index(info.kind, configs, stats, " + ".join(sources), partial, memory, progress)
    except _NothingNewError:
        return info


def _stored_settings(
    folder: Path, info: IndexInfo, kinds: dict[str, IndexKind], settings: dict[str, Any]
) -> dict[str, Config]:
    """The settings that an index was built with, and those of this build."""
    if fixed := {"milvus", "faiss"} & kinds.keys():
        raise StepladderError(
            f"{folder}: passages cannot be added to an index of the kind {fixed.pop()}. Build an index of the new "
            f"ones, and search both: --index {folder}+NEW"
        )
    known = {name for kind in kinds.values() for name in kind.config.model_fields}
    stored: dict[str, Any] = {name: value for name, value in info.settings.items() if name in known}
    if any(kind.dense for kind in kinds.values()):
        from stepladder.retrieval.index.dense import DESCRIPTION  # imports PyTorch

        described = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))  # users may correct a path in it
        stored |= {name: described[name] for name in EncoderConfig.model_fields if name in described}
    if changed := settings.keys() & (EncoderConfig.model_fields.keys() | {"k1", "b", "title_weight"}):
        raise StepladderError(f"{folder}: '{changed.pop()}' is the same for all passages of an index: build a new one")
    return split_settings(kinds, {**stored, **settings})


class _Merged:
    """The passages of an index, followed by those that are added."""

    def __init__(self, old: PassageStore, added: Path, documents: set[str], replace: bool, dropped: Path) -> None:
        self._old, self._added, self._documents = old, added, documents
        self._replace, self._dropped = replace, dropped
        self._done = 0
        self.left_out: dict[str, int] = {}
        self.not_read: dict[str, str] = {}

    @property
    def progress(self) -> tuple[str, int, int]:
        return "Merging passages", self._done, len(self._old)

    def __iter__(self) -> Iterator[Passage]:
        self._done = 0
        with closing(PassageStore(self._added)) as added, closing(_Lookup(added)) as new:
            unread = unread_files(self._added)
            read = self._documents - {name for name, reason in unread.items() if not reason.startswith(IN_PART)}
            earlier = {name: reason for name, reason in self.not_read.items() if name not in read}
            self.not_read = earlier | unread
            dropped, duplicates = array("Q"), set[int]()
            for position, passage in enumerate(self._old):
                self._done = position
                content = content_hash(passage)
                same = new.with_id(passage.id)
                if same is None and self._replace and document_of(passage.id) in read:
                    dropped.append(position)
                elif same is None or same[1] == content:
                    found = new.with_content(content) if same is None else same[0]
                    duplicates |= set() if found is None else {found}
                    yield passage
                elif self._replace:
                    dropped.append(position)
                else:
                    raise CorpusError(
                        f"the index has a passage {passage.id!r} with another text. To replace what it has of the same "
                        "files and ids, use replace (--replace); to keep both, give the files other names"
                    )
            yield from (passage for position, passage in enumerate(added) if position not in duplicates)
        np.save(self._dropped, np.array(dropped, dtype=np.uint64))
        self._count(len(duplicates))

    def _count(self, duplicates: int) -> None:
        others = sum(reason == UNKNOWN_FORMAT for reason in self.not_read.values())
        counts = Counter({**self.left_out, UNREADABLE: len(self.not_read) - others, OTHERS: others})
        counts["duplicates"] += duplicates
        self.left_out = dict(+counts)


class _Lookup:
    """Passages by id and by content, in a temporary database that spills to disk."""

    def __init__(self, passages: PassageStore) -> None:
        self._database = sqlite3.connect("", check_same_thread=False)
        self._database.executescript(
            "PRAGMA journal_mode = OFF; PRAGMA cache_size = -262144;"  # in KiB
            "CREATE TABLE added (id BLOB PRIMARY KEY, content BLOB, position INTEGER) WITHOUT ROWID;"
        )
        rows = ((_key(each.id), content_hash(each), position) for position, each in enumerate(passages))
        self._database.executemany("INSERT INTO added VALUES (?, ?, ?)", rows)
        self._database.execute("CREATE INDEX contents ON added (content)")

    def with_id(self, passage_id: str) -> tuple[int, bytes] | None:
        """The position and the content hash of the passage with an id."""
        query = "SELECT position, content FROM added WHERE id = ?"
        found: tuple[int, bytes] | None = self._database.execute(query, (_key(passage_id),)).fetchone()
        return found

    def with_content(self, content: bytes) -> int | None:
        """The position of the passage with a content hash."""
        found = self._database.execute("SELECT position FROM added WHERE content = ?", (content,)).fetchone()
        return None if found is None else int(found[0])

    def close(self) -> None:
        """Delete the database."""
        self._database.close()


def _key(passage_id: str) -> bytes:
    return passage_id.encode("utf-8", "surrogatepass")


def document_of(passage_id: str) -> str:
    """The document of a passage, from its id.

    >>> document_of("folder/manual.pdf#12")
    'folder/manual.pdf'
    """
    return passage_id.rpartition("#")[0]


def _reuse_vectors(
    folder: Path, kinds: dict[str, IndexKind], partial: PartialFolder, total: int, progress: ProgressCallback
) -> None:
    """Copy the vectors of the old passages that are kept."""
    layout = next((Layout(name) for name, kind in kinds.items() if kind.dense), None)
    if layout is None:
        return
    from stepladder.retrieval.index.faiss_index import open_vector_index
    from stepladder.retrieval.index.vectors import reuse_vectors

    dropped = set(np.load(partial.scratch / _DROPPED).tolist())
    count = index_info(folder).passages
    with closing(open_vector_index(layout, folder)) as vectors:

        def kept() -> Iterator[Any]:
            for position in range(count):
                if position % 1000 == 0:
                    progress("Copying vectors", position, count)
                if position not in dropped:
                    yield vectors.vector(position)

        dtype = np.float32 if layout is Layout.flat else np.float16
        target = partial.scratch if layout is Layout.hnsw else partial.folder
        reuse_vectors(kept(), count - len(dropped), total, target, partial.scratch, dtype)
