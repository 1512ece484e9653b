"""Search-R1's protocol: encoding and decoding of requests and replies. Pure functions.

    POST /retrieve {"queries": ["..."], "topk": 3, "return_scores": true}
    -> {"result": [[{"document": {"id": "7", "contents": "\\"Title\\"\\nText"}, "score": 9.1}, ...], ...]}

One list per query, best first; without `return_scores` a passage is its document alone. Server and client share these
functions; requests are read by the server's `SearchRequest`. Replies of other servers with this protocol, which may
lack ids or scores, can be read too.
"""

import json
import math
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Passage
from stepladder.core.unicode import replace_surrogates

#: Longer queries are degenerate output of a policy; encoders read a fraction of this.
MAX_QUERY_CHARACTERS = 8192
#: Candidates of a server that reranks, at least.
MIN_RERANKED = 10
#: The passages of one query as JSON: (document, score) each.
EncodedHits = tuple[tuple[bytes, bytes], ...]


class BadReply(StepladderError):
    """A reply that does not follow the protocol."""


def write_request(queries: Iterable[str], k: int) -> bytes:
    """A request for passages with scores."""
    texts = [replace_surrogates(query)[:MAX_QUERY_CHARACTERS] for query in queries]
    # Search-R1's server with a reranker has two numbers, and defaults of 10 and 3.
    numbers = {"topk": k, "topk_retrieval": max(k, MIN_RERANKED), "topk_rerank": k}
    return json.dumps({"queries": texts, **numbers, "return_scores": True}).encode()


def encode_hits(passages: Sequence[Passage]) -> EncodedHits:
    """Passages in wire format. A non-finite score is an error: JSON cannot express it."""
    return tuple(
        (
            f'{{"id": {json.dumps(passage.id)}, "contents": {json.dumps(_contents(passage))}}}'.encode(),
            _score(passage.score),
        )
        for passage in passages
    )


def write_reply(results: Iterable[EncodedHits], with_scores: bool) -> bytes:
    """The reply to a request, from the encoded hits of each query.

    >>> found = encode_hits([Passage("7", "Orm", "A tower.", 2.5)])
    >>> write_reply([found, ()], with_scores=False).decode()
    '{"result": [[{"id": "7", "contents": "\\\\"Orm\\\\"\\\\nA tower."}], []]}'
    """
    if with_scores:
        lists = (b", ".join(b'{"document": %b, "score": %b}' % pair for pair in found) for found in results)
    else:
        lists = (b", ".join(document for document, _ in found) for found in results)
    return b'{"result": [%b]}' % b", ".join(b"[%b]" % each for each in lists)


def read_reply(body: bytes, queries: int, k: int) -> list[tuple[Passage, ...]]:
    """The first k passages in the reply to that many queries, in its order; raises `BadReply` if it is invalid.

    >>> found = b'{"document": {"id": 7, "contents": "Orm\\\\nA tower."}, "score": 2.5}'
    >>> read_reply(b'{"result": [[%b]]}' % found, queries=1, k=3)
    [(Passage(id='7', title='Orm', text='A tower.', score=2.5),)]
    """
    try:
        results = json.loads(body)["result"]
        if len(results) != queries:
            raise BadReply(f"{queries} queries got {len(results)} results")
        return [keep_best(map(_passage, found), k) for found in results]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        start = body[:200].decode("utf-8", "replace")
        raise BadReply(
            f"the reply does not follow Search-R1's protocol ({type(error).__name__}: {error}): {start!r}"
        ) from error


def _score(score: float | None) -> bytes:
    if score is None:
        return b"null"
    if not math.isfinite(score):
        raise StepladderError(f"a passage has the score {score}")
    return repr(float(score)).encode()


def _contents(passage: Passage) -> str:
    return f'"{" ".join(passage.title.splitlines())}"\n{passage.text}'


def keep_best(passages: Iterable[Passage], k: int) -> tuple[Passage, ...]:
    """The first k passages, each once. Servers of web searches send more, and some of them twice."""
    kept: dict[str, Passage] = {}
    for passage in passages:
        kept.setdefault(passage.id, passage)
    return tuple(kept.values())[:k]


def _passage(item: dict[str, Any]) -> Passage:
    document, score = (item["document"], item.get("score")) if "document" in item else (item, None)
    return read_document(document, document.get("id"), score)


def read_document(document: dict[str, Any], key: object, score: Any) -> Passage:
    """A passage from `contents`, or `title` and `text`. Without a key, its id is a hash of its text."""
    if "contents" in document:
        contents = _text(document["contents"])
        title, newline, text = contents.partition("\n")
        title, text = (_unquoted(title.strip()), text) if newline else ("", contents)
    else:
        title, text = _text(document.get("title") or ""), _text(document["text"])
        contents = f"{title}\n{text}"
    if key is None:
        key = blake2b(contents.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    score = None if score is None else float(score)
    return Passage(str(key), title, text, score if score is not None and math.isfinite(score) else None)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {type(value).__name__}")
    return value


def _unquoted(title: str) -> str:
    return title[1:-1] if len(title) >= 2 and title[0] == title[-1] == '"' else title
