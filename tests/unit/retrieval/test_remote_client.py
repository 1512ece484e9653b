"""Search over HTTP: our own server, servers that behave otherwise or badly, and several of them together."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from stepladder.core.errors import BackendDown, StepladderError
from stepladder.core.requests import Retrieve
from stepladder.core.trace import Passage
from stepladder.driver import Driver
from stepladder.engines.scripted import ScriptedEngine
from stepladder.retrieval import check_retriever
from stepladder.retrieval.index.bm25 import BM25Index
from stepladder.retrieval.remote.client import FIRST_ATTEMPTS, RemoteRetriever, SearchDown
from stepladder.retrieval.remote.load_balancer import LoadBalancer
from stepladder.retrieval.remote.protocol import BadReply
from stepladder.serve.http.run_server import listen
from tests.support.samples import PASSAGES, WordRetriever
from tests.support.search_servers import INFO, TARN, TOWER, running

# --- A server that says what it is told to ----------------------------------------------------------------


@dataclass
class Answer:
    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    #: Seconds before the answer.
    after: float = 0.0
    #: Send the body again and again, with this many seconds between.
    endless: float | None = None


def found(*documents: dict[str, Any]) -> Answer:
    """The same passages for a single query."""
    return Answer(body={"result": [list(documents)]})


ORM = found({"document": {"id": "p1", "contents": '"Orm Tower"\nBuilt by Ada Tarn.'}, "score": 2.5})


@dataclass
class Scripted:
    url: str
    #: When each request came, and what it asked for.
    times: list[float] = field(default_factory=list)
    #: Bytes that were sent without end.
    sent: int = 0
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)


@contextmanager
def scripted(answer: Callable[[int], Answer]) -> Iterator[Scripted]:
    """A server whose n-th answer, from 0, is `answer(n)`."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            with lock:
                number = len(here.times)
                here.times.append(time.monotonic())
                here.requests.append((self.path, dict(self.headers), json.loads(body) if body else None))
            told = answer(number)
            time.sleep(told.after)
            content = told.body if isinstance(told.body, bytes) else json.dumps(told.body).encode()
            with suppress(OSError):  # clients do not wait for ever
                self.send_response(told.status)
                length = {"Content-Length": str(len(content))} if told.endless is None else {}
                for name, value in {**length, **told.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                while told.endless is not None:
                    self.wfile.write(content)
                    here.sent += len(content)
                    time.sleep(told.endless)
                self.wfile.write(content)

        do_GET = do_POST = handle_one

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    here = Scripted(f"http://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield here
    finally:
        server.shutdown()
        server.server_close()


def nowhere() -> str:
    """A URL at which nothing answers."""
    with listen("127.0.0.1", 0) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def remote(*urls: str, **options: Any) -> Iterator[RemoteRetriever]:
    with closing(RemoteRetriever(list(urls), **{"backoff": 0.01, **options})) as retriever:
        yield retriever


# --- One good server ----------------------------------------------------------------------------------------


def test_remote_search_equals_local_search_and_keeps_the_contract() -> None:
    odd = (Passage("odd", 'The "Orm"', " Two lines,\n  the tower's \N{ROCKET} "), Passage("bare", "", "Tarn"))
    index = BM25Index.from_passages((*PASSAGES, *odd))
    queries = [TOWER, "Two lines", TARN, "no such words", "\ud800 tower", "Tarn"]
    with running(index) as server, remote(server.url + "/retrieve", max_batch=2) as retriever:
        assert retriever.search(queries, 3) == index.search(queries, 3)
        check_retriever(retriever, [TOWER, TARN])
        assert retriever.retries == 0


def test_info_is_what_the_server_tells() -> None:
    with running(WordRetriever()) as server, remote(server.url) as retriever:
        told = retriever.info()
        assert told is not None
        assert told["index"] == INFO
    with scripted(lambda _: Answer(404, {"detail": "Not Found"})) as server, remote(server.url) as retriever:
        assert retriever.info() is None


def test_the_token_goes_along_and_a_wrong_one_ends_the_run() -> None:
    with running(BM25Index.from_passages(PASSAGES), token="open-sesame") as server:
        with remote(server.url, token=" open-sesame\n") as retriever:
            assert retriever.search([TOWER], 1)[0][0].id == "p1"
        with remote(server.url, token="wrong") as retriever, pytest.raises(BackendDown, match="invalid token"):
            retriever.search([TOWER], 1)
    with pytest.raises(StepladderError, match="token") as refused:
        RemoteRetriever(server.url, token="two words")
    assert "two words" not in str(refused.value)


# --- Servers of others --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Answer(body=b" " * 65_536, endless=0.0), "too long; expected at most 8.4 MB"),
        (Answer(body=b"{", headers={"Content-Length": "1000000000"}), "too long; expected at most 8.4 MB"),
        (Answer(500, b" " * 65_536, endless=0.0), "too long; expected at most 8.4 MB"),
        (Answer(body=b"x", headers={"Content-Encoding": "br"}), r"compressed \(br\); expected identity"),
        (Answer(body=b" ", endless=0.02), "has not ended after 0.2 s"),
    ],
    ids=["without end", "1 GB", "an error without end", "compressed", "slow, without end"],
)
def test_a_reply_of_any_size_is_one_line(answer: Answer, problem: str) -> None:
    timeout = 0.2 if answer.endless else 20
    with scripted(lambda _: answer) as server, remote(server.url, retries=0, timeout=timeout) as retriever:
        with pytest.raises(StepladderError, match=problem):
            retriever.search([TOWER], 3)
        assert server.sent < 24 * 2**20  # what is in the buffers of the network, and no more


