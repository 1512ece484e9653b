"""The OpenAI engine with several samples per call, and with several servers of which some fail."""

import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from stepladder.core.errors import BackendDown, BackendError
from stepladder.core.grammars.grammar import Grammar, Text
from stepladder.core.requests import Algorithm, Finish, Generate, Generation, Sampling
from stepladder.core.trace import Author, Segment, Usage
from stepladder.driver import Driver
from stepladder.engines.openai.openai_engine import OpenAIEngine
from tests.support import openai_server
from tests.support.openai_server import Answer, Server, fails, says, says_all

server, second_server = openai_server.server, openai_server.second_server

HOT = Sampling(temperature=1.0, max_tokens=20)


def sample(text: str, seed: int, sampling: Sampling = HOT) -> Generate:
    return Generate((Segment(Author.PROMPT, text),), sampling=sampling, seed=seed)


def texts(replies: list[Generation | BackendError]) -> list[str]:
    return [reply.text if isinstance(reply, Generation) else str(reply) for reply in replies]


def model(most: int = 100) -> Callable[[dict[str, Any], int], Answer]:
    """Writes the prompt, the seed and the number of the sample; returns at most `most` samples."""

    def answer(body: dict[str, Any], _: int) -> Answer:
        start = f"{body['messages'][0]['content']} {body['seed']}"
        return says_all([f"{start}.{number}" for number in range(min(body.get("n", 1), most))])

    return answer


def asked(server: Server) -> list[int]:
    return [body.get("n", 1) for body in server.requests]


# --- several samples ------------------------------------------------------------------------------------


def test_requests_that_differ_by_their_seed_are_one_call(server: Server) -> None:
    server.answer = model()
    with closing(OpenAIEngine("m", server.url, concurrency=1)) as engine:
        found = engine.generate([sample("a", 7), sample("b", 1), sample("a", 8), sample("a", 9)])
    assert texts(found) == ["a 7.0", "b 1.0", "a 7.1", "a 7.2"]
    assert sorted(asked(server)) == [1, 3]


def test_greedy_samples_and_other_settings_are_calls_of_their_own(server: Server) -> None:
    server.answer = model()
    greedy, longer = Sampling(max_tokens=20), Sampling(temperature=1.0, max_tokens=21)
    with closing(OpenAIEngine("m", server.url, concurrency=1)) as engine:
        engine.generate([sample("a", 1, greedy), sample("a", 2, greedy), sample("a", 1), sample("a", 2, longer)])
    assert asked(server) == [1, 1, 1, 1]


def test_the_driver_puts_the_samples_of_a_state_into_one_call(server: Server) -> None:
    server.answer = model()

    def siblings(text: str) -> Algorithm[list[str]]:
        replies = yield [sample(text, seed) for seed in range(5)]
        return texts(replies)

    with closing(OpenAIEngine("m", server.url, concurrency=4)) as engine:
        outcomes = Driver(engine).run([lambda text=text: siblings(text) for text in "abc"])
    assert [outcome.value for outcome in outcomes] == [[f"{text} 0.{number}" for number in range(5)] for text in "abc"]
    assert asked(server) == [5, 5, 5]


def test_more_samples_than_a_call_may_have_are_several_calls(server: Server) -> None:
    server.answer = model()

    def many() -> Algorithm[list[str]]:
        return texts((yield [sample("a", seed) for seed in range(40)]))

    with closing(OpenAIEngine("m", server.url, concurrency=4)) as engine:
        (outcome,) = Driver(engine).run([many])
    assert outcome.value is not None
    assert len(set(outcome.value)) == 40
    assert sorted(asked(server)) == [8, 16, 16]


@pytest.mark.parametrize("most", [1, 2])
def test_samples_that_a_server_leaves_out_are_requested_one_by_one(
    server: Server, caplog: pytest.LogCaptureFixture, most: int
) -> None:
    server.answer = model(most)
    with closing(OpenAIEngine("m", server.url, concurrency=1)) as engine:
        found = texts(engine.generate([sample("a", seed) for seed in range(5)]))
        assert (len(set(found)), found[:most]) == (5, [f"a 0.{number}" for number in range(most)])
        engine.generate([sample("b", seed) for seed in range(4)])
    assert asked(server)[0] == 5
    assert max(asked(server)[1:]) == most, "noticed once"
    assert f"returned {most} of 5 samples (n)" in caplog.text


def test_a_server_that_refuses_several_samples_is_asked_for_one(server: Server) -> None:
    def answer(body: dict[str, Any], number: int) -> Answer:
        if "n" in body:
            return fails(400, "Only one completion choice is allowed")
        return model()(body, number)

    server.answer = answer
    with closing(OpenAIEngine("m", server.url, concurrency=1)) as engine:
        assert texts(engine.generate([sample("a", seed) for seed in range(3)])) == ["a 0.0", "a 1.0", "a 2.0"]
        assert engine.retries == 0


