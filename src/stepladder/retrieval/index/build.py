"""Build an index folder from a corpus, and open it for search.

In: a corpus or passages, and an index kind (registry.py). Out: a folder with the passages (passage_store.py), the files
of the kind, their checksums and a manifest (manifest.py).

The folder is written atomically. An interrupted build of files resumes when started again with the same settings, and
gives the same index. The checksum covers the passages only, so equal corpora have equal checksums.
"""

import json
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol, runtime_checkable

from stepladder.core.config import Config
from stepladder.core.io.files import PartialFolder, atomic_file, resumable_folder, sync_all
from stepladder.core.trace import Passage
from stepladder.core.version import __version__
from stepladder.retrieval.base import ProgressCallback, Retriever, no_progress
from stepladder.retrieval.corpus.passage_store import PassageStore, PassageWriter
from stepladder.retrieval.corpus.reader import check_unique_ids, read_corpus
from stepladder.retrieval.hybrid import FusionConfig
from stepladder.retrieval.index.manifest import (
    CHECKSUMS,
    MANIFEST,
    IndexFolderError,
    IndexInfo,
    build_hint,
    check_files,
    check_overwrite,
    index_info,
    write_checksums,
    write_manifest,
    write_unread,
)
from stepladder.retrieval.index.registry import DEFAULT_MEMORY, IndexKind, builders, parse_kinds, split_settings

#: Weight of bm25 against embeddings: best on the train questions of three data sets, together with 0.7
#: (`python benchmarks/retrieval_quality.py --tune --kinds hybrid`).
BM25_WEIGHT = 0.6

#: Passages between two reports; a few pages of a PDF take a second.
_PROGRESS_EVERY, _SOURCE_PROGRESS_EVERY = 1000, 100
#: Scratch file, written when all passages are in the folder: `CorpusStats`.
_READ = "read.json"
#: Scratch files that `add_to_index` (add.py) writes while it reads: the new passages, and the old ones without a place.
READ_FIRST = ("added", "dropped.npy")
#: Scratch file, written when a part of the index is complete: its build details.
_MADE = "made-{}.json"


@dataclass(frozen=True, slots=True)
class CorpusStats:
    """What was read from the corpus."""

    passages: int
    checksum: str
    left_out: dict[str, int]


