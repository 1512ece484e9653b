"""Open a retriever by location: an index folder, the URLs of search servers, or several of these, fused.

In: the location, and optionally how to fuse and a cross-encoder for reranking. Out: a retriever, or the manifest of its
index.

    wiki-index                                  an index folder
    http://node1:8000,http://node2:8000         equal servers with Search-R1's protocol, as `stepladder serve`
    http://node:8081/v1/wiki/search             an index of a Pyserini or Anserini server
    bm25-index+wiki-index+http://node:8000      several, whose results are fused
"""

from contextlib import ExitStack, closing
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer

from stepladder.core.config import Config
from stepladder.core.io.auth_token import TOKEN_VARIABLE
from stepladder.core.io.files import expand_path
from stepladder.core.io.known_servers import server_key
from stepladder.models import absolute_if_folder
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.hybrid import Fusion, FusionConfig, Weights
from stepladder.retrieval.index.build import open_index
from stepladder.retrieval.index.manifest import IndexInfo, index_info, read_info

if TYPE_CHECKING:
    from stepladder.retrieval.remote.client import RemoteRetriever

#: Seconds that a server may take for a reply.
TIMEOUT = 30.0


def is_url(location: str | Path) -> bool:
    """Whether a location is one or more servers, not a folder."""
    return str(location).startswith(("http://", "https://"))


def split_location(location: str) -> list[str]:
    """The locations that are fused, joined by +. A folder may have a + in its name.

    >>> split_location("bm25-index+http://node1:8000,http://node2:8000")
    ['bm25-index', 'http://node1:8000,http://node2:8000']
    """
    if "+" not in location or expand_path(location).exists():
        return [location]
    return [part.strip() for part in location.split("+") if part.strip()]


def absolute_location(location: str) -> str:
    """The location, independent of the working directory."""
    parts = split_location(location)
    return "+".join(part if is_url(part) else str(expand_path(part).absolute()) for part in parts)


def load_retriever(
    location: str,
    *,
    device: str = "cpu",
    rerank: str | None = None,
    fusion: FusionConfig | None = None,
    timeout: float | None = None,
) -> Retriever:
    """The index at a location; servers get the token in `STEPLADDER_TOKEN`.

    Encoders, and FAISS if it has GPU support, run on the `device`; `rerank` is a cross-encoder. Several locations are
    fused, by ranks unless `fusion` says otherwise; for a single one it applies to an index of several kinds. `timeout`:
    seconds for a server's reply.
    """
    parts = split_location(location)
    if len(parts) == 1:
        retriever = _open(parts[0], device, timeout, fusion)
    else:
        with ExitStack() as opened:
            found = list[Retriever]()
            for part in parts:
                found.append(_open(part, device, timeout))
                opened.callback(found[-1].close)
            retriever = (fusion or FusionConfig()).fuse(found, "ranks")
            opened.pop_all()
    return with_reranker(retriever, rerank, device)


def _open(location: str, device: str, timeout: float | None, fusion: FusionConfig | None = None) -> Retriever:
    if is_url(location):
        if fusion is not None:
            fusion.refuse(location)
        return _servers(location, timeout)
    return open_index(expand_path(location), device=device, fusion=fusion)


class SearchConfig(Config):
    """Retrieval settings."""

    #: Passages per search.
    k: int = Field(default=3, ge=1)
    #: A cross-encoder (folder or hub name) that reranks the results.
    rerank: Annotated[str, AfterValidator(absolute_if_folder)] | None = None
    #: Device of the query encoder. By default the GPU is left to the models in training.
    device: str = "cpu"
    #: Seconds that a search server may take for a reply; null is 30.
    timeout: float | None = Field(default=None, gt=0)
    #: How several indexes, or the kinds of one, are joined: by ranks or scores. null: ranks; scores within an index.
    fusion: Fusion | None = None
    #: One weight per index, in their order.
    weights: Weights | None = None
    #: The constant of rank fusion; null is 60.
    rank_constant: int | None = Field(default=None, ge=0)

    @model_serializer(mode="wrap")
    def _without_unset(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Plain data without what is not set, except for the cross-encoder, which is always listed."""
        return {name: each for name, each in serialize(self).items() if each is not None or name == "rerank"}

    def open(self, location: str) -> Retriever:
        """The index at a location, with these settings."""
        fusion = FusionConfig(fusion=self.fusion, weights=self.weights, rank_constant=self.rank_constant)
        return load_retriever(location, device=self.device, rerank=self.rerank, fusion=fusion, timeout=self.timeout)


def with_reranker(retriever: Retriever, model: str | None, device: str) -> Retriever:
    """The retriever, reranked by a cross-encoder if one is given."""
    if model is None:
        return retriever
    # Imported here: its libraries take seconds to import and may not be installed.
    from stepladder.retrieval.rerank import RerankedRetriever

    return RerankedRetriever(retriever, model, device=device)


def retriever_info(location: str) -> IndexInfo | None:
    """The manifest of a location's index; None for a server that does not report it."""
    found = [_info(part) for part in split_location(location)]
    infos = [info for info in found if info is not None]
    if len(infos) < len(found):
        return None
    return infos[0] if len(infos) == 1 else _joined(infos)


def _info(location: str) -> IndexInfo | None:
    if not is_url(location):
        return index_info(expand_path(location))
    with closing(_servers(location)) as servers:
        info = servers.info()
    return None if info is None else read_info(info.get("index"))


def _joined(infos: list[IndexInfo]) -> IndexInfo:
    """One manifest for several indexes. Indexes of one corpus keep its checksum."""
    checksums = list(dict.fromkeys(info.checksum for info in infos))
    same = len(checksums) == 1
    numbered = enumerate(infos, start=1)
    return IndexInfo(
        kind="+".join(info.kind for info in infos),
        passages=max(info.passages for info in infos) if same else sum(info.passages for info in infos),
        settings={f"{number}.{name}": value for number, info in numbered for name, value in info.settings.items()},
        source=" + ".join(dict.fromkeys(info.source for info in infos)),
        created=max(info.created for info in infos),
        checksum=checksums[0] if same else blake2b("+".join(checksums).encode(), digest_size=16).hexdigest(),
        files={f"{number}/{name}": size for number, info in enumerate(infos, 1) for name, size in info.files.items()},
    )


def _servers(urls: str, timeout: float | None = None) -> "RemoteRetriever":
    from stepladder.retrieval.remote.client import RemoteRetriever
    from stepladder.retrieval.remote.pyserini import PyseriniRetriever, is_pyserini

    separate = [url.strip() for url in urls.split(",") if url.strip()]
    kind = PyseriniRetriever if is_pyserini(separate) else RemoteRetriever
    token = server_key(TOKEN_VARIABLE, urls) or None
    return kind(separate, token=token, timeout=TIMEOUT if timeout is None else timeout)
