"""The OpenAI engine against a real HTTP server on loopback that behaves well, badly and not at all."""

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from stepladder.core.errors import BackendDown, BackendError
from stepladder.core.io.retries import retry_wait
from stepladder.core.requests import Finish, Generate, Generation, Sampling
from stepladder.core.trace import UNKNOWN_TOKENS, Author, Segment, Usage
from stepladder.engines.base import check_engine
from stepladder.engines.openai.openai_engine import FIRST_ATTEMPTS, MAX_CONSECUTIVE_FAILURES, OpenAIEngine
from stepladder.engines.openai.openai_protocol import CONTINUE_PROMPT, chat_messages, finished_text
from tests.support import openai_server
from tests.support.openai_server import Answer, Server, fails, says

server = openai_server.server

#: What a server writes has token ids that nobody knows.
WROTE = Segment(Author.POLICY, "Ana.", vocabulary=UNKNOWN_TOKENS)
KEY = "sk-very-secret-0123456789"


# --- The server -----------------------------------------------------------------------------------------


@pytest.fixture
def engine(server: Server) -> Iterator[OpenAIEngine]:
    with closing(OpenAIEngine("tiny", server.url, api_key=KEY, backoff=0.001)) as engine:
        yield engine


def ask(text: str = "Who?", **settings: Any) -> Generate:
    return Generate((Segment(Author.PROMPT, text),), **settings)


def only(replies: list[Generation | BackendError]) -> Generation:
    (reply,) = replies
    assert isinstance(reply, Generation), reply
    return reply


def error_of(replies: list[Generation | BackendError]) -> str:
    (reply,) = replies
    assert isinstance(reply, BackendError), reply
    return str(reply)


# --- Asking ---------------------------------------------------------------------------------------------


def test_a_chat_call_sends_everything_the_request_says(server: Server, engine: OpenAIEngine) -> None:
    server.answer = lambda body, n: says("Ana.", usage={"prompt_tokens": 7, "completion_tokens": 2})
    request = ask(stop=("</a>",), sampling=Sampling(0.7, 0.9, 50), seed=(5 << 31) + 3)
    reply = only(engine.generate([request]))
    assert server.paths == ["/v1/chat/completions"]
    assert server.requests == [
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": "Who?"}],
            "temperature": 0.7,
            "top_p": 0.9,
            "max_tokens": 50,
            "seed": 3,
            "stop": ["</a>"],
        }
    ]
    assert reply == Generation(request.context, WROTE, "Ana.", Finish.END, Usage(read=7, written=2))


def test_a_completions_call_sends_the_plain_text(server: Server) -> None:
    context = (Segment(Author.PROMPT, "Q: Who?\n"), Segment(Author.POLICY, "A"), Segment(Author.ENVIRONMENT, ": "))
    with closing(OpenAIEngine("tiny", server.url, api="completions", extra_body={"top_k": -1})) as engine:
        assert only(engine.generate([Generate(context)])).text == "fine"
    assert server.paths == ["/v1/completions"]
    assert server.requests[0]["prompt"] == "Q: Who?\nA: "
    assert server.requests[0]["top_k"] == -1
    assert "stop" not in server.requests[0]


def test_authors_become_roles() -> None:
    prompt, policy, found = (Segment(author, text) for author, text in zip(Author, ("P", "<q>x</q>", "<i>y</i>")))
    assert chat_messages((prompt, found, policy, policy, found, found)) == [
        {"role": "user", "content": "P<i>y</i>"},
        {"role": "assistant", "content": "<q>x</q><q>x</q>"},
        {"role": "user", "content": "<i>y</i><i>y</i>"},
    ]
    assert chat_messages((prompt, policy))[-1] == {"role": "user", "content": CONTINUE_PROMPT}
    assert chat_messages((prompt, Segment(Author.POLICY, ""), found)) == [{"role": "user", "content": "P<i>y</i>"}]


