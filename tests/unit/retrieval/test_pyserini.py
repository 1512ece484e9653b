"""An index behind Pyserini's REST server: a stand-in that answers as its routes do (pyserini/server/rest)."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from stepladder.cli import main
from stepladder.core.errors import BackendDown, StepladderError
from stepladder.retrieval import check_retriever
from stepladder.retrieval.factory import load_retriever, retriever_info
from stepladder.retrieval.index.bm25 import BM25Index
from stepladder.retrieval.remote.protocol import BadReply
from tests.support.samples import PASSAGES
from tests.support.search_servers import TARN, TOWER

#: How documents are stored, and thus sent: contents alone, several fields, or the raw JSON of an older version.
FORMS = {
    "contents": lambda found: f'"{found.title}"\n{found.text}',
    "fields": lambda found: {"title": found.title, "text": found.text, "url": "u"},
    "raw": lambda found: json.dumps({"id": found.id, "contents": f'"{found.title}"\n{found.text}'}),
}


@contextmanager
def pyserini(form: Any = FORMS["contents"], replies: dict[str, tuple[int, Any]] | None = None) -> Iterator[str]:
    """The URL of its index `wiki`."""
    index = BM25Index.from_passages(PASSAGES)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            asked = {name: values[0] for name, values in parse_qs(url.query).items()}
            status, body = self.answer(unquote(url.path), asked)
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def answer(self, path: str, asked: dict[str, str]) -> tuple[int, Any]:
            if path != "/v1/wiki/search":
                return 400, {"error": f"Index not available: {path}"}
            if not asked.get("query", "").strip():
                return 400, {"error": "Parameter 'query' is required"}
            if asked["query"] in (replies or {}):
                return (replies or {})[asked["query"]]
            found = index.search([asked["query"]], int(asked["hits"]))[0]
            candidates = [
                {"docid": each.id, "score": each.score, "rank": rank, "doc": form(each)}
                for rank, each in enumerate(found, start=1)
            ]
            return 200, {"api": "v1", "index": "wiki", "query": {"text": asked["query"]}, "candidates": candidates}

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/wiki/search"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_its_passages_and_scores_are_read(form: Any) -> None:
    expected = BM25Index.from_passages(PASSAGES).search([TOWER, TARN, "no such words"] * 20, 32)
    with pyserini(form) as url, closing(load_retriever(url)) as retriever:
        assert retriever.search([TOWER, TARN, "no such words"] * 20, 32) == expected


def test_it_keeps_the_contract_and_is_a_location_like_others(capsys: pytest.CaptureFixture[str]) -> None:
    with pyserini() as url:
        with closing(load_retriever(url)) as retriever:
            check_retriever(retriever, [TOWER, TARN])
        assert retriever_info(url) is None
        assert main(["index", "search", url, TOWER, "-k", "1"]) == 0
        assert PASSAGES[0].id in capsys.readouterr().out


def test_what_it_refuses_is_said() -> None:
    replies = {
        "html": (200, b"<html>"),
        "none": (200, {"candidates": [{"docid": "1", "doc": None}]}),
        "gone": (404, {}),
    }
    with pyserini(replies=replies) as url:
        with closing(load_retriever(url)) as retriever:
            with pytest.raises(BadReply, match="not a reply of Pyserini"):
                retriever.search(["html"], 1)
            with pytest.raises(BadReply, match="does not store its documents"):
                retriever.search(["none"], 1)
            with pytest.raises(BackendDown, match="has no GET /search"):
                retriever.search(["gone"], 1)
        unknown = pytest.raises(StepladderError, match="replied 400: Index not available: /v1/other/search")
        with closing(load_retriever(url.replace("wiki", "other"))) as retriever, unknown:
            retriever.search([TOWER], 1)
        with pytest.raises(StepladderError, match="joined by a comma, which is for equal servers"):
            load_retriever(f"{url},http://localhost:8000")
