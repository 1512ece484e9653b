"""An index of a Pyserini or Anserini server, such as a BM25 index of Lucene.

In: URLs of its search endpoint, and queries. Out: passages, with the server's scores.

    python -m pyserini.server.rest --port 8081
    stepladder index search http://localhost:8081/v1/INDEX/search "who designed the tower?"

    GET /v1/INDEX/search?query=...&hits=3
    -> {"candidates": [{"docid": "7", "score": 9.1, "doc": "\\"Title\\"\\nText" or {"title": ..., "text": ...}}, ...]}

`{INDEX}` is the name of a prebuilt index, or a path on the server. The server takes one query per request, so the
queries of a batch are sent over several connections.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode, urlsplit

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Passage
from stepladder.core.unicode import replace_surrogates
from stepladder.retrieval.base import check_search
from stepladder.retrieval.remote.client import RemoteRetriever
from stepladder.retrieval.remote.protocol import BadReply, keep_best, read_document

_ENDPOINT = "/search"
#: Queries are part of the URL, whose length servers limit.
_MAX_CHARACTERS = 2000
#: Where documents have their text; others are searched for the first field that is a text.
_TEXTS = ("contents", "text", "body", "segment", "passage", "content")


def is_pyserini(urls: Sequence[str]) -> bool:
    """Whether the URLs are search endpoints of Pyserini; raises if only some are."""
    found = {urlsplit(url).path.rstrip("/").endswith(_ENDPOINT) for url in urls}
    if len(found) > 1:
        raise StepladderError(
            "servers of two protocols were joined by a comma, which is for equal servers; join them by + to fuse them"
        )
    return found == {True}


class PyseriniRetriever(RemoteRetriever):
    """Searches an index through Pyserini's REST server. Thread-safe."""

    endpoint = f"GET {_ENDPOINT}"

    def __init__(self, urls: str | Sequence[str], **options: Any) -> None:
        """`urls`: the search endpoints, http://host:8081/v1/INDEX/search. `options` as of `RemoteRetriever`."""
        given = [urls] if isinstance(urls, str) else urls
        super().__init__([url.strip().rstrip("/").removesuffix(_ENDPOINT) for url in given], **options)
        self._pool = ThreadPoolExecutor(self.concurrency)

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        """For each query, in order, up to k passages with their scores, best first."""
        check_search(queries, k)
        return list(self._pool.map(lambda query: self._search(query, k), queries))

    def _search(self, query: str, k: int) -> tuple[Passage, ...]:
        query = replace_surrogates(query)[:_MAX_CHARACTERS]
        if not query.strip():  # the server refuses it
            return ()
        path = f"{_ENDPOINT}?{urlencode({'query': query, 'hits': k})}"
        host, reply = self._call("GET", path, passages=k)
        if reply.status_code != HTTPStatus.OK:
            raise self._error(host, reply)
        try:
            candidates = json.loads(reply.content)["candidates"]
            found = [read_document(_document(each["doc"]), each["docid"], each.get("score")) for each in candidates]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            start = reply.content[:200].decode("utf-8", "replace")
            raise BadReply(
                f"{host.url}{_ENDPOINT}: not a reply of Pyserini ({type(error).__name__}: {error}): {start!r}"
            ) from error
        return keep_best(found, k)

    def info(self) -> dict[str, Any] | None:
        """None: the server does not describe its index."""
        return None

    def close(self) -> None:
        """Close the connections and stop retrying."""
        super().close()
        self._pool.shutdown(cancel_futures=True)


def _document(stored: object) -> dict[str, Any]:
    """A stored document: its contents, an object of several fields, or such an object as text."""
    if stored is None:
        raise TypeError("the index does not store its documents (pyserini.index.lucene --storeRaw)")
    if isinstance(stored, str) and stored.lstrip().startswith("{"):
        try:
            stored = json.loads(stored)
        except ValueError:
            return {"contents": stored}
    if not isinstance(stored, dict):
        return {"contents": stored}
    name = next((name for name in (*_TEXTS, *stored) if isinstance(stored.get(name), str) and name != "title"), None)
    if name is None:
        raise TypeError(f"a document has no text, only {', '.join(map(str, stored)) or 'nothing'}")
    return stored if name == "contents" else {"title": stored.get("title"), "text": stored[name]}