def test_replies_come_in_the_order_of_the_requests(server: Server, engine: OpenAIEngine) -> None:
    def echo_in_reverse(body: dict[str, Any], n: int) -> Answer:
        text = body["messages"][0]["content"]
        server.over.wait(0.02 * (8 - int(text)))  # the first request is answered last
        return says(text)

    server.answer = echo_in_reverse
    replies = engine.generate([ask(str(i)) for i in range(8)])
    assert [reply.text for reply in replies if isinstance(reply, Generation)] == [str(i) for i in range(8)]


def gather_at(server: Server, size: int) -> Callable[[dict[str, Any], int], Answer]:
    """Holds the calls back until `size` of them are in flight together."""

    def answer(body: dict[str, Any], n: int) -> Answer:
        server.wait_for(lambda: server.peak >= size)
        server.over.wait(0.05)  # time for one too many to arrive
        return says(body["messages"][0]["content"])

    return answer


def test_one_call_uses_the_allowed_concurrency_and_no_more(server: Server) -> None:
    server.answer = gather_at(server, 4)
    with closing(OpenAIEngine("tiny", server.url, concurrency=4)) as engine:
        assert (engine.max_samples, engine.concurrency) == (16, 4)
        assert len(engine.generate([ask(str(i)) for i in range(16)])) == 16
    assert server.peak == 4


def test_calls_from_many_threads_share_one_limit(server: Server) -> None:
    server.answer = gather_at(server, 3)
    replies: dict[int, str] = {}
    with closing(OpenAIEngine("tiny", server.url, concurrency=3)) as engine:

        def work(number: int) -> None:
            replies[number] = only(engine.generate([ask(str(number))])).text

        threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert replies == {number: str(number) for number in range(12)}
    assert server.peak == 3


def test_it_works_inside_an_event_loop_as_in_a_notebook(engine: OpenAIEngine) -> None:
    async def cell() -> str:
        return only(engine.generate([ask()])).text

    assert asyncio.run(cell()) == "fine"


def test_it_keeps_the_engine_contract(server: Server) -> None:
    def model(body: dict[str, Any], n: int) -> Answer:
        """Writes random letters that depend on the prompt, and on the seed when hot. Stops as vLLM does."""
        seed = body["seed"] if body["temperature"] else 0
        draw = random.Random(f"{body.get('prompt') or body['messages']} {seed}")
        text = "".join(draw.choices("abcdefgh ", k=body["max_tokens"]))
        found = [(text.index(stop) + len(stop), stop) for stop in body.get("stop", []) if stop in text]
        if found:
            end, stop = min(found)
            return says(text[: end - len(stop)], "stop", stop_reason=stop)
        return says(text, "length", stop_reason=None)

    server.answer = model
    for api in ("chat", "completions"):
        with closing(OpenAIEngine("tiny", server.url, api=api)) as engine:
            check_engine(engine)


# --- Stop strings ---------------------------------------------------------------------------------------

TAGS = ("</query>", "</answer>")


@pytest.mark.parametrize(
    ("text", "finish", "choice", "expected"),
    [
        # The server tells which stop string it cut off, or that the model ended its turn.
        ("so x", "stop", {"stop_reason": "</query>"}, ("so x</query>", Finish.STOP)),
        ("so x", "stop", {"matched_stop": "</query>"}, ("so x</query>", Finish.STOP)),
        ("so <query>x", "stop", {"stop_reason": None}, ("so <query>x", Finish.END)),
        ("so <query>x", "stop", {"stop_reason": 151643}, ("so <query>x", Finish.END)),
        # It does not tell: the one open tag is closed, and only that.
        ("so <answer>x", "stop", {}, ("so <answer>x</answer>", Finish.STOP)),
        ("just words", "stop", {}, ("just words", Finish.END)),
        ("<query>x <answer>y", "stop", {}, ("<query>x <answer>y", Finish.END)),
        ("so <query>x", "length", {}, ("so <query>x", Finish.LENGTH)),
        # It left the stop string in, or ignored it and wrote on: the first one to be complete ends the text.
        ("<query>x</query>", "stop", {}, ("<query>x</query>", Finish.STOP)),
        ("<query>x</query> <answer>y</answer>", "length", {}, ("<query>x</query>", Finish.STOP)),
        ("<answer>y</answer><query>x</query>", "stop", {"stop_reason": None}, ("<answer>y</answer>", Finish.STOP)),
    ],
)
def test_a_stop_string_is_part_of_the_text(
    text: str, finish: str, choice: dict[str, object], expected: tuple[str, Finish]
) -> None:
    assert finished_text(text, TAGS, finish, choice) == expected