@runtime_checkable
class PassageSource(Protocol):
    """Passages that know what they left out, such as a `Corpus`."""

    @property
    def left_out(self) -> dict[str, int]:
        """Counts of what was skipped, by reason."""

    @property
    def not_read(self) -> dict[str, str]:
        """Files that were not read, with the reason."""

    @property
    def progress(self) -> tuple[str, int, int]:
        """What is being read: a description, done so far, total."""


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

    Texts are split into passages of `words` words that overlap by `overlap` words. `settings` are those of the kind
    (`BM25Config`, `DenseConfig`). `memory` is the approximate memory limit in bytes. An existing index is replaced only
    with `overwrite`, another non-empty folder never.
    """
    folder, kinds = Path(folder), parse_kinds(kind)
    builders(kinds)
    configs = split_settings(kinds, settings)
    check_overwrite(folder, overwrite)
    passages, signature = open_corpus(corpus, words, overlap)
    plan = {
        "kind": kind,
        "settings": {name: each.model_dump(mode="json") for name, each in configs.items()},
        "corpus": signature or token_hex(),
        "version": __version__,
    }

    keep = keep_to_resume(kinds) if signature else lambda _: False
    with resumable_folder(folder, plan, what="index", keep=keep) as partial:
        stats = read_passages(passages, partial, progress)
        return finish_index(kind, configs, stats, source or corpus_name(corpus), partial, memory, progress)


def open_corpus(
    corpus: str | Path | Iterable[Passage], words: int, overlap: int
) -> tuple[Iterable[Passage], str | None]:
    """The passages of a corpus, and its signature.

    Passages from a program have none: they may differ the next time, so that their build cannot be resumed.
    """
    if not isinstance(corpus, str | Path):
        return check_unique_ids(corpus), None
    read = read_corpus(corpus, words=words, overlap=overlap)
    return read, read.signature()


def corpus_name(corpus: str | Path | Iterable[Passage]) -> str:
    """The name of a corpus for the manifest; passages from a program have none."""
    return Path(corpus).name if isinstance(corpus, str | Path) else ""


def keep_to_resume(kinds: dict[str, IndexKind]) -> Callable[[PartialFolder], bool]:
    """Whether an attempt that failed is worth keeping: something slow has been started, more than reading."""

    def keep(partial: PartialFolder) -> bool:
        started = {each.name for each in partial.scratch.iterdir()} - {"plan.json", _READ, *READ_FIRST}
        return bool(started) and any(each.resumable for each in kinds.values())

    return keep


def finish_index(
    kind: str,
    configs: dict[str, Config],
    stats: CorpusStats,
    source: str,
    partial: PartialFolder,
    memory: int,
    progress: ProgressCallback,
) -> IndexInfo:
    """Build the parts of an index from the passages in the folder, and write its checksums and manifest."""
    details = _build_parts(parse_kinds(kind), configs, partial, memory, progress)
    for name in (MANIFEST, CHECKSUMS):
        (partial.folder / name).unlink(missing_ok=True)  # from an attempt that failed at the very end
    files = [each for each in partial.folder.rglob("*") if each.is_file() and partial.scratch not in each.parents]
    write_checksums(partial.folder, [each.relative_to(partial.folder).as_posix() for each in sorted(files)])
    files.append(partial.folder / CHECKSUMS)
    info = IndexInfo(
        kind=kind,
        passages=stats.passages,
        settings=details,
        source=source,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        checksum=stats.checksum,
        files={each.relative_to(partial.folder).as_posix(): each.stat().st_size for each in sorted(files)},
        left_out=stats.left_out,
    )
    write_manifest(partial.folder, info)
    return info


def open_index(folder: str | Path, *, device: str = "cpu", fusion: FusionConfig | None = None) -> Retriever:
    """The index in a folder, ready to search. Query encoders, and FAISS with GPU support, run on the `device`.

    `fusion` is how an index of several kinds joins their results; by default weighted scores.
    """
    folder = Path(folder)
    info = index_info(folder)
    kinds, fusion = parse_kinds(info.kind), fusion or FusionConfig()
    if len(kinds) == 1:
        fusion.refuse(str(folder))
    check_files(folder, info)
    try:
        passages = next(iter(kinds.values())).passages(folder)
        parts = [kind.open(folder, passages, device) for kind in kinds.values()]
    except (ValueError, KeyError, TypeError, EOFError) as error:
        raise IndexFolderError(f"{folder} is damaged: {error}. {build_hint(folder)}") from error
    if len(parts) == 1:
        return parts[0]
    weights = tuple(1 - BM25_WEIGHT if kind.dense else BM25_WEIGHT for kind in kinds.values())
    return fusion.fuse(parts, "scores", weights)


def passages_checksum(passages: Iterable[Passage]) -> str:
    """The checksum of an index of these passages."""
    digest = blake2b(digest_size=16)
    for passage in passages:
        digest.update(_hashed(passage))
    return digest.hexdigest()


def _hashed(passage: Passage) -> bytes:
    return json.dumps([passage.id, passage.title, passage.text]).encode() + b"\n"


def read_passages(passages: Iterable[Passage], partial: PartialFolder, progress: ProgressCallback) -> CorpusStats:
    """Write the passages into the folder, unless an earlier attempt has done so."""
    stats_file = partial.scratch / _READ
    if earlier := _earlier_stats(stats_file, partial.folder):
        return earlier
    for mark in partial.scratch.glob(_MADE.format("*")):
        mark.unlink()
    source = passages if isinstance(passages, PassageSource) else None
    every = _PROGRESS_EVERY if source is None else _SOURCE_PROGRESS_EVERY
    digest, count = blake2b(digest_size=16), 0
    with PassageWriter(partial.folder) as writer:
        for count, passage in enumerate(passages, start=1):
            writer.add(passage)
            digest.update(_hashed(passage))
            if count % every == 0:
                progress(*(source.progress if source else ("Reading passages", count, 0)))
    doing, _, total = source.progress if source else ("Reading passages", count, count)
    progress(doing, total, total)
    write_unread(partial.folder, source.not_read if source else {})
    stats = CorpusStats(count, digest.hexdigest(), source.left_out if source else {})
    sync_all(partial.folder)  # before the file that marks it as complete
    with atomic_file(stats_file) as file:
        json.dump(asdict(stats), file)
    return stats


def _earlier_stats(stats_file: Path, folder: Path) -> CorpusStats | None:
    """The stats of an earlier attempt, if its passages are complete."""
    try:
        stats = CorpusStats(**json.loads(stats_file.read_text(encoding="utf-8")))
        with closing(PassageStore(folder)) as passages:
            return stats if passages.is_complete and len(passages) == stats.passages else None
    except (OSError, ValueError, TypeError):
        return None


def _build_parts(
    kinds: dict[str, IndexKind],
    configs: dict[str, Config],
    partial: PartialFolder,
    memory: int,
    progress: ProgressCallback,
) -> dict[str, str | int | float]:
    """Build the parts that are missing; returns the build details of all parts."""
    marks, build = {name: partial.scratch / _MADE.format(name) for name in kinds}, builders(kinds)
    with closing(PassageStore(partial.folder)) as passages:
        # Slow parts that can fail come first: a missing encoder must not be detected after hours.
        for name in sorted(kinds, key=lambda name: not kinds[name].resumable):
            if not marks[name].exists():
                details = build[name](passages, partial, configs[name], memory, progress)
                sync_all(partial.folder)
                with atomic_file(marks[name]) as file:
                    json.dump(dict(details), file)
    return {key: value for mark in marks.values() for key, value in json.loads(mark.read_text("utf-8")).items()}
