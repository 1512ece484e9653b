"""The search server, asked over real connections on loopback: protocol, merging, limits, bad input, ending."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from stepladder.cli.serve import serve_command
from stepladder.core.errors import StepladderError
from stepladder.core.trace import Passage
from stepladder.retrieval.index.bm25 import BM25Index
from stepladder.retrieval.index.build import build_index
from stepladder.serve.http.run_server import listen
from stepladder.serve.search.search_server import make_app, serve
from stepladder.serve.server_configs import ServerConfig
from tests.support.samples import PASSAGES, WordRetriever
from tests.support.search_servers import INFO, POST, TARN, TOWER, HeldRetriever, Running, running, spoken, until


@pytest.fixture(scope="module")
def index() -> BM25Index:
    return BM25Index.from_passages(PASSAGES)


@pytest.fixture(scope="module")
def shared(index: BM25Index) -> Iterator[Running]:
    """One server for the tests that only ask."""
    with running(index) as server:
        yield server


# --- The protocol ---------------------------------------------------------------------------------------


def test_a_search_by_http_is_the_search_in_process(shared: Running, index: BM25Index) -> None:
    queries = [TOWER, "nothing of the kind", TARN]
    expected = [
        [
            {"document": {"id": found.id, "contents": f'"{found.title}"\n{found.text}'}, "score": found.score}
            for found in each
        ]
        for each in index.search(queries, 2)
    ]
    reply = shared.ask(*queries, topk=2, return_scores=True)
    assert reply.headers["content-type"] == "application/json"
    assert reply.json() == {"result": expected}
    without = shared.ask(*queries, topk=2, return_scores=False).json()
    assert without == {"result": [[item["document"] for item in each] for each in expected]}
    assert shared.ask(*queries, topk=2).json() == without


def test_a_client_as_search_r1_writes_it_reads_the_same_passages(shared: Running, index: BM25Index) -> None:
    """It posts whole batches, takes "result", and makes of the contents' first line a title, of the others a text."""
    queries, k = [TOWER, TARN, "nothing of the kind", "Velm Tarn Orm"], 3
    payload = {"queries": queries, "topk": k, "return_scores": True}
    results = httpx2.post(f"{shared.url}/retrieve", json=payload, trust_env=False).json()["result"]
    read = []
    for result in results:
        contents = [item["document"]["contents"] for item in result]
        read.append([(content.split("\n")[0], "\n".join(content.split("\n")[1:])) for content in contents])
    assert read == [[(f'"{found.title}"', found.text) for found in each] for each in index.search(queries, k)]
    assert sum(map(len, read)) >= 5


@pytest.mark.parametrize("form", [{}, {"topk": None}, {"topk": 0}, {"topk": 3.0}, {"topk": "3"}, {"topk_rerank": 3}])
def test_the_forms_of_topk_that_search_r1_takes(shared: Running, form: dict[str, Any]) -> None:
    three = shared.ask("Velm Tarn Orm", topk=3).json()
    assert len(three["result"][0]) == 3
    assert shared.ask("Velm Tarn Orm", **form).json() == three
    assert shared.ask("Velm Tarn Orm", topk=2, topk_rerank=3).json()["result"][0] == three["result"][0][:2]


def test_the_forms_of_return_scores(shared: Running) -> None:
    with_scores, without = (shared.ask(TOWER, return_scores=each).json() for each in (True, False))
    assert with_scores != without
    assert all(shared.ask(TOWER, return_scores=each).json() == with_scores for each in (1, "true"))
    assert all(shared.ask(TOWER, return_scores=each).json() == without for each in (0, "false", None))