def test_what_counts_as_written_ends_with_the_stop_string(server: Server, engine: OpenAIEngine) -> None:
    server.answer = lambda body, n: says("<query>x</query> and more", "length")
    reply = only(engine.generate([ask(stop=TAGS)]))
    assert (reply.text, reply.written.text, reply.finish) == ("<query>x</query>",) * 2 + (Finish.STOP,)


def test_more_than_four_stop_strings_are_watched_for_here(server: Server, engine: OpenAIEngine) -> None:
    server.answer = lambda body, n: says("one<e>two</e>three", "stop")
    stops = ("</a>", "</b>", "</c>", "</d>", "</e>")
    assert only(engine.generate([ask(stop=stops)])).text == "one<e>two</e>"
    assert server.requests[0]["stop"] == ["</a>", "</b>", "</c>", "</d>"]
    # The server was never told of the fifth, so it cannot have cut it off.
    assert finished_text("one<e>two", stops, "stop", {}) == ("one<e>two", Finish.END)


# --- Trouble that passes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble",
    [
        fails(429, "slow down", headers={"Retry-After": "0.01"}),
        fails(500, "oops"),
        Answer(503, b"<html>busy</html>", {"Content-Type": "text/html"}),
        Answer(200, {"choices": []}, breaks_off=True),
    ],
    ids=["429", "500", "503", "broken off"],
)
def test_passing_trouble_is_tried_again(server: Server, engine: OpenAIEngine, trouble: Answer) -> None:
    server.answer = lambda body, n: trouble if n < 2 else says("fine")
    assert only(engine.generate([ask()])).text == "fine"
    assert len(server.requests) == 3
    assert engine.retries == 2


def test_a_call_that_hangs_is_tried_again(server: Server) -> None:
    server.answer = lambda body, n: server.hang() if n == 0 else says("fine")
    with closing(OpenAIEngine("tiny", server.url, timeout=0.3, backoff=0.001)) as engine:
        assert only(engine.generate([ask()])).text == "fine"
        assert engine.retries >= 1


def test_lasting_trouble_fails_the_request_alone(server: Server) -> None:
    def answer(body: dict[str, Any], n: int) -> Answer:
        return fails(500, "no GPU") if body["messages"][0]["content"] == "bad" else says("fine")

    server.answer = answer
    with closing(OpenAIEngine("tiny", server.url, max_retries=2, backoff=0.001)) as engine:
        bad, good = engine.generate([ask("bad"), ask("good")])
    assert only([good]).text == "fine"
    assert "returned status 500 (after 3 attempts): no GPU" in error_of([bad])


def test_a_server_that_always_hangs_or_breaks_off(server: Server) -> None:
    server.answer = lambda body, n: server.hang()
    with closing(OpenAIEngine("tiny", server.url, timeout=0.5, max_retries=1, backoff=0.001)) as engine:
        assert "did not respond within 0.5 s (after 2 attempts)" in error_of(engine.generate([ask()]))
    server.answer = lambda body, n: Answer(trickles=True)
    with closing(OpenAIEngine("tiny", server.url, timeout=0.5, max_retries=0)) as engine:
        assert "did not respond within 0.5 s (first attempt)" in error_of(engine.generate([ask()]))
    server.answer = lambda body, n: Answer(200, {"choices": []}, breaks_off=True)
    with closing(OpenAIEngine("tiny", server.url, max_retries=1, backoff=0.001)) as engine:
        assert "the connection" in error_of(engine.generate([ask()]))


