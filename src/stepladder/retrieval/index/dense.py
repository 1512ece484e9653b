"""Dense retrieval: the passages whose embeddings are nearest to the query's.

In: passages and an encoder (encoder.py), to build an index in memory (`from_passages`) or in a folder (`build`,
`open`); then queries. Out: for each query its k best passages; scores are cosines or inner products.

    vectors.npy, vectors.faiss   the embeddings, by layout (faiss_index.py)
    dense.json                   the layout, and the encoder with its prefixes and pooling

An index works only with its own encoder: `open` encodes the first passage again and compares.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from stepladder.core.errors import StepladderError
from stepladder.core.extras import library_version
from stepladder.core.io.files import PartialFolder, atomic_file
from stepladder.core.trace import Passage
from stepladder.retrieval.base import ProgressCallback, Retriever, check_search, no_progress
from stepladder.retrieval.corpus.passage_store import Passages, PassageStore
from stepladder.retrieval.corpus.reader import check_unique_ids
from stepladder.retrieval.imported.corpus_file import CorpusFile
from stepladder.retrieval.index.dense_config import DenseConfig, EncoderConfig, Layout
from stepladder.retrieval.index.encoder import Encoder, EncoderError, Vectors
from stepladder.retrieval.index.faiss_index import build_vector_index, check_memory, open_vector_index
from stepladder.retrieval.index.manifest import BuildDetails
from stepladder.retrieval.index.registry import DEFAULT_MEMORY, IndexKind
from stepladder.retrieval.index.vector_index import FlatIndex, VectorIndex, import_faiss
from stepladder.retrieval.index.vectors import encode_passages, same_direction

#: The layout and the encoder.
DESCRIPTION = "dense.json"


class DenseIndex(Retriever):
    """An embedding index with its passages and its encoder."""

    def __init__(self, vectors: VectorIndex, encoder: Encoder, passages: Passages) -> None:
        self.vectors, self.encoder, self.passages = vectors, encoder, passages

    @classmethod
    def from_passages(cls, passages: Iterable[Passage], encoder: Encoder | None = None) -> "DenseIndex":
        """An in-memory index with exact search, for small corpora."""
        encoder = encoder or Encoder()
        kept = tuple(check_unique_ids(passages))
        return cls(FlatIndex(encoder.passages(kept)), encoder, kept)

    @classmethod
    def build(
        cls,
        passages: Passages,
        to: PartialFolder,
        layout: Layout,
        settings: DenseConfig,
        *,
        memory: int = DEFAULT_MEMORY,
        progress: ProgressCallback = no_progress,
    ) -> BuildDetails:
        """Write an index of the passages into a folder, resuming an earlier attempt; returns the build details."""
        encoder = Encoder(settings, device=settings.device, dtype=settings.dtype, batch=settings.batch)
        check_memory(layout, len(passages), encoder.dimensions, memory)
        dtype = np.float32 if layout is Layout.flat else np.float16
        vectors_folder = to.scratch if layout is Layout.hnsw else to.folder  # an HNSW file contains the vectors
        vectors = encode_passages(passages, encoder, vectors_folder, to.scratch, dtype, memory, progress)
        build_vector_index(layout, vectors, to.folder, memory, progress)
        return write_description(encoder, to.folder, layout, f"FAISS {import_faiss().__version__}")

    @classmethod
    def open(
        cls,
        folder: Path,
        passages: Passages,
        device: str = "cpu",
        vectors: VectorIndex | None = None,
        first: Vectors | None = None,
    ) -> "DenseIndex":
        """The index in a folder, with its passages; queries are encoded on the device.

        `vectors` is the vector index if it is not in the folder, and `first` the encoder's vector of the first passage
        if the stored one is of another text.
        """
        description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        layout = description.pop("layout")
        try:
            encoder = Encoder(EncoderConfig.read(description, str(folder / DESCRIPTION)), device=device, dtype="fp32")
        except EncoderError as error:
            raise EncoderError(f"{error}. If it has moved, correct 'encoder' in {folder / DESCRIPTION}") from error
        vectors = vectors or open_vector_index(Layout(layout), folder, device)
        _check_encoder(encoder, vectors.vector(0) if first is None else first, passages[0], folder)
        return cls(vectors, encoder, passages)

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        """For each query, in order, up to k passages with their scores, best first."""
        check_search(queries, k)
        if not queries:
            return []
        scores, positions = self.vectors.search(self.encoder.queries(queries), min(k, len(self.passages)))
        return [self._found(row, ids) for row, ids in zip(scores.tolist(), positions.tolist())]

    def _found(self, scores: list[float], positions: list[int]) -> tuple[Passage, ...]:
        pairs = sorted(
            ((score, position) for score, position in zip(scores, positions) if position >= 0),
            key=lambda pair: (-pair[0], pair[1]),
        )
        return tuple(replace(self.passages[position], score=score) for score, position in pairs)

    def close(self) -> None:
        """Close the files of an index that was opened from a folder."""
        self.vectors.close()
        if isinstance(self.passages, PassageStore | CorpusFile):
            self.passages.close()


def write_description(encoder: Encoder, folder: Path, layout: str, library: str) -> BuildDetails:
    """Write the settings that `DenseIndex.open` needs into a folder; returns the build details."""
    settings = encoder.settings.model_dump()
    with atomic_file(folder / DESCRIPTION) as file:
        json.dump({"layout": layout, **settings}, file, indent=2)
    return {
        **{name: value for name, value in settings.items() if value is not None},
        "dimensions": encoder.dimensions,
        "encoded_in": "bf16" if encoder.bf16 else "fp32",
        "vectors": f"{library}, sentence-transformers {library_version('sentence-transformers')}",
    }


def _check_encoder(encoder: Encoder, stored: Vectors, first: Passage, folder: Path) -> None:
    now = encoder.passages([first])[0]
    fits = len(now) == len(stored)
    if not fits or not same_direction(now, stored):
        found = f"it has {len(now)} dimensions, the index has {len(stored)}" if not fits else "its vectors differ"
        raise StepladderError(
            f"{folder} was not built with the encoder that is now at '{encoder.settings.encoder}': {found}. Restore "
            "the original encoder, or rebuild the index"
        )


def _kind(layout: Layout) -> IndexKind:
    def build(
        passages: Passages, to: PartialFolder, config: DenseConfig, memory: int, progress: ProgressCallback
    ) -> BuildDetails:
        return DenseIndex.build(passages, to, layout, config, memory=memory, progress=progress)

    return IndexKind(DenseConfig, build, DenseIndex.open, dense=True, resumable=True)


FLAT, HNSW, IVFPQ = map(_kind, (Layout.flat, Layout.hnsw, Layout.ivfpq))