def test_a_grpo_batch_of_search_r1_in_one_request(shared: Running, index: BM25Index) -> None:
    """512 questions x 5 rollouts, some of them degenerate, by its client's own way to ask and to read."""
    queries = [f"{(TOWER, TARN)[number % 2]} {number % 512}" for number in range(2559)] + ["tower \u5854 " * 5000]
    payload = {"queries": queries, "topk": 3, "return_scores": True}
    results = httpx2.post(f"{shared.url}/retrieve", json=payload, trust_env=False, timeout=60).json()["result"]
    assert len(results) == 2560
    texts = [[item["document"]["contents"].split("\n")[0] for item in result] for result in results]
    expected = index.search([query[:8192] for query in queries], 3)
    assert texts == [[f'"{found.title}"' for found in each] for each in expected]
    assert shared.metric("stepladder_truncated_total") >= 1


def test_refused_requests_are_logged_for_clients_that_do_not_look(
    index: BM25Index, caplog: pytest.LogCaptureFixture
) -> None:
    with running(index, max_queries=2) as server:
        for _ in range(3):
            server.ask("a", "b", "c")
    assert [record.getMessage() for record in caplog.records if "refused" in record.getMessage()] == [
        "refused a request to /retrieve: 422: queries: List should have at most 2 items after validation, not 3"
    ]


def test_no_queries_no_results(shared: Running) -> None:
    assert shared.ask().json() == {"result": []}


def test_health_info_and_metrics(shared: Running) -> None:
    assert shared.client.get("/health").json() == {"status": "ok"}
    told = shared.client.get("/info").json()
    assert told["index"] == INFO
    assert told["limits"]["max_queries"] == 4096
    assert "token" not in told["limits"]
    schema = shared.client.get("/openapi.json").json()
    asked = schema["components"]["schemas"]["SearchRequest"]["properties"]
    assert asked["queries"]["maxItems"] == 4096
    assert asked["topk"]["anyOf"][0] == {"type": "integer", "minimum": 0, "maximum": 100}
    before = shared.metric("stepladder_queries_total")
    shared.ask(TOWER, TARN)
    assert shared.metric("stepladder_queries_total") == before + 2
    assert shared.metric('stepladder_requests_total{status="200"}') > 0