def test_waits_double_with_jitter_unless_the_server_asks_for_a_time() -> None:
    for tries, longest in ((1, 1.0), (2, 2.0), (5, 16.0), (100, 120.0)):
        waits = {retry_wait(tries, {}, backoff=1.0) for _ in range(50)}
        assert len(waits) > 1
        assert all(wait is not None and longest / 2 <= wait <= longest for wait in waits)
    assert retry_wait(5, {"retry-after": "7"}, backoff=1.0) == 7
    assert retry_wait(1, {"retry-after": "3600"}, backoff=1.0) is None
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    assert retry_wait(1, {"retry-after": in_a_minute}, backoff=0.001) == pytest.approx(60, abs=10)
    assert retry_wait(1, {"retry-after": "Thu, 01 Jan 2015 00:00:00 GMT"}, backoff=1.0) == 0
    nonsense = retry_wait(1, {"retry-after": "soon"}, backoff=1.0)
    assert nonsense is not None
    assert 0.5 <= nonsense <= 1


def test_a_server_that_asks_for_an_hour_is_not_waited_for(server: Server, engine: OpenAIEngine) -> None:
    server.answer = lambda body, n: fails(429, "come back later", headers={"Retry-After": "3600"})
    assert "429 (first attempt): come back later" in error_of(engine.generate([ask()]))
    assert engine.retries == 0


# --- Trouble that stays ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        (fails(401, "bad key"), "OPENAI_API_KEY"),
        (fails(403, "not for you"), "OPENAI_API_KEY"),
        (fails(404, "no such model"), "has no chat API of model 'tiny'"),
        (fails(429, "You exceeded your quota", code="insufficient_quota"), "no credit"),
        (
            fails(400, "Unsupported value: 'temperature' does not support 0 with this model.", param="temperature"),
            "does not accept 'temperature'",
        ),
        (
            fails(400, "Unsupported parameter: 'stop' is not supported with this model.", code="unsupported_parameter"),
            "does not accept 'stop'",
        ),
    ],
)
def test_what_no_request_can_survive_stops_the_engine(
    server: Server, engine: OpenAIEngine, answer: Answer, advice: str
) -> None:
    server.answer = lambda body, n: answer
    with pytest.raises(BackendDown, match=advice) as caught:
        engine.generate([ask("a"), ask("b")])
    assert server.url in str(caught.value)
    assert answer.body["error"]["message"] in str(caught.value)
    assert engine.retries == 0


def test_no_server_at_all(server: Server) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as gone:
        url = f"http://127.0.0.1:{gone.server_port}/v1"
    with (
        closing(OpenAIEngine("tiny", url, max_retries=2, backoff=0.001)) as engine,
        pytest.raises(BackendDown, match=f"no server responds at {url} .after 3 attempts"),
    ):
        engine.generate([ask()])


def test_a_server_that_never_answered_is_not_waited_for_as_long(server: Server) -> None:
    with closing(OpenAIEngine("m", "http://127.0.0.1:9/v1", max_retries=5, backoff=0.01)) as engine:
        with pytest.raises(BackendDown, match=f"after {FIRST_ATTEMPTS} attempts"):
            engine.generate([ask()])
        assert engine.retries == FIRST_ATTEMPTS - 1


def test_after_many_failures_in_a_row_the_server_is_taken_to_be_down(server: Server) -> None:
    server.answer = lambda body, n: fails(500, "broken for good")
    with closing(OpenAIEngine("m", server.url, max_retries=1, backoff=0.001, concurrency=1)) as engine:
        for _ in range(MAX_CONSECUTIVE_FAILURES - 1):
            assert "broken for good" in error_of(engine.generate([ask()]))
        with pytest.raises(BackendDown, match=f"{MAX_CONSECUTIVE_FAILURES} consecutive requests failed"):
            engine.generate([ask()])


