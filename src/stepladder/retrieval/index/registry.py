"""The kinds of index, by name, and how each is built and opened.

bm25      words, stemmed; needs no model
flat      embeddings, all compared with a query: exact
hnsw      embeddings in a graph of neighbours: quick, in memory
ivfpq     embeddings compressed in cells, the best of them compared exactly: a small part of the memory
milvus    embeddings in Milvus, in a file or a cluster

Kinds joined by + ("bm25+hnsw") share the passages of one folder, and what they find is fused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError, unknown_name
from stepladder.core.io.files import PartialFolder
from stepladder.retrieval.base import ProgressCallback, Retriever
from stepladder.retrieval.corpus.passage_store import Passages
from stepladder.retrieval.index.bm25 import BM25Config, BM25Index
from stepladder.retrieval.index.dense_config import DenseConfig, Layout, MilvusConfig
from stepladder.retrieval.index.manifest import BuildDetails


@dataclass(frozen=True, slots=True)
class IndexKind:
    """How one kind of index is built and opened."""

    #: What can be set of it when it is built.
    settings: type[Config]
    #: (passages, where to, settings, memory, progress) -> how it was made. Writes files of its own.
    build: Callable[[Passages, PartialFolder, Any, int, ProgressCallback], BuildDetails]
    #: (folder, passages, device) -> the retriever of a folder that `build` wrote.
    open: Callable[[Path, Passages, str], Retriever]
    #: Whether a `build` that was cut off goes on where it was.
    resumes: bool


def _bm25() -> IndexKind:
    def build(passages: Passages, to: PartialFolder, settings: BM25Config, memory: int, progress: ProgressCallback) -> BuildDetails:
        return BM25Index.build(passages, to.folder, **settings.model_dump(), memory=memory, progress=progress)

    def open_(folder: Path, passages: Passages, device: str) -> Retriever:  # noqa: ARG001
        return BM25Index.open(folder, passages)

    return IndexKind(BM25Config, build, open_, resumes=False)


def _dense(layout: Layout) -> IndexKind:
    # Imported when they are needed: the libraries of encoders take seconds to import, and may not be installed.
    def build(passages: Passages, to: PartialFolder, settings: DenseConfig, memory: int, progress: ProgressCallback) -> BuildDetails:
        from stepladder.retrieval.index.dense import DenseIndex

        return DenseIndex.build(passages, to, layout, settings, memory=memory, progress=progress)

    def open_(folder: Path, passages: Passages, device: str) -> Retriever:
        from stepladder.retrieval.index.dense import DenseIndex

        return DenseIndex.open(folder, passages, device=device)

    return IndexKind(DenseConfig, build, open_, resumes=True)


def _milvus() -> IndexKind:
    def build(passages: Passages, to: PartialFolder, settings: MilvusConfig, memory: int, progress: ProgressCallback) -> BuildDetails:
        from stepladder.retrieval.index.milvus import build_milvus

        return build_milvus(passages, to, settings, memory=memory, progress=progress)

    def open_(folder: Path, passages: Passages, device: str) -> Retriever:
        from stepladder.retrieval.index.milvus import open_milvus

        return open_milvus(folder, passages, device=device)

    return IndexKind(MilvusConfig, build, open_, resumes=True)


INDEX_KINDS: Mapping[str, IndexKind] = {
    "bm25": _bm25(),
    **{layout.value: _dense(layout) for layout in Layout},
    "milvus": _milvus(),
}


def parse_kinds(name: str) -> dict[str, IndexKind]:
    """The kinds that a name stands for; several are joined by +."""
    names = name.split("+")
    for each in names:
        if each not in INDEX_KINDS:
            raise unknown_name("kind of index", each, INDEX_KINDS)
    if len(set(names)) < len(names):
        raise StepladderError(f"the kind '{name}' has a part twice")
    if len(set(names) - {"bm25"}) > 1:
        raise StepladderError(f"the kind '{name}' has several indexes of embeddings; one of them goes with bm25")
    return {each: INDEX_KINDS[each] for each in names}


def split_settings(kinds: Mapping[str, IndexKind], given: Mapping[str, object]) -> dict[str, Config]:
    """The settings of each kind, from all that were given together."""
    known = {name for kind in kinds.values() for name in kind.settings.model_fields}
    for name in given:
        if name not in known:
            raise unknown_name(f"setting of the kind {'+'.join(kinds)}", name, known)
    return {
        name: kind.settings.read({each: given[each] for each in kind.settings.model_fields if each in given})
        for name, kind in kinds.items()
    }
