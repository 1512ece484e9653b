"""The OpenAI engine when many calls in flight meet the same refusal, and when most of its servers are dead."""

import threading
from contextlib import closing
from typing import Any

import pytest

from stepladder.core.grammars.grammar import Grammar, Text
from stepladder.core.requests import Finish, Generate, Generation, Sampling
from stepladder.core.trace import Author, Segment
from stepladder.engines.openai.openai_engine import OpenAIEngine
from tests.support import openai_server
from tests.support.openai_server import Answer, Server, fails, says

server, second_server = openai_server.server, openai_server.second_server

ASKED = 8


def asks(count: int = ASKED) -> list[Generate]:
    return [Generate((Segment(Author.PROMPT, f"{n}?"),), sampling=Sampling(max_tokens=9)) for n in range(count)]


def texts(engine: OpenAIEngine, requests: list[Generate]) -> list[str]:
    return [reply.text if isinstance(reply, Generation) else str(reply) for reply in engine.generate(requests)]


def test_refusals_of_calls_in_flight_give_a_server_up_once(server: Server, second_server: Server) -> None:
    together = threading.Barrier(ASKED // 2)

    def refuse(*_: Any) -> Answer:
        together.wait(10)
        return fails(401, "bad key")

    second_server.answer = refuse  # type: ignore[method-assign]
    with closing(OpenAIEngine("m", [server.url, second_server.url], concurrency=ASKED)) as engine:
        assert texts(engine, asks()) == ["fine"] * ASKED


def test_the_name_of_the_limit_is_learned_by_all_calls_in_flight(server: Server) -> None:
    together = threading.Barrier(ASKED)

    def answer(body: dict[str, Any], _: int) -> Answer:
        if "max_tokens" not in body:
            return says("fine")
        together.wait(10)
        said = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
        return fails(400, said, param="max_tokens", code="unsupported_parameter")

    server.answer = answer  # type: ignore[method-assign]
    with closing(OpenAIEngine("m", server.url, concurrency=ASKED, max_retries=0)) as engine:
        assert texts(engine, asks()) == ["fine"] * ASKED


@pytest.mark.parametrize("retries", [0, 5])
def test_one_live_server_of_four_is_found(server: Server, retries: int) -> None:
    dead = [f"http://127.0.0.1:{port}/v1" for port in (9, 11, 13)]
    with closing(OpenAIEngine("m", [*dead, server.url], max_retries=retries, backoff=0.01)) as engine:
        assert texts(engine, asks(1)) == ["fine"]


FINISH = Grammar((("Finish[", Text(without="]"), "]\n"),))


def constrained() -> Generate:
    return Generate((Segment(Author.PROMPT, "a"),), ("]\n", "Observation"), Sampling(max_tokens=9), grammar=FINISH)


def test_a_stop_string_that_a_server_removes_in_silence_is_restored_by_the_grammar(server: Server) -> None:
    server.answer = lambda *_: says("Finish[Rome")  # type: ignore[method-assign]
    with closing(OpenAIEngine("m", server.url)) as engine:
        (reply,) = engine.generate([constrained()])
    assert isinstance(reply, Generation)
    assert (reply.text, reply.finish) == ("Finish[Rome]\n", Finish.STOP)


def test_once_a_grammar_was_kept_a_refused_request_fails_alone(server: Server) -> None:
    server.answer = lambda *_: says("Finish[Rome]\n")  # type: ignore[method-assign]
    with closing(OpenAIEngine("m", server.url)) as engine:
        assert texts(engine, [constrained()]) == ["Finish[Rome]\n"]
        server.answer = lambda *_: fails(400, "the prompt is not allowed")  # type: ignore[method-assign]
        (said,) = texts(engine, [constrained()])
    assert "returned status 400 (first attempt): the prompt is not allowed" in said