def test_five_hundred_clients_at_once(shared: Running, index: BM25Index) -> None:
    """Each on a connection of its own, all of them open together, each with a query nobody else asks."""
    host, port = shared.url.removeprefix("http://").split(":")

    async def client(number: int) -> Any:
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps({"queries": [f"{TOWER} {number}"], "return_scores": True}).encode()
        writer.write(b"POST /retrieve HTTP/1.1\r\nHost: here\r\nConnection: close\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        reply = await reader.read()
        writer.close()
        return reply.partition(b"\r\n\r\n")

    async def crowd() -> list[Any]:
        return await asyncio.gather(*(client(number) for number in range(500)))

    replies = asyncio.run(crowd())
    assert {head[:12] for head, _, _ in replies} == {b"HTTP/1.1 200"}
    best = index.search([TOWER], 1)[0][0].id
    assert {json.loads(body)["result"][0][0]["document"]["id"] for _, _, body in replies} == {best}


# --- Merging --------------------------------------------------------------------------------------------


def test_what_waits_goes_together_and_equal_queries_once() -> None:
    retriever = HeldRetriever()
    with running(retriever) as server, ThreadPoolExecutor(12) as pool:
        first = pool.submit(server.ask, "first")
        assert retriever.begun.wait(15)
        others = [pool.submit(server.ask, TOWER, TARN, f"query {number % 5}") for number in range(10)]
        until(lambda: server.metric("stepladder_queue_length") == 7 and server.metric("stepladder_shared_total") == 23)
        retriever.go.set()
        assert first.result().status_code == 200
        assert {other.result().status_code for other in others} == {200}
        assert retriever.calls[0] == ["first"]
        assert sorted(retriever.calls[1]) == sorted([TOWER, TARN, *(f"query {number}" for number in range(5))])
        assert len(retriever.calls) == 2


def test_a_batch_is_never_larger_than_the_retriever_takes_and_has_one_k() -> None:
    asked: list[tuple[int, int]] = []

    class Watched(HeldRetriever):
        max_batch = 4

        def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
            asked.append((len(queries), k))
            return super().search(queries, k)

    retriever = Watched()
    with running(retriever) as server, ThreadPoolExecutor(3) as pool:
        replies = [pool.submit(server.ask, "first", topk=1)]
        assert retriever.begun.wait(15)
        for k in (2, 3):
            replies.append(pool.submit(server.ask, *(f"query {number}" for number in range(6)), topk=k))
            until(lambda k=k: server.metric("stepladder_queue_length") == 6 * (k - 1))  # type: ignore[misc]
        retriever.go.set()
        assert [len(reply.result().json()["result"][0]) for reply in replies] == [1, 2, 3]
    assert asked == [(1, 1), (4, 2), (2, 2), (4, 3), (2, 3)]


def test_as_many_calls_at_once_as_the_retriever_takes() -> None:
    together = threading.Barrier(3)

    class Wide(WordRetriever):
        concurrency, max_batch = 3, 1

        def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
            together.wait(15)  # broken unless three calls are under way at once
            return super().search(queries, k)

    with running(Wide()) as server:
        assert server.ask("one", "two", "three").status_code == 200


def test_results_are_kept_but_not_for_ever() -> None:
    retriever = WordRetriever()
    with running(retriever, cache_entries=2) as server:
        for query in ("a", "b", "a", "c", "a", "b"):  # b gives way to c: a was asked for since
            server.ask(query)
        assert retriever.calls == [["a"], ["b"], ["c"], ["b"]]
        assert server.metric("stepladder_cache_hits_total") == 2
        server.ask("a", topk=1)
        assert len(retriever.calls) == 5, "another k is another search"


def test_results_are_kept_only_as_far_as_they_fit() -> None:
    retriever = WordRetriever([Passage("p", "t", "x" * 10_000, 1.0)])
    with running(retriever, cache_bytes=30_000) as server:
        for query in ("a", "b", "a", "c", "a", "b"):  # two fit; b gives way to c: a was asked for since
            server.ask(query)
        assert retriever.calls == [["a"], ["b"], ["c"], ["b"]]
        assert 20_000 < server.metric("stepladder_cache_bytes") <= 30_000
    with running(retriever, cache_bytes=9_000) as server:
        server.ask("a")
        server.ask("a")
        assert retriever.calls[4:] == [["a"], ["a"]], "one that is larger than all of it is not kept"


# --- Limits ---------------------------------------------------------------------------------------------


def test_a_full_queue_says_when_to_come_back() -> None:
    retriever = HeldRetriever()
    with running(retriever, max_waiting=4, max_queries=4) as server, ThreadPoolExecutor(2) as pool:
        replies = [pool.submit(server.ask, "first")]
        assert retriever.begun.wait(15)
        replies.append(pool.submit(server.ask, "a", "b", "c"))
        until(lambda: server.metric("stepladder_queue_length") == 3)
        refused = server.ask("d", "e")
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert "3 queries are waiting" in refused.json()["detail"]
        assert server.metric("stepladder_queue_length") == 3
        retriever.go.set()
        assert {reply.result().status_code for reply in replies} == {200}
        assert server.ask("d", "e").status_code == 200


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"queries": ["a"] * 4097}, "queries: List should have at most 4096 items after validation, not 4097"),
        ({"queries": ["a"], "topk": 101}, "topk: Input should be less than or equal to 100, found 101"),
        ({"queries": ["a"], "topk": -1}, "topk: Input should be greater than or equal to 1, found -1"),
        ({"queries": ["a"], "topk": "101"}, "topk: Input should be less than or equal to 100, found"),
        ({"queries": ["a"], "topk": 10**30}, "topk: Input should be less than or equal to 100, found 1000000"),
        ({"queries": ["a"], "topk": True}, "topk: Input should be a valid integer, found True"),
        ({"queries": ["a"], "topk": 3.5}, "topk: Input should be a valid integer, found 3.5"),
        ({"queries": ["a"], "topk": "03"}, "topk: Input should be a valid integer, found '03'"),
        ({"queries": ["a"], "topk": [3]}, "topk: Input should be a valid integer, found [3]"),
        ({"queries": ["a"], "return_scores": 2}, "return_scores: Input should be a valid boolean, found 2"),
        ({"queries": ["a"], "return_scores": {}}, "return_scores: Input should be a valid boolean, found {}"),
        ({"queries": "a"}, "queries: Input should be a valid array, found 'a'"),
        ({"queries": None}, "queries: Input should be a valid array, found None"),
        ({"queries": ["a", 7]}, "queries[1]: Input should be a valid string, found 7"),
        ({"queries": [["a"]]}, "queries[0]: Input should be a valid string, found ['a']"),
        ({"query": "a"}, "queries: Field required"),
        (["a"], "the body: Input should be an object, found ['a']"),
        (None, "the body: Input should be an object, found None"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_the_reason(shared: Running, body: object, reason: str) -> None:
    reply = shared.client.post("/retrieve", content=json.dumps(body))
    assert reply.status_code == 422
    assert reason in reply.json()["detail"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the body: Invalid JSON: EOF"),
        (b"queries=a", "Invalid JSON"),
        (b'{"queries": ["a"]', "Invalid JSON"),
        (b'{"queries": ["a"]} x', "Invalid JSON: trailing characters"),
        (b'{"queries": ["a\0b"]}', "Invalid JSON"),
        (b'{"queries": ["\\ud800"}', "the body is not JSON"),
        (b'{"queries": ["a"], "topk": NaN}', "topk: Input should be a valid integer, found nan"),
        (b'{"queries": ["a"], "topk": -Infinity}', "found -inf"),
        (b'{"queries": ["a"], "topk": 1e400}', "topk: Input should be a valid integer, found inf"),
        (b'{"queries": ["a"], "topk": ' + b"9" * 5000 + b"}", "Invalid JSON: number out of range"),
        (b'{"queries": ["\xff"]}', "Invalid JSON: invalid unicode"),
        ('{"queries": ["a"]}'.encode("utf-16"), "Invalid JSON"),
        (b"\xef\xbb\xbf" + b'{"queries": ["a"]}', "Invalid JSON"),
        (b'{"queries": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "Invalid JSON: recursion limit exceeded"),
        (b'{"queries": ["\\ud800", ' + b"[" * 100_000 + b"]" * 100_000 + b"]}", "the body is not JSON"),
    ],
)
def test_what_is_not_json_is_refused_too(shared: Running, body: bytes, reason: str) -> None:
    reply = shared.client.post("/retrieve", content=body)
    assert reply.status_code == 422
    assert reason in reply.json()["detail"]


@pytest.mark.parametrize("query", [r"\ud800", r"tower \udfff", r"a\u0000b", "", "   ", r"\ud83d\ude80", "\u202e"])
def test_odd_queries_are_searched(shared: Running, query: str) -> None:
    body = f'{{"queries": ["{query}", "{TOWER}"], "something": "else"}}'.encode()
    reply = shared.client.post("/retrieve", content=body)
    assert reply.status_code == 200
    assert reply.json()["result"][1][0]["id"] == "p1"


def test_a_long_body_is_refused_also_when_it_comes_in_pieces(index: BM25Index) -> None:
    with running(index, max_body_bytes=1000) as server:
        parts = (b'{"queries": [' for _ in range(300))  # no length is announced
        for content in (b"x" * 1001, parts, b"x" * 20_000):
            reply = server.client.post("/retrieve", content=content)
            assert reply.status_code == 413
            assert "longer than 1,000 bytes" in reply.json()["detail"]
        assert server.ask(TOWER).status_code == 200


def test_a_body_that_does_not_come_is_not_waited_for(index: BM25Index) -> None:
    body = json.dumps({"queries": [TOWER]}).encode()
    with running(index, body_seconds=0.3) as server:
        stops = spoken(server, POST % len(body) + body[:5])
        drips = spoken(server, POST % len(body), *(bytes([each]) for each in body), pause=0.05)
        for reply in (stops, drips):
            assert reply.status_code == 408
            assert reply.json() == {"detail": "the body was not received within 0.3 s"}
            assert reply.headers["connection"] == "close"
        assert spoken(server, POST % len(body), body[:5], body[5:], pause=0.01).status_code == 200
        assert server.ask(TOWER).status_code == 200


@pytest.mark.parametrize(
    "noise",
    [
        b"\r\n\r\nnot HTTP\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /retrieve HTTP/1.1\r\nContent-Length: minus one\r\n\r\n",
        b"POST /retrieve HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/1.1\r\nno colon\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_and_harms_nobody(shared: Running, noise: bytes) -> None:
    assert spoken(shared, noise).status_code == 400
    assert shared.ask(TOWER).status_code == 200


def test_other_addresses_are_answered_in_json(shared: Running) -> None:
    for method, path, status in (
        ("GET", "/", 404),
        ("GET", "/docs", 404),
        ("POST", "/retrieve/", 404),
        ("GET", "/retrieve", 405),
        ("DELETE", "/info", 405),
        ("GET", "/%ff%00", 404),
    ):
        reply = shared.client.request(method, path)
        assert reply.status_code == status
        assert "this server has POST /retrieve" in reply.json()["detail"]
        assert reply.headers.get("allow") == {404: None, 405: "POST" if path == "/retrieve" else "GET, HEAD"}[status]
    assert shared.client.head("/health").status_code == 200


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(StepladderError, match="topk is 9, above max_topk, 5"):
        ServerConfig.read({"topk": 9, "max_topk": 5})
    with pytest.raises(StepladderError, match="max_waiting is 100, below max_queries, 4096"):
        ServerConfig.read({"max_waiting": 100})


# --- Failures -------------------------------------------------------------------------------------------


def test_a_query_that_breaks_the_retriever_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    held = threading.Event()

    class Fragile(WordRetriever):
        def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
            assert held.wait(15)
            if "bad" in queries:
                raise RuntimeError("out of memory")
            return super().search(queries, k)

    with running(Fragile()) as server, ThreadPoolExecutor(8) as pool:
        replies = [pool.submit(server.ask, query) for query in ("a", "b", "bad", "c", "d")]
        until(lambda: server.metric("stepladder_queries_total") == 5)
        held.set()
        assert [reply.result().status_code for reply in replies] == [200, 200, 500, 200, 200]
        assert replies[2].result().json() == {"detail": "the search failed; see the server's log"}
        assert "out of memory" in caplog.text
        assert server.metric("stepladder_failed_total") == 1


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_a_failed_search(score: float) -> None:
    with running(WordRetriever([Passage("p", "t", "x", score)])) as server:
        assert server.ask(TOWER, return_scores=True).status_code == 500


def test_clients_that_leave_disturb_nobody_and_are_not_searched_for() -> None:
    retriever = HeldRetriever()
    with running(retriever) as server, ThreadPoolExecutor(3) as pool:
        first = pool.submit(server.ask, "first")
        assert retriever.begun.wait(15)
        stays = pool.submit(server.ask, "wanted", "shared")
        until(lambda: server.metric("stepladder_queue_length") == 2)
        with pytest.raises(httpx2.ReadTimeout):
            server.ask("unwanted", "shared", timeout=0.5)
        until(lambda: server.metric("stepladder_dropped_total") == 1)
        until(lambda: server.metric('stepladder_requests_total{status="499"}') == 1)
        assert server.metric("stepladder_queue_length") == 2
        retriever.go.set()
        assert first.result().status_code == stays.result().status_code == 200
        assert retriever.calls == [["first"], ["wanted", "shared"]]


# --- Who may ask ----------------------------------------------------------------------------------------


def test_a_token_is_needed_where_one_is_set(index: BM25Index) -> None:
    body = {"queries": [TOWER]}
    with running(index, token=SecretStr("open-sesame")) as server:
        for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": "open-sesame"}, {"authorization": "é"}):
            headers = {name: value.encode("latin-1") for name, value in given.items()}
            for method, path in (
                ("POST", "/retrieve"),
                ("GET", "/info"),
                ("GET", "/metrics"),
                ("GET", "/openapi.json"),
                ("GET", "/none"),
                ("POST", "/health"),
            ):
                reply = server.client.request(method, path, headers=headers)
                assert reply.status_code == 401
                assert "Authorization: Bearer TOKEN" in reply.json()["detail"]
        assert server.client.get("/health").status_code == 200
        for scheme in ("Bearer", "bearer"):
            headers = {"authorization": f"{scheme} open-sesame"}
            assert server.client.post("/retrieve", json=body, headers=headers).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "example.org"])
def test_other_machines_are_let_in_only_with_a_token_or_on_request(index: BM25Index, host: str) -> None:
    with pytest.raises(StepladderError, match="--insecure"):
        serve(index, ServerConfig(), INFO, host=host, port=0)


def test_a_port_that_is_taken_is_said_so(index: BM25Index) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StepladderError, match=f"cannot listen on 127.0.0.1, port {port}.*another --port"):
            serve(index, ServerConfig(), INFO, port=port)


