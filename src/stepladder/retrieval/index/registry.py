"""The index kinds by name, how each is built and opened, and the memory limit of builds.

A new kind is a module with an `IndexKind` and one line in `INDEX_KINDS`. Kinds joined by + ("bm25+hnsw") share the
passages of one folder, and their results are fused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError, unknown_name
from stepladder.core.io.files import PartialFolder
from stepladder.core.registry import Registry
from stepladder.retrieval.base import ProgressCallback, Retriever
from stepladder.retrieval.corpus.passage_store import Passages, PassageStore
from stepladder.retrieval.index.manifest import BuildDetails

#: Default memory limit of an index build, in bytes.
DEFAULT_MEMORY = 4 * 10**9


#: (passages, target folder, settings, memory, progress) -> build details for the manifest.
Builder = Callable[[Passages, PartialFolder, Any, int, ProgressCallback], BuildDetails]


@dataclass(frozen=True, slots=True)
class IndexKind:
    """How one kind of index is built and opened."""

    #: The settings of a build.
    config: type[Config]
    #: Writes its own files. None for an index of others, which is imported.
    build: Builder | None
    #: (folder, passages, device) -> the retriever of a folder written by `build`.
    open: Callable[[Path, Passages, str], Retriever]
    #: Whether it searches embeddings, not terms.
    dense: bool
    #: Whether an interrupted `build` can be resumed.
    resumable: bool
    #: The passages of a folder.
    passages: Callable[[Path], Passages] = PassageStore


INDEX_KINDS: Registry[IndexKind] = Registry(
    "index kind",
    {
        "bm25": ("stepladder.retrieval.index.bm25:BM25", "stemmed terms; needs no model"),
        "flat": ("stepladder.retrieval.index.dense:FLAT", "embeddings, exact search"),
        "hnsw": ("stepladder.retrieval.index.dense:HNSW", "embeddings, graph of neighbors: fast, in memory"),
        "ivfpq": ("stepladder.retrieval.index.dense:IVFPQ", "compressed embeddings with exact reranking: low memory"),
        "milvus": ("stepladder.retrieval.index.milvus:MILVUS", "embeddings in Milvus, in a file or a cluster"),
        "faiss": ("stepladder.retrieval.imported.faiss_import:FAISS", "a FAISS file of others, by `index import`"),
    },
)


def parse_kinds(name: str) -> dict[str, IndexKind]:
    """The index kinds in a name such as "bm25+hnsw"."""
    kinds = {each: INDEX_KINDS.get(each) for each in name.split("+")}
    if len(kinds) < len(name.split("+")):
        raise StepladderError(f"the index kind '{name}' has a duplicate part")
    if sum(kind.dense for kind in kinds.values()) > 1:
        raise StepladderError(f"the index kind '{name}' has several embedding indexes; combine one of them with bm25")
    return kinds


def builders(kinds: Mapping[str, IndexKind]) -> dict[str, Builder]:
    """How each kind is built; raises for one that is imported."""
    found = {name: kind.build for name, kind in kinds.items() if kind.build is not None}
    if len(found) < len(kinds):
        raise StepladderError(
            "an index of the kind 'faiss' is not built, but imported: stepladder index import FILE --corpus CORPUS "
            "--encoder NAME --out DIR. To combine it with others, join their folders: --index DIR+DIR"
        )
    return found


def split_settings(kinds: Mapping[str, IndexKind], settings: Mapping[str, object]) -> dict[str, Config]:
    """The settings of each kind, from the settings of all kinds together."""
    known = {name for kind in kinds.values() for name in kind.config.model_fields}
    for name in settings:
        if name not in known:
            raise unknown_name(f"setting of the index kind {'+'.join(kinds)}", name, known)
    return {
        name: kind.config.read({each: settings[each] for each in kind.config.model_fields if each in settings})
        for name, kind in kinds.items()
    }
