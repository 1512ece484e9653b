"""The response cache of paid engines: what is kept, when, and for which settings."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from stepladder.core.requests import Finish, Generation
from stepladder.engines.spend.budget import BudgetExhausted
from tests.support import openai_server
from tests.support.openai_server import Server, fails, says
from tests.support.paid_calls import Till, calls, opened, question

server = openai_server.server

TOO_LONG = "This model's maximum context length is 64 tokens."


@pytest.mark.parametrize("concurrency", [1, 4])
def test_replies_that_are_paid_are_kept_when_the_budget_ends_within_a_batch(
    server: Server, tmp_path: Path, concurrency: int
) -> None:
    """Such as the samples of a state, which are calls of their own if the server ignores `n`."""
    server.answer = Till().answer
    batch = [question(number) for number in range(6)]
    with (
        closing(opened(server, tmp_path, calls(3.9), concurrency=concurrency)) as engine,
        pytest.raises(BudgetExhausted),
    ):
        engine.generate(batch)
    assert len(server.requests) == 3
    with closing(opened(server, tmp_path, calls(9), concurrency=concurrency)) as engine:
        replies = engine.generate(batch)
    assert [getattr(reply, "text", "") for reply in replies] == [f"to Question {number:02}?" for number in range(6)]
    assert len(server.requests) == 6, "nothing is paid for twice"
    assert len((tmp_path / "replies.jsonl").read_text().splitlines()) == 6


def test_a_full_context_window_is_not_remembered(server: Server, tmp_path: Path) -> None:
    """The server may be started again with a larger window."""
    server.answer = lambda *_: fails(400, TOO_LONG)
    for _ in range(2):
        with closing(opened(server, tmp_path)) as engine:
            (reply,) = engine.generate([question(0)])
        assert isinstance(reply, Generation)
        assert reply.finish is Finish.CONTEXT_FULL
    assert len(server.requests) == 2
    server.answer = lambda *_: says("fine")
    with closing(opened(server, tmp_path)) as engine:
        (reply,) = engine.generate([question(0)])
    assert isinstance(reply, Generation)
    assert reply.text == "fine"


def test_a_full_context_window_in_an_old_cache_is_forgotten(server: Server, tmp_path: Path) -> None:
    with closing(opened(server, tmp_path)) as engine:
        engine.generate([question(0)])
    path = tmp_path / "replies.jsonl"
    path.write_text(json.dumps({**json.loads(path.read_text()), "text": "", "finish": "no_room"}) + "\n")
    with closing(opened(server, tmp_path)) as engine:
        assert [getattr(reply, "text", "") for reply in engine.generate([question(0), question(1)])] == ["fine"] * 2


@pytest.mark.parametrize("other", [{"api": "completions"}, {"extra_body": {"chat_template_kwargs": {"think": False}}}])
def test_another_endpoint_or_other_chat_options_are_other_requests(
    server: Server, tmp_path: Path, other: dict[str, object]
) -> None:
    for settings in ({}, other, {"api": "chat", "extra_body": None}, other):
        with closing(opened(server, tmp_path, **settings)) as engine:
            engine.generate([question(0)])
    assert len(server.requests) == 2
