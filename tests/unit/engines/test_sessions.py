"""Requests that join and leave an engine one by one: the same replies, in fewer passes, and nobody waits for long."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from stepladder.core.errors import BackendDown, BackendError
from stepladder.core.requests import Algorithm, Finish, Generate, Generation, Sampling
from stepladder.core.trace import Author, Segment
from stepladder.driver import Driver
from stepladder.driver.queues import PendingRequest, RequestQueue
from stepladder.driver.request_cache import RequestCache
from stepladder.engines.base import EngineOutOfMemory, Session
from stepladder.engines.scripted import ScriptedEngine
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.models.tiny import tiny_tokenizer
from tests.support.prompts import FOUND, QUESTIONS, assert_alike, exact, generate, sliding, tokens_read


def ask(text: str, tokens: int = 8, **more: Any) -> Generate:
    return Generate((Segment(Author.PROMPT, text),), sampling=Sampling(max_tokens=tokens), **more)


def opened(engine: TransformersEngine) -> Session:
    session = engine.open_session()
    assert session is not None
    return session


@pytest.mark.slow
@settings(max_examples=4)
@given(st.randoms(use_true_random=False))
def test_replies_do_not_depend_on_who_else_is_under_way(rng: Random) -> None:
    engine = exact("tiny", 4_000_000)
    alone = TransformersEngine(engine.model, engine.tokenizer, prefix_bytes=0)
    session = opened(engine)
    states: list[tuple[Segment, ...]] = [(Segment(Author.PROMPT, text),) for text in QUESTIONS]
    asked: dict[Hashable, Generate] = {}
    under_way: set[Hashable] = set()
    for number in range(30):
        joining = {
            (number, place): Generate(
                rng.choice(states),
                stop=rng.choice([(), ("e",)]),
                sampling=Sampling(rng.choice([0.0, 1.0]), rng.choice([1.0, 0.9]), rng.choice([1, 3, 40])),
                seed=rng.randrange(3),
            )
            for place in range(rng.choice([0, 0, 1, 5]))
        }
        asked |= joining
        under_way |= joining.keys()
        session.add(joining)
        replies = session.step()
        assert bool(replies) == bool(under_way)
        assert replies.keys() <= under_way
        under_way -= replies.keys()
        for key, reply in replies.items():
            assert isinstance(reply, Generation)
            assert_alike([reply], generate(alone, asked[key]))
            if len(reply.context) < 7:
                states.append((*reply.context, reply.written, Segment(Author.ENVIRONMENT, rng.choice(FOUND))))


def test_a_short_reply_comes_before_a_long_one_and_others_join_meanwhile() -> None:
    session = opened(TransformersEngine("tiny", device="cpu"))
    session.add({"long": ask("a" * 20, 30), "short": ask("b" * 20, 2)})
    assert list(session.step()) == ["short"]
    session.add({"later": ask("c" * 20, 3)})
    assert list(session.step()) == ["later"]
    assert list(session.step()) == ["long"]
    assert session.step() == {}


def test_what_a_row_has_read_is_known_as_soon_as_it_has_ended() -> None:
    engine = TransformersEngine("tiny", device="cpu")
    session = opened(engine)
    session.add({"long": ask("x" * 60, 40), "short": ask("y" * 60, 4)})
    short = session.step()["short"]
    assert isinstance(short, Generation)
    further = Segment(Author.ENVIRONMENT, "z" * 10)
    with tokens_read(engine) as sizes:
        session.add({"on": Generate((*short.context, short.written, further), sampling=Sampling(max_tokens=2))})
        session.step()
    assert sizes[0] == 11, "the last token written, and what is new"


def test_requests_that_need_no_work_are_answered_at_once() -> None:
    session = opened(TransformersEngine("tiny", device="cpu", context_limit=10))
    session.add({"empty": Generate(()), "full": ask("x" * 10)})
    replies = session.step()
    assert isinstance(replies["empty"], BackendError)
    full = replies["full"]
    assert isinstance(full, Generation)
    assert full.finish is Finish.CONTEXT_FULL


def test_weights_must_not_change_while_something_is_being_written() -> None:
    engine = TransformersEngine("tiny", device="cpu")
    session = opened(engine)
    session.add({"a": ask("abc", 20), "short": ask("abe", 1)})
    assert list(session.step()) == ["short"]
    with torch.no_grad():
        next(engine.model.parameters()).mul_(1.5)
    session.add({"b": ask("abd", 20)})
    with pytest.raises(BackendDown, match="changed during generation"):
        session.step()


def test_they_may_change_in_between() -> None:
    engine = TransformersEngine("tiny", device="cpu")
    session = opened(engine)
    session.add({"a": ask("abc" * 8, 4)})
    session.step()
    with torch.no_grad():
        next(engine.model.parameters()).mul_(1.5)
    session.add({"a": ask("abc" * 8, 4)})
    (after,) = session.step().values()
    assert after == generate(TransformersEngine(engine.model, engine.tokenizer, prefix_bytes=0), ask("abc" * 8, 4))[0]


def test_the_model_is_left_as_it_was() -> None:
    engine = TransformersEngine("tiny", device="cpu")
    engine.model.train()
    before = engine.model.config._attn_implementation
    session = opened(engine)
    session.add({"a": ask("abc", 3)})
    assert engine.model.training
    session.step()
    assert engine.model.training
    assert engine.model.config._attn_implementation == before


def test_models_that_cannot_be_packed_work_in_whole_batches() -> None:
    engine = TransformersEngine(sliding(), tiny_tokenizer())
    assert engine.open_session() is None
    (done,) = Driver(engine).run([lambda: _say("abc", 5)])
    assert done.value is not None


# --- under the driver -----------------------------------------------------------------------------------------


def _say(text: str, tokens: int) -> Algorithm[str]:
    return str((yield ask(text, tokens)).text)


def test_the_driver_fills_the_place_of_those_that_have_ended() -> None:
    """One long reply and many short ones: the passes are those of the long one, not of a batch after the other."""
    jobs = [lambda number=number: _say("q" * (5 + number), 60 if number == 0 else 4) for number in range(41)]

    def passes(engine: TransformersEngine) -> tuple[int, list[Any]]:
        with tokens_read(engine) as sizes:
            outcomes = Driver(engine).run(jobs)
        return len(sizes), [outcome.value for outcome in outcomes]

    class Batches(TransformersEngine):
        def open_session(self) -> None:
            return None

    joined, said = passes(TransformersEngine("tiny", device="cpu", max_batch=8))
    batched, same = passes(Batches("tiny", device="cpu", max_batch=8))
    assert said == same
    assert joined <= 60 + 10 < batched


class OneByOne(Session):
    """A session of an engine that answers one waiting request per step."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.waiting: dict[Hashable, Generate] = {}

    def add(self, requests: Mapping[Hashable, Generate]) -> None:
        self.waiting |= requests

    def step(self) -> dict[Hashable, Any]:
        key = next(iter(self.waiting))
        return {key: ScriptedEngine.generate(self.engine, [self.waiting.pop(key)])[0]}


