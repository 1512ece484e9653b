"""The search server held to its own schema: schemathesis makes requests of it, good and bad, and checks every answer.

What the schema allows must be answered with 200 and in the declared shape, what it forbids must be refused with a
declared status, and nothing may be a 5xx. The same requests are made on every run.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import schemathesis

from stepladder.core.trace import Passage
from stepladder.retrieval.index.bm25 import BM25Index
from stepladder.serve.search.search_server import SearchRequest
from stepladder.serve.server_configs import ServerConfig
from tests.support.fuzzing import fuzz
from tests.support.samples import PASSAGES
from tests.support.search_servers import TOWER, HeldRetriever, running, spoken, until

#: Small, so that what lies beyond a limit is made quickly.
LIMITS = {"max_queries": 6, "max_topk": 5, "max_waiting": 1000}
TOKEN = "open-sesame"


@pytest.fixture(scope="module")
def index() -> BM25Index:
    return BM25Index.from_passages(PASSAGES)


@pytest.mark.parametrize("token", ["", TOKEN])
def test_the_server_does_what_its_schema_says(index: BM25Index, token: str) -> None:
    with running(index, **LIMITS, **({"token": token} if token else {})) as server:
        found = fuzz(server, token)
    assert found.problems == []
    for label in ("POST /retrieve", "GET /health", "GET /info", "GET /metrics"):
        assert found.statuses[label, 200] > 0
        assert found.statuses[label, 405] > 0
        assert (found.statuses[label, 401] > 0) == (bool(token) and label != "GET /health")
    assert found.statuses["POST /retrieve", 200] > 20
    assert found.statuses["POST /retrieve", 422] > 20
    assert {status for _, status in found.statuses} <= {200, 401, 405, 422}


# --- Fuzzing finds what is wrong ----------------------------------------------------------------------------


def breaks(*_: object) -> Any:
    raise RuntimeError("a mistake in the server")


def test_a_server_that_breaks_is_found_out(index: BM25Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepladder.serve.search.search_server.write_reply", breaks)
    with running(index, **LIMITS) as server:
        found = fuzz(server, examples=1)
    assert any("POST /retrieve: Server error" in problem for problem in found.problems), found


def test_an_answer_of_another_shape_is_found_out(index: BM25Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepladder.serve.search.search_server.write_reply", lambda *_: b'{"results": []}')
    with running(index, **LIMITS) as server:
        found = fuzz(server, examples=1)
    assert any("POST /retrieve: Response violates schema" in problem for problem in found.problems), found


@pytest.mark.parametrize("limit", ["max_queries", "max_topk"])
@pytest.mark.parametrize("by", [1, -1])
def test_a_limit_that_is_not_kept_is_found_out(index: BM25Index, limit: str, by: int) -> None:
    kept = ServerConfig.read({**LIMITS, limit: LIMITS[limit] - by})
    with running(index, **LIMITS) as server:
        server.server.gate.api._main_model = SearchRequest.within(kept)
        found = fuzz(server, examples=1)
    wrong = "Valid data should have been accepted" if by > 0 else "Invalid data should have been rejected"
    assert any(wrong in problem for problem in found.problems), found


# --- What fuzzing does not reach ----------------------------------------------------------------------------


def test_every_other_refusal_is_declared_too() -> None:
    """Of a full queue, of a body that is too long or does not come, of a failed search, of a server that ends."""

    class Fragile(HeldRetriever):
        def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
            found = super().search(queries, k)
            return breaks() if "bad" in queries else found

    retriever = Fragile()
    limits = {"max_queries": 2, "max_waiting": 2, "max_body_bytes": 500, "body_seconds": 0.2}
    with running(retriever, **limits) as server, ThreadPoolExecutor(2) as pool:
        declared = schemathesis.openapi.from_url(f"{server.url}/openapi.json")["/retrieve"]["POST"]
        good = pool.submit(server.ask, "first")
        assert retriever.begun.wait(15)
        failed = pool.submit(server.ask, "a", "bad")
        until(lambda: server.metric("stepladder_queue_length") == 2)
        replies = {
            429: server.ask("c"),
            413: server.client.post("/retrieve", content=b"x" * 501),
            408: spoken(server, b'POST /retrieve HTTP/1.1\r\nHost: here\r\nContent-Length: 99\r\n\r\n{"queries"'),
        }
        server.server.drain()
        replies[503] = server.ask(TOWER)
        retriever.go.set()
        replies |= {200: good.result(), 500: failed.result()}
    for status, reply in replies.items():
        assert reply.status_code == status
        declared.validate_response(reply)