def test_a_server_with_two_slots_is_asked_for_two_samples(server: Server) -> None:
    """As llama.cpp says it."""

    def answer(body: dict[str, Any], n: int) -> Answer:
        count = body.get("n", 1)
        if count > 2:
            return fails(400, f"Field 'n': Value must be between 1 <= value <= 2, but got {count}")
        return says_all([f"{body['seed']}.{each}" for each in range(count)])

    server.answer = answer
    with closing(OpenAIEngine("m", server.url)) as engine:
        assert texts(engine.generate([sample("a", seed) for seed in range(5)])) == ["0.0", "0.1", "2.0", "2.1", "4.0"]
    assert sorted(body.get("n", 1) for body in server.requests) == [1, 2, 2, 5]


def test_tokens_are_counted_once(server: Server) -> None:
    server.answer = lambda body, _: says_all(["x", "yyy"], usage={"prompt_tokens": 9, "completion_tokens": 8})
    with closing(OpenAIEngine("m", server.url)) as engine:
        first, second = engine.generate([sample("a", 1), sample("a", 2)])
    assert isinstance(first, Generation)
    assert isinstance(second, Generation)
    assert (first.usage, second.usage) == (Usage(9, 2), Usage(0, 6))


def test_one_bad_choice_fails_alone_and_broken_json_fails_all(server: Server) -> None:
    body = says_all(["x", "y"]).body
    body["choices"][1]["message"]["content"] = None
    server.answer = lambda *_: Answer(body=body)
    with closing(OpenAIEngine("m", server.url)) as engine:
        good, bad = texts(engine.generate([sample("a", 1), sample("a", 2)]))
        assert good == "x"
        assert "returned no text" in bad
        server.answer = lambda *_: Answer(body=b'{"choices": [')
        for error in texts(engine.generate([sample("a", 1), sample("a", 2)])):
            assert error.startswith(f"{server.url} returned an invalid completion (JSONDecodeError")


def test_a_server_that_only_returns_empty_texts_is_an_error_until_a_text_comes(server: Server) -> None:
    server.answer = lambda *_: says("")
    with closing(OpenAIEngine("m", server.url)) as engine:
        assert (
            "returned an empty text (finish reason end). Check the chat template"
            in texts(engine.generate([sample("a", 1)]))[0]
        )
        server.answer = lambda *_: says("x")
        engine.generate([sample("a", 1)])
        server.answer = lambda *_: says("")
        (reply,) = engine.generate([sample("a", 2)])
    assert isinstance(reply, Generation), "the model's own choice"
    assert reply.finish is Finish.END


# --- several servers ------------------------------------------------------------------------------------


def test_calls_go_to_the_least_busy_server(server: Server, second_server: Server) -> None:
    def slow(body: dict[str, Any], number: int) -> Answer:
        server.over.wait(0.15)
        return model()(body, number)

    server.answer, second_server.answer = slow, model()
    with closing(OpenAIEngine("m", [server.url, second_server.url], concurrency=4)) as engine:
        found = texts(engine.generate([sample(str(number), 0) for number in range(40)]))
    assert found == [f"{number} 0.0" for number in range(40)]
    assert 0 < len(server.requests) < len(second_server.requests)