def test_long_passages_of_many_queries_are_read() -> None:
    long = Passage("long", "Orm", "word " * 200_000)
    with running(BM25Index.from_passages([long])) as server, remote(server.url, max_batch=12) as retriever:
        assert [found.text for (found,) in retriever.search(["word"] * 12, 1)] == [long.text] * 12


def test_what_other_servers_answer_is_read_too() -> None:
    answers = [
        found(
            {"document": {"contents": '"Orm Tower"\nBuilt.'}, "score": 2},
            {"document": {"contents": '"B"\nC'}, "score": 1},
        ),
        found({"id": 7, "contents": "Orm Tower\nBuilt."}),
        found({"document": {"title": "Orm Tower", "text": "Built.", "contents": '"Orm Tower"\nBuilt.'}, "score": None}),
        found({"document": {"id": "p", "text": "Built."}, "score": 0.5}),
        Answer(body=b'{"result": [[{"document": {"id": "p", "contents": "Built."}, "score": NaN}]]}'),
    ]
    with scripted(lambda number: answers[number]) as server, remote(server.url) as retriever:
        (first, second), *others = [retriever.search([TOWER], 2)[0] for _ in answers]
    assert server.requests[0][0] == "/retrieve"
    assert server.requests[0][2] == {
        "queries": [TOWER], "topk": 2, "topk_retrieval": 10, "topk_rerank": 2, "return_scores": True,
    }  # fmt: skip
    assert (first.title, first.text, first.score) == ("Orm Tower", "Built.", 2.0)
    assert first.id != second.id, "ids are made of the contents"
    assert others[0] == (Passage("7", "Orm Tower", "Built."),)
    assert others[1] == (Passage(first.id, "Orm Tower", "Built."),)
    assert others[2] == (Passage("p", "", "Built.", 0.5),)
    assert others[3] == (Passage("p", "", "Built."),)