def test_a_success_in_between_starts_the_count_anew(server: Server) -> None:
    server.answer = lambda body, n: says("fine") if n % 5 == 4 else fails(500, "now and then")
    with closing(OpenAIEngine("m", server.url, max_retries=0, concurrency=1)) as engine:
        replies = [engine.generate([ask()])[0] for _ in range(3 * MAX_CONSECUTIVE_FAILURES)]
    assert sum(isinstance(reply, Generation) for reply in replies) == 3 * MAX_CONSECUTIVE_FAILURES // 5


def test_a_refused_request_is_not_tried_again(server: Server, engine: OpenAIEngine) -> None:
    server.answer = lambda body, n: fails(422, "messages[0] is odd")
    assert "returned status 422 (first attempt): messages[0] is odd" in error_of(engine.generate([ask()]))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.",
        "'max_tokens' or 'max_completion_tokens' is too large: 256. This model's maximum context length is 40 tokens.",
        "the request exceeds the available context size",
        "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
        "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",
    ],
)
def test_a_context_that_is_too_long_leaves_no_room(server: Server, engine: OpenAIEngine, message: str) -> None:
    server.answer = lambda body, n: fails(400, message)
    reply = only(engine.generate([ask()]))
    assert (reply.text, reply.finish, reply.context) == ("", Finish.CONTEXT_FULL, ask().context)
    assert len(server.requests) == 1


def test_a_context_limit_of_our_own(server: Server) -> None:
    server.answer = lambda body, n: says(
        "fine", usage={"prompt_tokens": len(body["messages"][0]["content"]), "completion_tokens": 1}
    )
    with closing(OpenAIEngine("tiny", server.url, context_limit=5)) as engine:
        fits, too_long = engine.generate([ask("12345"), ask("123456")])
    assert only([fits]).text == "fine"
    assert only([too_long]).finish is Finish.CONTEXT_FULL
    assert only([too_long]).usage == Usage(6, 1)  # spent all the same


def test_newer_models_are_sent_max_completion_tokens(server: Server, engine: OpenAIEngine) -> None:
    def answer(body: dict[str, Any], n: int) -> Answer:
        if "max_tokens" in body:
            return fails(
                400,
                "Unsupported parameter: 'max_tokens' is not supported with this model. "
                "Use 'max_completion_tokens' instead.",
                param="max_tokens",
                code="unsupported_parameter",
            )
        return says("fine")

    server.answer = answer
    for _ in range(2):
        assert only(engine.generate([ask()])).text == "fine"
    limits = ["max_tokens" if "max_tokens" in body else body["max_completion_tokens"] for body in server.requests]
    assert limits == ["max_tokens", 256, 256]  # learnt once


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Answer(body=b'{"choices": [{"mess'), "an invalid completion .JSONDecodeError"),
        (Answer(body=b"[" * 100_000), "an invalid completion .RecursionError"),
        (Answer(body=b"Hello", headers={"Content-Type": "text/plain"}), "an invalid completion .* 'Hello'"),
        (Answer(body={"choices": []}), "an invalid completion .IndexError"),
        (Answer(body={"choices": None}), "an invalid completion .TypeError"),
        (Answer(body={"error": {"message": "upstream died"}}), "upstream died"),
        (says(None), "returned no text .content is None, finish_reason 'stop'"),
        (says(None, message={"content": None, "refusal": "I won't"}), 'refusal "I won\'t"'),
        (says("", "content_filter"), "content filter"),
        (says("x", "tool_calls"), "finish_reason 'tool_calls'"),
        (says("x", None), "finish_reason None"),
    ],
)
def test_replies_that_make_no_sense_say_so(server: Server, engine: OpenAIEngine, answer: Answer, problem: str) -> None:
    server.answer = lambda body, n: answer
    (reply,) = engine.generate([ask()])
    with pytest.raises(BackendError, match=problem):
        raise reply if isinstance(reply, BackendError) else AssertionError(reply)


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": None}, [], "many"])
def test_a_server_that_does_not_count_costs_nothing(server: Server, engine: OpenAIEngine, usage: Any) -> None:
    server.answer = lambda body, n: says("fine", usage=usage)
    assert only(engine.generate([ask()])).usage == Usage(0, 0)