class Fragile(ScriptedEngine):
    """Has sessions, which break when they meet a bad request."""

    def __init__(self) -> None:
        super().__init__(lambda request: request.context[0].text + "!", max_batch=8)
        self.sessions = 0
        self.calls: list[int] = []

    def generate(self, requests: Sequence[Generate]) -> Any:
        self.calls.append(len(requests))
        if any("bad" in request.context[0].text for request in requests):
            raise MemoryError("too much")
        return super().generate(requests)

    def open_session(self) -> Session:
        self.sessions += 1

        class Some(OneByOne):
            def step(self) -> dict[Hashable, Any]:
                if any("bad" in request.context[0].text for request in self.waiting.values()):
                    raise MemoryError("too much")
                return super().step()

        return Some(self)


def test_a_session_that_breaks_costs_nobody_but_the_bad_request_its_reply() -> None:
    engine = Fragile()
    texts = [f"t{number}" for number in range(12)]
    texts[5] = "bad"
    outcomes = Driver(engine).run([lambda text=text: _say(text, 9) for text in texts])
    assert [outcome.value for outcome in outcomes] == [None if text == "bad" else f"{text}!" for text in texts]
    assert outcomes[5].failure is not None
    assert "too much" in outcomes[5].failure.reason
    assert engine.sessions == 2, "after the ordinary way has found the culprit, another session goes on"
    assert engine.calls[:1] == [8]