def test_more_than_was_asked_for_and_the_same_twice_are_left_out() -> None:
    """Search-R1's servers for web searches send the answer box, all results and related questions."""
    three = [{"document": {"contents": f'"{title}"\nText'}} for title in ("A", "B", "A", "C", "D")]
    with scripted(lambda _: found(*three)) as server, remote(server.url) as retriever:
        assert [passage.title for passage in retriever.search([TOWER], 3)[0]] == ["A", "B", "C"]


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        {"detail": "?"},
        {"result": []},
        {"result": [None]},
        {"result": [["text"]]},
        {"result": [[{"document": {"contents": 7}}]]},
        {"result": [[{"document": {"id": "p"}}]]},
    ],
)
def test_an_answer_of_another_kind_is_said_to_be_one(body: Any) -> None:
    with scripted(lambda _: Answer(body=body)) as server, remote(server.url) as retriever:
        with pytest.raises(BadReply, match=f"{server.url}/retrieve: "):
            retriever.search([TOWER], 1)
        assert len(server.times) == 1


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (422, StepladderError, '422: "topk" must be from 1 to 100'),
        (413, StepladderError, "413"),
        (500, StepladderError, "500"),
        (404, SearchDown, "no POST /retrieve"),
        (307, SearchDown, "no POST /retrieve"),
    ],
)
def test_a_refusal_is_not_repeated_and_gives_the_reason(status: int, error: type[Exception], said: str) -> None:
    refusal = Answer(status, {"detail": '"topk" must be from 1 to 100'}, {"Location": "/"} if status == 307 else {})
    with scripted(lambda _: refusal) as server, remote(server.url) as retriever:
        with pytest.raises(error, match=said) as raised:
            retriever.search([TOWER], 500)
        assert isinstance(raised.value, BackendDown) == (error is SearchDown)
        assert [path for path, *_ in server.requests].count("/retrieve") == 1


# --- Servers in trouble -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_passing_trouble_is_waited_out(status: int) -> None:
    with scripted(lambda number: ORM if number == 2 else Answer(status)) as server, remote(server.url) as retriever:
        assert retriever.search([TOWER], 1)[0][0].id == "p1"
        assert retriever.retries == 2
        assert len(server.times) == 3


def test_retry_after_is_obeyed() -> None:
    busy = Answer(429, {"detail": "full"}, {"Retry-After": "1"})
    with scripted(lambda number: ORM if number else busy) as server, remote(server.url) as retriever:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(retriever.search, [TOWER], 1)
            while not server.times:
                time.sleep(0.01)
            time.sleep(0.2)
            second = pool.submit(retriever.search, [TARN], 1)  # others stay away from a busy server, too
            assert first.result()[0] == second.result()[0]
        assert min(server.times[1:]) - server.times[0] >= 1.0


def test_a_busy_server_is_left_alone_while_another_is_free() -> None:
    busy = Answer(429, {"detail": "full"}, {"Retry-After": "100"})
    with (
        scripted(lambda _: busy) as first,
        scripted(lambda _: ORM) as second,
        remote(first.url, second.url) as retriever,
    ):
        for _ in range(10):
            retriever.search([TOWER], 1)
        assert (len(first.times), len(second.times)) == (1, 10)


def test_no_answer_in_time_is_trouble_like_others() -> None:
    slow = Answer(after=1.0)
    with scripted(lambda _: slow) as first, scripted(lambda _: ORM) as second:
        with remote(first.url, second.url, timeout=0.2) as retriever:
            assert retriever.search([TOWER], 1)[0][0].id == "p1"
        said = f"after 2 attempts: {first.url}: no reply within 0.2 s"
        with remote(first.url, timeout=0.2, retries=1) as retriever, pytest.raises(SearchDown, match=said):
            retriever.search([TOWER], 1)


def test_giving_up_names_every_server_and_its_trouble() -> None:
    gone = nowhere()
    with (
        scripted(lambda _: Answer(503, {"detail": "loading"})) as server,
        remote(gone, server.url, retries=4) as retriever,
        pytest.raises(SearchDown) as raised,
    ):
        retriever.search([TOWER], 1)
    assert "after 5 attempts" in str(raised.value)
    assert f"{gone}: no connection" in str(raised.value)
    assert f"{server.url}: 503: loading" in str(raised.value)
    assert "stepladder serve" in str(raised.value)


