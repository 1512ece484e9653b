"""Index folders: build one from a corpus, open it for searching.

In: a corpus file or passages, and a kind of index (kinds.py). Out: a folder with the passages (passages.py), the files
of the kind and a manifest (manifest.py).

The folder appears whole or not at all. A build of files that was cut off and is started again the same way goes on
where it was, and gives the same index. The checksum is of the passages alone, so equal corpora have equal checksums.
"""

import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import Any

from stepladder import __version__
from stepladder.core.config import Config
from stepladder.core.io.files import PartialFolder, atomic_file, resumable_folder, sync_all
from stepladder.core.trace import Passage
from stepladder.retrieval.base import ProgressCallback, Retriever, no_progress
from stepladder.retrieval.corpus.passage_store import PassageStore, PassageWriter
from stepladder.retrieval.corpus.reader import Corpus, check_unique_ids, read_corpus
from stepladder.retrieval.hybrid import HybridRetriever
from stepladder.retrieval.index.manifest import (
    MANIFEST,
    IndexFolderError,
    IndexInfo,
    build_hint,
    check_files,
    check_overwrite,
    index_info,
    write_manifest,
)
from stepladder.retrieval.index.memory_budget import DEFAULT_MEMORY
from stepladder.retrieval.index.registry import IndexKind, parse_kinds, split_settings

#: How much bm25 counts beside embeddings: found best on the train questions of three data sets, with 0.7 alike
#: (`python benchmarks/retrieval_quality.py --tune --kinds hybrid`).
BM25_WEIGHT = 0.6

_PROGRESS_EVERY = 1000
#: Written when all passages are in the folder: how many there are, and of what.
_READ = "read.json"
#: Written when a part of the index is done: how it was made.
_MADE = "made-{}.json"


@dataclass(frozen=True, slots=True)
class _Reading:
    """What was read of the corpus."""

    passages: int
    checksum: str
    left_out: dict[str, int]


def build_index(
    corpus: str | Path | Iterable[Passage],
    folder: str | Path,
    kind: str = "bm25",
    *,
    source: str = "",
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
    memory: int = DEFAULT_MEMORY,
    words: int = 100,
    overlap: int = 20,
    **settings: Any,
) -> IndexInfo:
    """Build an index of a corpus (a file, a folder, a pattern), or of passages, in a folder.

    Texts are split into passages of `words` words that share `overlap` of them with the one before. `settings` are
    those of the kind (`BM25Config`, `DenseConfig`). `memory` is about how many bytes building may take. An existing
    index is replaced only with `overwrite`, any other folder with files in it never.
    """
    folder, kinds = Path(folder), parse_kinds(kind)
    chosen = split_settings(kinds, settings)
    check_overwrite(folder, overwrite)
    passages: Iterable[Passage]
    if isinstance(corpus, str | Path):
        passages = read_corpus(corpus, words=words, overlap=overlap)
        source = source or Path(corpus).name
    else:
        passages = check_unique_ids(corpus)
    # Of passages that come from a program nobody knows whether they are the same the next time.
    known = passages.signature() if isinstance(passages, Corpus) else None
    plan = {
        "kind": kind,
        "settings": {name: each.model_dump(mode="json") for name, each in chosen.items()},
        "corpus": known or token_hex(),
        "version": __version__,
    }

    def worth_keeping(partial: PartialFolder) -> bool:
        begun = {each.name for each in partial.scratch.iterdir()} - {"plan.json", _READ} if known else set()
        return bool(begun) and any(each.resumes for each in kinds.values())

    with resumable_folder(folder, plan, what="index", keep=worth_keeping) as partial:
        reading = _read(passages, partial, progress)
        made = _make(kinds, chosen, partial, memory, progress)
        info = IndexInfo(
            kind=kind,
            passages=reading.passages,
            settings=made,
            source=source,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            checksum=reading.checksum,
            files=_sizes(partial),
            left_out=reading.left_out,
        )
        write_manifest(partial.folder, info)
    return info