def test_where_memory_is_short_sessions_have_fewer_rows_from_then_on(caplog: pytest.LogCaptureFixture) -> None:
    class Small(ScriptedEngine):
        """Has room for three rows."""

        most = 0

        def open_session(self) -> Session:
            engine = self

            class Some(OneByOne):
                def step(self) -> dict[Hashable, Any]:
                    if len(self.waiting) > 3:
                        raise EngineOutOfMemory("full")
                    engine.most = max(engine.most, len(self.waiting))
                    return super().step()

            return Some(self)

    engine = Small(lambda request: request.context[0].text + "!", max_batch=8)
    outcomes = Driver(engine).run([lambda number=number: _say(f"t{number}", 9) for number in range(40)])
    assert [outcome.value for outcome in outcomes] == [f"t{number}!" for number in range(40)]
    assert engine.most == 2
    assert engine.max_batch == 2, "the next run starts with that"
    assert [record.message for record in caplog.records] == [
        "out of memory with 8 rows: the batch size is 4 from now on",
        "out of memory with 4 rows: the batch size is 2 from now on",
    ]


@pytest.mark.parametrize(
    ("before", "running", "after"), [(64, 64, 32), (64, 40, 20), (64, 3, 16), (64, 1, 64), (1, 1, 1)]
)
def test_few_rows_that_were_too_long_say_little_about_the_others(before: int, running: int, after: int) -> None:
    queue = RequestQueue(Generate, ScriptedEngine(lambda _: "", max_batch=before), lambda *_: [], RequestCache(0, 0))
    queue.running = {bytes([number]): PendingRequest(b"", ask("a"), 0, number) for number in range(running)}
    queue.reduce_batch()
    assert queue.max_batch == after


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no more"), RuntimeError("can't allocate memory: no more"), MemoryError("no more")]
)
def test_memory_that_runs_out_in_a_session_is_told_as_such(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    engine = TransformersEngine("tiny", device="cpu")
    session = engine.open_session()
    assert session is not None
    session.add({0: ask("abc")})

    def full(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(engine.model, "forward", full)
    with pytest.raises(EngineOutOfMemory, match="no more"):
        session.step()


def test_an_engine_that_goes_down_in_a_session_stops_the_run() -> None:
    class Down(Fragile):
        def open_session(self) -> Session:
            session = super().open_session()

            def work() -> dict[Hashable, Any]:
                raise BackendDown("gone")

            session.step = work  # type: ignore[method-assign]
            return session

    with pytest.raises(BackendDown, match="gone"):
        Driver(Down()).run([lambda: _say("a", 1)])


def test_seeds_still_belong_to_requests() -> None:
    hot = Sampling(1.0, max_tokens=12)
    requests = [replace(ask("abcdef"), sampling=hot, seed=seed) for seed in range(6)]
    engine = TransformersEngine("tiny", device="cpu", max_batch=2)

    def say(request: Generate) -> Algorithm[Any]:
        return (yield request).written.tokens

    found = [outcome.value for outcome in Driver(engine).run([lambda r=r: say(r) for r in requests])]
    assert found == [reply.written.tokens for reply in generate(TransformersEngine("tiny", device="cpu"), *requests)]
    assert len(set(found)) > 1
