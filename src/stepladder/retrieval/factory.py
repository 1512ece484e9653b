"""Open a retriever by location: an index folder, or the URLs of search servers.

In: the location ("wiki-index", "http://node1:8000,http://node2:8000") and an optional cross-encoder for reranking.
Out: a retriever, or the manifest of its index.
"""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.core.io.auth_token import TOKEN_VARIABLE
from stepladder.core.io.files import expand_path
from stepladder.core.io.known_servers import server_key
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.index.build import open_index
from stepladder.retrieval.index.manifest import IndexInfo, index_info, read_info

if TYPE_CHECKING:
    from stepladder.retrieval.remote.client import RemoteRetriever


def is_url(location: str | Path) -> bool:
    """Whether a location is one or more servers, not a folder."""
    return str(location).startswith(("http://", "https://"))


def absolute_location(location: str) -> str:
    """The location, independent of the working directory."""
    return location if is_url(location) else str(expand_path(location).absolute())


def load_retriever(location: str, *, device: str = "cpu", rerank: str | None = None) -> Retriever:
    """The index in a folder, or behind comma-separated URLs (with the token in `STEPLADDER_TOKEN`).

    Encoders run on the `device`; `rerank` is a cross-encoder.
    """
    retriever = _servers(location) if is_url(location) else open_index(expand_path(location), device=device)
    return with_reranker(retriever, rerank, device)


def with_reranker(retriever: Retriever, model: str | None, device: str) -> Retriever:
    """The retriever, reranked by a cross-encoder if one is given."""
    if model is None:
        return retriever
    # Imported here: its libraries take seconds to import and may not be installed.
    from stepladder.retrieval.rerank import RerankedRetriever

    return RerankedRetriever(retriever, model, device=device)


def retriever_info(location: str) -> IndexInfo | None:
    """The manifest of a location's index; None for a server that does not report it."""
    if not is_url(location):
        return index_info(expand_path(location))
    with closing(_servers(location)) as servers:
        info = servers.info()
    return None if info is None else read_info(info.get("index"))


def _servers(urls: str) -> "RemoteRetriever":
    from stepladder.retrieval.remote.client import RemoteRetriever

    separate = [url.strip() for url in urls.split(",") if url.strip()]
    return RemoteRetriever(separate, token=server_key(TOKEN_VARIABLE, urls) or None)