def test_servers_that_were_never_there_are_given_up_soon() -> None:
    with (
        remote(nowhere(), retries=100) as retriever,
        pytest.raises(SearchDown, match=f"after {FIRST_ATTEMPTS} attempts"),
    ):
        retriever.search([TOWER], 1)


def test_without_servers_a_run_ends_and_keeps_what_it_has() -> None:
    def job() -> Any:
        yield [Retrieve(TOWER, 1)]

    with remote(nowhere()) as retriever, pytest.raises(BackendDown, match="no connection"):
        Driver(ScriptedEngine(lambda _: ""), retriever).run([job])


def test_closing_ends_the_waiting() -> None:
    with scripted(lambda _: Answer(503, None, {"Retry-After": "100"})) as server, ThreadPoolExecutor(1) as pool:
        retriever = RemoteRetriever(server.url)
        waiting = pool.submit(retriever.search, [TOWER], 1)
        while not retriever.retries:
            time.sleep(0.01)
        retriever.close()
        with pytest.raises(StepladderError, match="is closed"):
            waiting.result(10)


# --- Several servers ----------------------------------------------------------------------------------------


def test_calls_are_spread_evenly() -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(scripted(lambda _: ORM)) for _ in range(3)]
        retriever = stack.enter_context(remote(*(server.url for server in servers)))
        for _ in range(9):
            retriever.search([TOWER], 1)
        assert [len(server.times) for server in servers] == [3, 3, 3]


def test_the_least_busy_comes_next_and_one_that_failed_is_tried_by_one_call() -> None:
    hosts = LoadBalancer(["a", "b"], backoff=0.0)
    first, second, third = (hosts.acquire()[0] for _ in range(3))
    assert [host and host.url for host in (first, second, third)] == ["a", "b", "a"]
    assert first is not None
    hosts.release(first)
    hosts.release(first)
    assert hosts.failed(first, "broke", {})
    assert [host and host.url for host in (hosts.acquire()[0], hosts.acquire()[0], hosts.acquire()[0])] == [
        "a",
        "b",
        "b",
    ]
    hosts.succeeded(first)
    assert hosts.problems() == []


def test_rests_grow_but_failures_of_one_moment_count_once() -> None:
    hosts = LoadBalancer(["a"], backoff=10.0)
    host, _ = hosts.acquire()
    assert host is not None
    for _ in range(50):
        hosts.failed(host, "broke", {})
    assert host.failures == 1
    taken, rest = hosts.acquire()
    assert taken is None
    assert 0 < rest <= 10
    assert not hosts.failed(host, "busy", {"retry-after": "100000"})


def test_a_server_that_comes_back_is_used_again() -> None:
    up = threading.Event()
    back = scripted(lambda _: ORM if up.is_set() else Answer(503))
    with back as first, scripted(lambda _: ORM) as second, remote(first.url, second.url) as retriever:
        retriever.search([TOWER], 1)
        up.set()
        before = len(first.times)
        deadline = time.monotonic() + 15
        while len(first.times) < before + 3:
            assert time.monotonic() < deadline
            retriever.search([TOWER], 1)
        assert second.times


# --- URLs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("urls", "said"),
    [
        ([], "no search server URL was given"),
        ("localhost:8000", "Did you mean 'http://localhost:8000'"),
        ("", "not the URL of a search server"),
        ("http://", "not the URL of a search server"),
        ("http://localhost:80o0", "not the URL of a search server"),
        ("ftp://localhost/x", "not the URL of a search server"),
        ("http://me:secret@localhost:8000?k=3", "a query"),
        ("http://localhost:8000?k=3", "a query"),
        (["http://a:1", "http://a:1/retrieve"], "http://a:1 is listed twice"),
    ],
)
def test_urls_that_cannot_be_meant_are_refused(urls: Any, said: str) -> None:
    with pytest.raises(StepladderError, match=said) as refused:
        RemoteRetriever(urls)
    assert "secret" not in str(refused.value)


def test_settings_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(StepladderError, match="concurrency=0"):
        RemoteRetriever("http://localhost:8000", concurrency=0)