def test_lone_surrogates_are_replaced_both_ways(server: Server, engine: OpenAIEngine) -> None:
    server.answer = lambda body, n: says("x\ud800y\U0001f600")
    assert only(engine.generate([ask("a\udfffb\U0001f600")])).text == "x\ufffdy\U0001f600"
    assert server.requests[0]["messages"][0]["content"] == "a\ufffdb\U0001f600"


# --- Keys, cancelling, closing --------------------------------------------------------------------------


def test_the_key_comes_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(OpenAIEngine("tiny", server.url)) as engine:
        engine.generate([ask()])
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")
    with closing(OpenAIEngine("tiny", server.url)) as engine:
        engine.generate([ask()])
    assert server.keys == ["Bearer none", f"Bearer {KEY}"]


def test_openai_itself_needs_a_key(server: Server) -> None:
    with pytest.raises(BackendDown, match="OPENAI_API_KEY"):
        OpenAIEngine("gpt")


@pytest.mark.parametrize(
    "answer",
    [
        fails(401, f"Incorrect API key provided: {KEY}"),
        fails(400, f"{'x' * 485} {KEY}"),  # must not survive in part where the message is cut
        Answer(body=f"{'x' * 190} {KEY}".encode()),
        Answer(500, f"Authorization: Bearer {KEY}".encode(), {"Content-Type": "text/plain"}),
    ],
)
def test_the_key_appears_nowhere(server: Server, answer: Answer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server.answer = lambda body, n: answer
    with closing(OpenAIEngine("tiny", server.url, api_key=KEY, max_retries=1, backoff=0.001)) as engine:
        try:
            (error,) = engine.generate([ask()])
        except BackendDown as down:
            error = down
        assert isinstance(error, BackendError | BackendDown)
        assert error.__cause__ is None
        assert error.__context__ is None
        for text in (str(error), repr(error), repr(engine), caplog.text):
            assert KEY[:9] not in text


def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(server: Server) -> None:
    with pytest.raises(BackendDown, match="line break") as caught:
        OpenAIEngine("tiny", server.url, api_key="sk-one\nsk-two")
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize("url", ["localhost:8000/v1", "http://", "http://host:port/v1", "ftp://host"])
def test_a_url_that_cannot_be_called_is_refused(server: Server, url: str) -> None:
    with pytest.raises(BackendDown, match="http://localhost:8000/v1"):
        OpenAIEngine("tiny", url)


@pytest.mark.parametrize("settings", [{"api": "responses"}, {"concurrency": 0}, {"max_retries": -1}])
def test_impossible_settings_are_refused(server: Server, settings: dict[str, Any]) -> None:
    with pytest.raises(BackendDown, match=next(iter(settings))):
        OpenAIEngine("tiny", server.url, **settings)


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_calls_under_way_can_be_ended(server: Server, engine: OpenAIEngine, end: str) -> None:
    server.answer = lambda body, n: server.hang()
    replies: list[Generation | BackendError] = []
    thread = threading.Thread(target=lambda: replies.extend(engine.generate([ask("a"), ask("b")])))
    thread.start()
    server.wait_for(lambda: server.in_flight == 2)
    getattr(engine, end)()
    thread.join(10)
    assert not thread.is_alive()
    assert [str(reply) for reply in replies] == ["the call was cancelled"] * 2
    assert not server.over.is_set()  # ended while the server was still hanging


def test_after_a_cancel_the_engine_works_again_after_a_close_it_does_not(server: Server, engine: OpenAIEngine) -> None:
    engine.cancel()
    assert only(engine.generate([ask()])).text == "fine"
    engine.close()
    engine.close()  # once more does no harm
    with pytest.raises(BackendDown, match="closed"):
        engine.generate([ask()])
    assert not any(thread.name == "openai tiny" for thread in threading.enumerate())