def open_index(folder: str | Path, *, device: str = "cpu") -> Retriever:
    """The index in a folder, ready to search. An encoder of queries works on the `device`."""
    folder = Path(folder)
    info = index_info(folder)
    kinds = parse_kinds(info.kind)
    check_files(folder, info)
    try:
        passages = PassageStore(folder)
        parts = [kind.open(folder, passages, device) for kind in kinds.values()]
    except (ValueError, KeyError, TypeError, EOFError) as error:
        raise IndexFolderError(f"{folder} is damaged: {error}. {build_hint(folder)}") from error
    if len(parts) == 1:
        return parts[0]
    weights = [BM25_WEIGHT if name == "bm25" else 1 - BM25_WEIGHT for name in kinds]
    return HybridRetriever(parts, fusion="scores", weights=weights)


def passages_checksum(passages: Iterable[Passage]) -> str:
    """The checksum that an index of these passages has."""
    digest = _Digest()
    for passage in passages:
        digest.add(passage)
    return digest.checksum


class _Digest:
    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)

    def add(self, passage: Passage) -> None:
        self._hash.update(json.dumps([passage.id, passage.title, passage.text]).encode() + b"\n")

    @property
    def checksum(self) -> str:
        return self._hash.hexdigest()


def _read(passages: Iterable[Passage], partial: PartialFolder, progress: ProgressCallback) -> _Reading:
    """Put the passages into the folder, unless they are there from an earlier attempt."""
    file = partial.scratch / _READ
    if earlier := _earlier(file, partial.folder):
        return earlier
    for mark in partial.scratch.glob(_MADE.format("*")):
        mark.unlink()
    digest, count = _Digest(), 0
    with PassageWriter(partial.folder) as writer:
        for count, passage in enumerate(passages, start=1):
            writer.add(passage)
            digest.add(passage)
            if count % _PROGRESS_EVERY == 0:
                progress("Reading passages", count, 0)
    progress("Reading passages", count, count)
    reading = _Reading(count, digest.checksum, passages.left_out if isinstance(passages, Corpus) else {})
    sync_all(partial.folder)  # before the mark that vouches for it
    with atomic_file(file) as written:
        json.dump(asdict(reading), written)
    return reading


def _earlier(file: Path, folder: Path) -> _Reading | None:
    """What an earlier attempt has read, if its passages are there whole."""
    try:
        reading = _Reading(**json.loads(file.read_text(encoding="utf-8")))
        with closing(PassageStore(folder)) as passages:
            return reading if passages.is_complete and len(passages) == reading.passages else None
    except (OSError, ValueError, TypeError):
        return None


def _make(
    kinds: dict[str, IndexKind], settings: dict[str, Config], partial: PartialFolder, memory: int, progress: ProgressCallback
) -> dict[str, str | int | float]:
    """Build the parts that are not there yet; returns how all were made."""
    marks = {name: partial.scratch / _MADE.format(name) for name in kinds}
    with closing(PassageStore(partial.folder)) as passages:
        # First what takes longest and can go wrong: an encoder that is not there is not found out after hours.
        for name in sorted(kinds, key=lambda name: not kinds[name].resumes):
            if not marks[name].exists():
                how = kinds[name].build(passages, partial, settings[name], memory, progress)
                sync_all(partial.folder)
                with atomic_file(marks[name]) as written:
                    json.dump(dict(how), written)
    return {key: value for mark in marks.values() for key, value in json.loads(mark.read_text("utf-8")).items()}


def _sizes(partial: PartialFolder) -> dict[str, int]:
    (partial.folder / MANIFEST).unlink(missing_ok=True)  # of an attempt that failed at its very end
    files = [each for each in partial.folder.rglob("*") if each.is_file() and partial.scratch not in each.parents]
    return {each.relative_to(partial.folder).as_posix(): each.stat().st_size for each in sorted(files)}
