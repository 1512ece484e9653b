"""Open whatever a user names to search in: an index folder, or the URLs of search servers.

In: the name ("wiki-index", "http://node1:8000,http://node2:8000"), and a cross-encoder, if what is found shall be put
in order anew. Out: a retriever; and, for whoever wants to know whether two names mean the same, what they hold.
"""

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.core.io.auth_token import TOKEN_VARIABLE
from stepladder.core.io.files import expand_path
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.index.build import open_index
from stepladder.retrieval.index.manifest import IndexInfo, index_info, read_info

if TYPE_CHECKING:
    from stepladder.retrieval.remote.client import RemoteRetriever


def is_url(place: str | Path) -> bool:
    """Whether a place to search in is a server, or several, rather than a folder."""
    return str(place).startswith(("http://", "https://"))


def absolute_location(place: str) -> str:
    """The place by a name that holds wherever a command is typed."""
    return place if is_url(place) else str(expand_path(place).absolute())


def open_retriever(place: str, *, device: str = "cpu", rerank: str | None = None) -> Retriever:
    """The index in a folder, or behind URLs (joined by commas; `STEPLADDER_TOKEN` is their token).

    Encoders work on the `device`; `rerank` is a cross-encoder.
    """
    return with_reranker(_servers(place) if is_url(place) else open_index(expand_path(place), device=device), rerank, device)


def with_reranker(retriever: Retriever, model: str | None, device: str) -> Retriever:
    """The retriever with a cross-encoder on top, if there is one."""
    if model is None:
        return retriever
    # Imported here because its libraries take seconds to import, and may not be installed.
    from stepladder.retrieval.rerank import RerankedRetriever

    return RerankedRetriever(retriever, model, device=device)


def retriever_info(place: str) -> IndexInfo | None:
    """What a place holds; None for a server that does not tell."""
    if not is_url(place):
        return index_info(expand_path(place))
    with closing(_servers(place)) as servers:
        told = servers.info()
    return None if told is None else read_info(told.get("index"))


def _servers(urls: str) -> "RemoteRetriever":
    from stepladder.retrieval.remote.client import RemoteRetriever

    return RemoteRetriever([url.strip() for url in urls.split(",") if url.strip()], token=os.environ.get(TOKEN_VARIABLE))