def test_answers_are_not_held_back_for_the_next_packet() -> None:
    """Where a socket does not say that it is TCP's, asyncio leaves Nagle's algorithm on: 40 ms an answer."""
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_the_token_is_never_shown() -> None:
    settings = ServerConfig(token=SecretStr("open-sesame"))
    assert "sesame" not in repr(settings)
    with pytest.raises(StepladderError) as refused:
        make_app(WordRetriever(), ServerConfig(token=SecretStr("open sesame")), INFO)
    assert "sesame" not in str(refused.value)


# --- The end --------------------------------------------------------------------------------------------


def test_a_server_that_ends_answers_what_is_under_way_and_nothing_new() -> None:
    retriever = HeldRetriever()
    with running(retriever) as server, ThreadPoolExecutor(2) as pool:
        under_way = pool.submit(server.ask, TOWER)
        assert retriever.begun.wait(15)
        server.server.drain()
        late = server.ask(TARN)
        assert late.status_code == 503
        assert late.headers["retry-after"] == "1"
        health = server.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        retriever.go.set()
        assert under_way.result().status_code == 200
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{server.url}/health")


def test_a_search_that_hangs_does_not_keep_the_server_from_ending() -> None:
    retriever = HeldRetriever()
    with running(retriever, drain_seconds=0) as server, ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(server.ask, TOWER)
        assert retriever.begun.wait(15)
        server.stop()
        assert stuck.result().status_code == 503
    retriever.go.set()


# --- The command ----------------------------------------------------------------------------------------


def test_the_command_serves_an_index_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, secret = tmp_path / "index", tmp_path / "token"
    made = build_index(PASSAGES, folder)
    secret.write_text("open-sesame\n", encoding="utf-8")
    served: list[tuple[Any, ...]] = []
    monkeypatch.setattr("stepladder.serve.search.search_server.serve", lambda *given, **_: served.append(given))
    serve_command(index=str(folder), token_file=secret)
    ((_, settings, info),) = served
    assert settings == ServerConfig(token=SecretStr("open-sesame"))
    assert info == asdict(made)


def test_a_file_that_holds_no_token_is_refused_without_showing_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for content in (b"", b"two words", b"\xff\xfe"):
        file.write_bytes(content)
        with pytest.raises(StepladderError, match="must contain only a token") as refused:
            serve_command(index="atlas", token_file=file)
        assert "two words" not in str(refused.value)
