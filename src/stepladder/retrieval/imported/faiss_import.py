"""Import a FAISS index of others with its corpus: an index folder that refers to both files and copies neither.

In: a FAISS file (`e5_Flat.index`), the corpus it was built from (`wiki-18.jsonl`) and its encoder. Out: a folder that
`open_index` opens like any other, after the three were compared (fit_check.py).

    imported.json          where the two files are, with their sizes and checksums; correct the paths if they move
    rows.npy               byte offset of every row of the corpus
    first.npy              the encoder's vector of the first passage, to recognize the encoder
    dense.json, index.json as in other indexes
"""

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from stepladder.core.config import Config
from stepladder.core.io.checksums import difference, quick_checksum
from stepladder.core.io.files import atomic_folder
from stepladder.retrieval.base import ProgressCallback, no_progress
from stepladder.retrieval.imported.corpus_file import CorpusFile, check_rows, find_rows
from stepladder.retrieval.imported.faiss_file import FaissFileError, FaissHeader, open_faiss, read_header
from stepladder.retrieval.imported.fit_check import FitError, check_fit
from stepladder.retrieval.index.build import passages_checksum
from stepladder.retrieval.index.dense import DenseIndex, write_description
from stepladder.retrieval.index.dense_config import EncoderConfig
from stepladder.retrieval.index.encoder import Encoder
from stepladder.retrieval.index.manifest import (
    CHECKSUMS,
    IndexFolderError,
    IndexInfo,
    check_overwrite,
    write_checksums,
    write_manifest,
)
from stepladder.retrieval.index.registry import IndexKind
from stepladder.retrieval.index.vector_index import import_faiss

_FILES, _ROWS, _FIRST = "imported.json", "rows.npy", "first.npy"
#: Queries per call: one pass over the vectors serves all of them.
_MAX_BATCH = 1024


class FaissConfig(EncoderConfig):
    """How to use an imported index."""

    #: Device of the encoder during the import.
    device: str = "auto"
    #: At least this many cells of an IVF index are searched.
    nprobe: int = Field(default=32, ge=1)
    #: At least this many candidates of an HNSW graph are kept.
    ef_search: int = Field(default=128, ge=1)


class _File(Config):
    """A file that an imported index refers to. A relative path starts at the index folder."""

    path: Path
    size: int
    checksum: str

    @classmethod
    def of(cls, path: Path) -> "_File":
        return cls(path=path.absolute(), size=path.stat().st_size, checksum=quick_checksum(path))


class _Imported(Config):
    """`imported.json`."""

    faiss: _File
    corpus: _File
    nprobe: int
    ef_search: int


def import_index(
    file: str | Path,
    corpus: str | Path,
    folder: str | Path,
    *,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
    **settings: Any,
) -> IndexInfo:
    """Make an index folder of a FAISS file and its corpus. `settings` are those of `FaissConfig`.

    The two files must stay where they are. An existing index is replaced only with `overwrite`.
    """
    file, corpus, folder, config = Path(file), Path(corpus), Path(folder), FaissConfig.read(settings)
    check_overwrite(folder, overwrite)
    header = read_header(file)
    encoder = Encoder(config, device=config.device, dtype="fp32")
    if encoder.dimensions != header.dimensions:
        raise FitError(
            f"{file} has vectors of {header.dimensions} dimensions, and the encoder '{encoder.settings.encoder}' makes "
            f"{encoder.dimensions}: name the encoder that the index was built with"
        )
    offsets = find_rows(corpus, progress)
    if len(offsets) - 1 != header.count:
        raise FitError(
            f"{file} has {header.count:,} vectors, and {corpus} has {len(offsets) - 1:,} rows: use the corpus file "
            "that the index was built from"
        )
    vectors = open_faiss(file, header, device="cpu", nprobe=config.nprobe, ef_search=config.ef_search)
    with closing(CorpusFile(corpus, offsets)) as passages:
        progress("Comparing vectors with passages", 0, 0)
        check_fit(vectors, passages, encoder, header.metric, exact=header.vectors_at is not None)
        checksum = passages_checksum(check_rows(passages, progress))
        first = encoder.passages([passages[0]])[0]
    with atomic_folder(folder, "index") as new:
        np.save(new / _ROWS, offsets)
        np.save(new / _FIRST, first)
        files = _Imported(
            faiss=_File.of(file), corpus=_File.of(corpus), nprobe=config.nprobe, ef_search=config.ef_search
        )
        (new / _FILES).write_text(files.model_dump_json(indent=2) + "\n", encoding="utf-8")
        details = dict(write_description(encoder, new, "faiss", f"FAISS {import_faiss().__version__}"))
        del details["encoded_in"]  # by others
        write_checksums(new, sorted(each.name for each in new.iterdir()))
        info = IndexInfo(
            kind="faiss",
            passages=header.count,
            settings={**details, **_search_settings(header, config), "faiss_file": files.faiss.checksum},
            source=f"{file.name} with {corpus.name}",
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            checksum=checksum,
            files={each.name: each.stat().st_size for each in sorted(new.iterdir())},
        )
        assert CHECKSUMS in info.files
        write_manifest(new, info)
    return info


def _search_settings(header: FaissHeader, config: FaissConfig) -> dict[str, str | int | float]:
    """The type of the index, and the settings that change what it finds."""
    found: dict[str, str | int | float] = {"type": header.kind, "metric": header.metric}
    if header.vectors_at is None:
        found |= {"nprobe": config.nprobe, "ef_search": config.ef_search}
    return found


def _open_files(folder: Path) -> _Imported:
    """The files of an imported index, with their paths made absolute; raises if one is not as it was."""
    place = folder / _FILES
    files = _Imported.model_validate_json(place.read_text(encoding="utf-8"))
    changes: dict[str, _File] = {}
    for name, file in (("faiss", files.faiss), ("corpus", files.corpus)):
        path = folder / file.path
        if (problem := difference(path, file.size, file.checksum)) is not None:
            raise IndexFolderError(
                f"{folder} refers to {path}, which {problem}. If it has moved, correct the path of '{name}' in "
                f"{place}; if it has changed, import it again (stepladder index import ... --overwrite)"
            )
        changes[name] = file.model_copy(update={"path": path})
    return files.model_copy(update=changes)


def open_corpus(folder: Path) -> CorpusFile:
    """The passages of an imported index."""
    # A plain array view: slicing a memmap is slow.
    return CorpusFile(_open_files(folder).corpus.path, np.asarray(np.load(folder / _ROWS, mmap_mode="r")))


def open_imported(folder: Path, passages: Any, device: str = "cpu") -> DenseIndex:
    """The imported index in a folder."""
    files = _open_files(folder)
    header = read_header(files.faiss.path)
    if header.count != len(passages):
        raise FaissFileError(f"{files.faiss.path} has {header.count:,} vectors, expected {len(passages):,}")
    vectors = open_faiss(files.faiss.path, header, device=device, nprobe=files.nprobe, ef_search=files.ef_search)
    index = DenseIndex.open(folder, passages, device, vectors, first=np.load(folder / _FIRST))
    index.max_batch = _MAX_BATCH
    return index


FAISS = IndexKind(FaissConfig, build=None, open=open_imported, dense=True, resumable=False, passages=open_corpus)