def test_a_server_that_dies_loses_nothing_and_doubles_nothing(
    server: Server, second_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def dies_at_the_fifth(body: dict[str, Any], number: int) -> Answer:
        if number == 4:
            second_server.die()
        return model()(body, number)

    server.answer, second_server.answer = model(), dies_at_the_fifth
    with closing(OpenAIEngine("m", [server.url, second_server.url], concurrency=4, backoff=0.01)) as engine:
        found = texts(engine.generate([sample(str(number), 0) for number in range(60)]))
    assert found == [f"{number} 0.0" for number in range(60)]
    answered = Counter(body["messages"][0]["content"] for body in [*server.answered, *second_server.answered])
    assert set(answered.values()) == {1}, "nothing that a server had answered was requested again"
    assert f"{second_server.url} fails" in caplog.text
    assert "its calls go to the other servers" in caplog.text


def test_a_server_with_another_key_is_given_up_and_the_run_ends_with_the_last(
    server: Server, second_server: Server
) -> None:
    server.answer, second_server.answer = model(), lambda *_: fails(401, "bad key")
    with closing(OpenAIEngine("m", [server.url, second_server.url], concurrency=2)) as engine:
        assert len(engine.generate([sample(str(number), 0) for number in range(20)])) == 20
        assert len(second_server.requests) <= 2
        server.answer = lambda *_: fails(404, "no such model")
        with pytest.raises(BackendDown, match="has no chat API of model 'm'"):
            engine.generate([sample("x", 0)])


def test_a_server_that_is_busy_for_an_hour_is_passed_over(server: Server, second_server: Server) -> None:
    server.answer = model()
    second_server.answer = lambda *_: fails(429, "come back later", headers={"Retry-After": "3600"})
    with closing(OpenAIEngine("m", [server.url, second_server.url], concurrency=2)) as engine:
        assert len(texts(engine.generate([sample(str(number), 0) for number in range(20)]))) == 20
    assert len(second_server.requests) <= 2


def test_no_server_responds_at_all(server: Server, second_server: Server) -> None:
    server.die()
    second_server.die()
    with (
        closing(OpenAIEngine("m", [server.url, second_server.url], backoff=0.001)) as engine,
        pytest.raises(BackendDown, match=r"no server responds at .* or .*Start it, or correct the URL"),
    ):
        engine.generate([sample("x", 0)])


def test_a_server_named_twice_is_a_mistake(server: Server) -> None:
    with pytest.raises(BackendDown, match="is named twice"):
        OpenAIEngine("m", [server.url, f"{server.url}/"])


# --- HTTP -----------------------------------------------------------------------------------------------


def test_chunked_responses_and_basic_authentication(server: Server) -> None:
    def handle(handler: Any) -> None:
        handler.rfile.read(int(handler.headers["Content-Length"]))
        server.keys.append(handler.headers["Authorization"])
        body = json.dumps(says("fine").body).encode()
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for part in (body[:9], body[9:]):
            handler.wfile.write(b"%x;note=1\r\n%s\r\n" % (len(part), part))
        handler.wfile.write(b"0\r\nTrailer: x\r\n\r\n")

    server.handle = handle  # type: ignore[method-assign]
    with closing(OpenAIEngine("m", server.url.replace("//", "//ann:p%40ss@"))) as engine:
        assert texts(engine.generate([sample("a", 1)])) == ["fine"]
        assert texts(engine.generate([sample("a", 1)])) == ["fine"], "on the same connection"
        assert "p@ss" not in repr(engine)
    assert server.keys == ["Basic YW5uOnBAc3M="] * 2


# --- grammars -------------------------------------------------------------------------------------------

ANSWER = Grammar((("<answer>", Text(), "</answer>"),))


def constrained(seed: int = 1) -> Generate:
    return Generate((Segment(Author.PROMPT, "a"),), ("</answer>",), HOT, seed, grammar=ANSWER)


def test_a_grammar_is_sent_in_the_fields_of_the_servers_that_take_one(server: Server) -> None:
    server.answer = lambda *_: says("<answer>Rome</answer>")
    with closing(OpenAIEngine("m", server.url)) as engine:
        assert texts(engine.generate([constrained()])) == ["<answer>Rome</answer>"]
        server.answer = lambda *_: says("<answer>cut", "length")
        assert texts(engine.generate([constrained(2)])) == ["<answer>cut"]
    assert {"structured_outputs", "regex", "grammar"} <= server.requests[0].keys()
    with closing(OpenAIEngine("m", server.url, grammar_kind="llama.cpp")) as engine:
        engine.generate([constrained()])
    assert "grammar" in server.requests[-1]
    assert "regex" not in server.requests[-1]


def test_a_grammar_for_llama_cpp_has_only_escapes_that_it_knows() -> None:
    grammar = Grammar((("Finish[", Text(without="<]", required=True), "]"), ("a", Text(without="^-"), "b")))
    for escape in re.findall(r"\\(.)", grammar.gbnf(64)):
        assert escape in 'xuUtrn\\"[]'
    assert re.fullmatch(grammar.regex(64), "Finish[a^b-c]")
    assert not re.fullmatch(grammar.regex(64), "a1-2b")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (fails(400, "failed to parse grammar"), "refuses the grammar of format: constrained .400: failed to parse"),
        (says("Rome, I think."), "ignores the grammar of format: constrained: it wrote 'Rome, I think.'"),
    ],
)
def test_a_server_without_grammars_is_a_clear_error(server: Server, answer: Answer, problem: str) -> None:
    server.answer = lambda *_: answer
    with closing(OpenAIEngine("m", server.url)) as engine, pytest.raises(BackendDown, match=problem) as caught:
        engine.generate([constrained()])
    assert "or use format: lenient" in str(caught.value)


def test_a_proxy_of_the_environment_is_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url.removesuffix("/v1"))
    with closing(OpenAIEngine("m", "http://model.invalid:81/v1")) as engine:
        assert texts(engine.generate([sample("a", 1)])) == ["fine"]
    assert server.paths == ["http://model.invalid:81/v1/chat/completions"]
