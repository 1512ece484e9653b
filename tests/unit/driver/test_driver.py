"""The driver: order, batching, failures, Ctrl-C."""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import Any

import pytest

from stepladder.core.errors import BackendDown, BackendError, StepladderError
from stepladder.core.requests import Algorithm, BestEffort, Finish, Generate, Generation, Retrieve, Sampling, Score
from stepladder.core.step_scorer import StepScorer
from stepladder.core.trace import Author, Question, Segment, Trajectory
from stepladder.driver import Driver, Interrupted, Outcome
from stepladder.driver.queues import RequestQueue
from stepladder.driver.request_cache import RequestCache, group_of, keys_of
from stepladder.engines.base import Engine
from stepladder.engines.scripted import ScriptedEngine
from tests.support.samples import WordRetriever

NO_CACHE = RequestCache(0, 0)


def prompt(text: str, seed: int = 0) -> Generate:
    return Generate((Segment(Author.PROMPT, text),), sampling=Sampling(temperature=1.0), seed=seed)


def values(outcomes: list[Outcome[Any]]) -> list[Any]:
    assert all(outcome.failure is None for outcome in outcomes), outcomes
    return [outcome.value for outcome in outcomes]


def echo(request: Generate) -> str:
    """A reply that shows prompt and seed, so that mix-ups show."""
    return f"{request.context[0].text}/{request.seed}"


def conversation(name: int, turns: int) -> Algorithm[list[str]]:
    said = []
    for turn in range(turns):
        reply: Generation = yield prompt(f"{name}.{turn}", seed=turn)
        said.append(reply.text)
    return said


def test_many_conversations_come_back_in_order_each_with_its_own_replies() -> None:
    engine = ScriptedEngine(echo, max_batch=7)
    turns = [random.Random(3).randrange(5) for _ in range(50)]
    jobs = [lambda name=name: conversation(name, turns[name]) for name in range(50)]
    expected = [[f"{name}.{turn}/{turn}" for turn in range(turns[name])] for name in range(50)]
    assert values(Driver(engine).run(jobs)) == expected


@pytest.mark.parametrize(("max_batch", "concurrency", "in_flight"), [(1, 1, 1), (64, 1, 1024), (3, 1, 5), (2, 8, 16)])
def test_results_do_not_depend_on_batching_or_concurrency(max_batch: int, concurrency: int, in_flight: int) -> None:
    engine = ScriptedEngine(echo, max_batch=max_batch, concurrency=concurrency)
    jobs = [lambda name=name: conversation(name, 3) for name in range(20)]
    expected = [[f"{name}.{turn}/{turn}" for turn in range(3)] for name in range(20)]
    assert values(Driver(engine, in_flight=in_flight).run(jobs)) == expected


class CountingEngine(ScriptedEngine):
    """Remembers the size of every batch."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(echo, **settings)
        self.batches: list[list[Generate]] = []

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        self.batches.append(list(requests))
        return super().generate(requests)


def search_then_speak(name: int) -> Algorithm[str]:
    found = yield Retrieve(f"tower {name}", k=1 + name % 2)
    reply = yield prompt(f"{name} {len(found)}")
    return str(reply.text)


def test_requests_are_gathered_into_full_batches_even_when_searches_come_between(retriever: WordRetriever) -> None:
    engine = CountingEngine(max_batch=8)
    # Every second job searches first; the others could speak at once.
    jobs = [
        (lambda name=name: search_then_speak(name)) if name % 2 else (lambda name=name: conversation(name, 1))
        for name in range(16)
    ]
    Driver(engine, retriever).run(jobs)
    assert [len(batch) for batch in engine.batches] == [8, 8]


def test_batches_are_the_same_on_every_run(retriever: WordRetriever) -> None:
    runs = []
    for _ in range(2):
        engine = CountingEngine(max_batch=5)
        Driver(engine, retriever).run([lambda name=name: search_then_speak(name) for name in range(13)])
        runs.append(engine.batches)
    assert runs[0] == runs[1]


def test_equal_requests_are_answered_once_for_all_who_ask(retriever: WordRetriever) -> None:
    def same() -> Algorithm[str]:
        yield Retrieve("tower", 2)
        reply = yield prompt("the same", seed=5)
        return str(reply.text)

    engine = CountingEngine()
    driver = Driver(engine, retriever)
    assert values(driver.run([same] * 10)) == ["the same/5"] * 10
    assert [len(batch) for batch in engine.batches] == [1]
    assert retriever.calls == [["tower"]]
    assert driver.counts.calls == {"Retrieve": 1, "Generate": 1}
    assert (driver.counts.merged, driver.counts.answered_by_cache) == (18, 0)
    values(driver.run([same]))
    assert driver.counts.answered_by_cache == 1
    assert len(retriever.calls) == 1, "the second run should have found the search in the cache"


def test_the_retrieval_cache_is_bounded(retriever: WordRetriever) -> None:
    def search(word: str) -> Algorithm[None]:
        yield Retrieve(word, 1)

    driver = Driver(retriever=retriever, retrieval_cache=2, in_flight=1)
    driver.run([lambda word=word: search(word) for word in ("a", "b", "c", "a")])
    assert [call[0] for call in retriever.calls] == ["a", "b", "c", "a"]


def test_a_list_of_requests_gets_the_list_of_replies(retriever: WordRetriever) -> None:
    def ask_all() -> Algorithm[tuple[str, int, list[Any]]]:
        spoken, found = yield [prompt("hello", 1), Retrieve("tower", 2)]
        nothing = yield []
        return spoken.text, len(found), nothing

    assert values(Driver(ScriptedEngine(echo), retriever).run([ask_all])) == [("hello/1", 2, [])]


class StepCounter(StepScorer):
    """A scorer that gives every trajectory the number of its steps."""

    max_batch = 4
    concurrency = 1

    def score(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...]]:
        return [(float(len(each.steps)),) for each in trajectories]


def test_scores_are_asked_for_like_everything_else(question: Question) -> None:
    def scored() -> Algorithm[tuple[float, ...]]:
        scores: tuple[float, ...] = yield Score(Trajectory(question, "x"))
        return scores

    assert values(Driver(scorer=StepCounter()).run([scored] * 3)) == [(0.0,)] * 3


def test_a_failing_job_is_recorded_with_its_reason_and_the_others_go_on() -> None:
    def bug() -> Algorithm[str]:
        yield prompt("x")
        raise ZeroDivisionError("oh no")

    jobs = [lambda: conversation(0, 2), bug, lambda: conversation(2, 1)]
    first, second, third = Driver(ScriptedEngine(echo)).run(jobs)
    assert (first.value, third.value) == (["0.0/0", "0.1/1"], ["2.0/0"])
    assert second.failure is not None
    assert second.failure.reason == "ZeroDivisionError: oh no"
    assert "in bug" in second.failure.traceback


class FussyEngine(ScriptedEngine):
    """Refuses some requests, and breaks down on others."""

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        if any("crash" in request.context[0].text for request in requests):
            raise MemoryError("no room")
        replies = super().generate(requests)
        refused = ["refuse" in request.context[0].text for request in requests]
        return [BackendError("too long") if no else reply for no, reply in zip(refused, replies)]


def speak(text: str) -> Algorithm[str]:
    reply = yield prompt(text)
    return str(reply.text)


def test_a_refused_request_fails_its_own_job_only() -> None:
    outcomes = Driver(FussyEngine(echo)).run([lambda: speak("a"), lambda: speak("refuse"), lambda: speak("b")])
    assert [outcome.value for outcome in outcomes] == ["a/0", None, "b/0"]
    assert outcomes[1].failure is not None
    assert outcomes[1].failure.reason == "too long"


def test_a_call_that_breaks_fails_its_batch_and_the_run_goes_on() -> None:
    engine = FussyEngine(echo, max_batch=1)
    outcomes = Driver(engine).run([lambda: speak("crash"), lambda: speak("b")])
    assert outcomes[0].failure is not None
    assert outcomes[0].failure.reason == "MemoryError: no room"
    assert outcomes[1].value == "b/0"


def test_an_algorithm_may_handle_the_failure_of_its_request() -> None:
    def careful() -> Algorithm[str]:
        try:
            yield prompt("refuse")
        except BackendError:
            reply = yield prompt("again")
            return str(reply.text)
        return "not reached"

    assert values(Driver(FussyEngine(echo)).run([careful])) == ["again/0"]


class DownEngine(Engine):
    name = "down"

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        raise BackendDown("wrong key")


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_engine_that_cannot_work_at_all_stops_the_run(concurrency: int) -> None:
    engine = DownEngine()
    engine.concurrency = concurrency
    with pytest.raises(BackendDown, match="wrong key"):
        Driver(engine).run([lambda: speak("a")] * 10)


def test_an_engine_that_hands_back_that_it_is_down_stops_the_run_like_one_that_raises_it() -> None:
    class Polite(DownEngine):
        def generate(self, requests: Sequence[Generate]) -> Any:
            return [BackendDown("wrong key") for _ in requests]

    def tolerant() -> Algorithm[Any]:
        return (yield BestEffort([prompt("a"), prompt("b")]))

    with pytest.raises(BackendDown, match="wrong key"):
        Driver(Polite()).run([tolerant])


def test_equal_requests_have_one_key_whatever_objects_they_are_made_of() -> None:
    def ask(text: str, tokens: Sequence[int], logprob: float = 0.0) -> Generate:
        return Generate((Segment(Author.POLICY, text, tuple(tokens), (logprob,) * len(tokens), "v"),))

    text, tokens = "half \ud83d", [7, 70_000, 7]
    same = ask("".join(list(text)), [int(str(each)) for each in tokens], -0.5)
    assert keys_of([ask(text, tokens)]) == keys_of([same])
    others = [ask(text, [7, 70_000, 8]), ask(text, []), ask(text[:-1], tokens), replace(same, seed=1)]
    assert len(set(keys_of([same, *others]))) == 5


def test_samples_of_one_state_have_keys_of_their_own_and_one_group() -> None:
    samples = [prompt("a", seed) for seed in (1, 11, 1 << 62)]
    shared = [replace(samples[0], seed=each.seed) for each in samples]
    assert keys_of(shared) == keys_of(samples) == [keys_of([each])[0] for each in samples]
    assert len(set(keys_of(samples))) == 3
    assert len({group_of(key) for key in keys_of(samples)}) == 1
    warmer, ended = Sampling(temperature=0.5), ("</a>",)
    others = [replace(samples[0], sampling=warmer), replace(samples[0], stop=ended), prompt("b", 1)]
    assert len({group_of(key) for key in keys_of([samples[0], *others])}) == 4


def test_asking_for_what_the_driver_lacks_says_what_to_pass() -> None:
    def search() -> Algorithm[None]:
        yield Retrieve("x")

    with pytest.raises(StepladderError, match="no index: pass a retriever"):
        Driver(ScriptedEngine(echo)).run([search])


def test_yielding_nonsense_is_the_jobs_own_failure() -> None:
    def wrong() -> Algorithm[None]:
        yield ["not a request"]  # type: ignore[list-item]

    (outcome,) = Driver(ScriptedEngine(echo)).run([wrong])
    assert outcome.failure is not None
    assert "it may yield Generate, Retrieve and Score" in outcome.failure.reason


def test_jobs_are_opened_as_room_comes_free_not_all_at_once() -> None:
    opened = 0

    def jobs() -> Any:
        nonlocal opened
        for name in range(1000):
            opened += 1
            yield lambda name=name: conversation(name, 2)

    stream = Driver(ScriptedEngine(echo), in_flight=10).stream(jobs())
    next(stream)
    assert opened <= 30
    stream.close()


# --- Jobs that arrive while others run ----------------------------------------------------------------------


def test_none_is_no_job_and_the_next_one_joins_those_under_way() -> None:
    engine = CountingEngine()
    handed_over = 0

    def jobs() -> Any:
        yield lambda: conversation(0, 3)
        yield None
        assert handed_over == 0, "the first is still under way"
        yield lambda: conversation(1, 1)
        yield None

    for outcome in Driver(engine).stream(jobs()):
        handed_over += 1
        assert outcome.value == [f"{outcome.index}.{turn}/{turn}" for turn in range(3 if outcome.index == 0 else 1)]
    assert handed_over == 2
    assert [len(batch) for batch in engine.batches] == [1, 2, 1], "the second joined the first at its second turn"


def test_jobs_may_be_waited_for_when_all_before_were_handed_over() -> None:
    arriving: Any = threading.Semaphore(0)
    open_jobs = 0

    def jobs() -> Any:
        nonlocal open_jobs
        for name in range(3):
            while open_jobs:
                yield None
            arriving.acquire()  # waits for ever unless the outcome of the job before has been handed over
            open_jobs += 1
            yield lambda name=name: conversation(name, 1)

    arriving.release()
    seen = []
    for outcome in Driver(ScriptedEngine(echo)).stream(jobs()):
        open_jobs -= 1
        seen.append((outcome.index, outcome.value))
        arriving.release()
    assert seen == [(name, [f"{name}.0/0"]) for name in range(3)]


def test_a_job_that_arrives_is_not_held_up_by_a_call_under_way_in_another_thread() -> None:
    second_is_done = threading.Event()

    def say(request: Generate) -> str:
        if request.context[0].text == "slow":
            assert second_is_done.wait(10), "the second job waited for the first"
        return "ok"

    def jobs() -> Any:
        yield lambda: speak("slow")
        yield None
        yield lambda: speak("quick")

    driver = Driver(ScriptedEngine(say, max_batch=1, concurrency=2))
    order = []
    for outcome in driver.stream(jobs()):
        order.append(outcome.index)
        second_is_done.set()
    assert order == [1, 0]


def closes(name: int, closed: list[int]) -> Algorithm[int]:
    """One request; `closed` gets the name when the job ends or is closed."""
    try:
        yield prompt(str(name))
        return name
    finally:
        closed.append(name)


@pytest.fixture
def _ctrl_c_works() -> Iterator[None]:
    """Shells start background jobs with Ctrl-C switched off, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_works")
@pytest.mark.parametrize("concurrency", [1, 4])
def test_ctrl_c_keeps_what_is_finished_and_closes_the_rest(concurrency: int) -> None:
    closed: list[int] = []

    def slow(request: Generate) -> str:
        if request.context[0].text == "30":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        return "ok"

    driver = Driver(ScriptedEngine(slow, max_batch=10, concurrency=concurrency), in_flight=20)
    with pytest.raises(Interrupted) as caught:
        driver.run([lambda name=name: closes(name, closed) for name in range(100)])
    outcomes = caught.value.outcomes
    assert len(outcomes) == 100
    done = [outcome.index for outcome in outcomes if outcome.failure is None]
    assert 10 <= len(done) < 100
    assert all(outcome.value == outcome.index for outcome in outcomes if outcome.failure is None)
    assert {outcome.failure.stop.value for outcome in outcomes if outcome.failure} == {"cancelled"}
    assert set(done) <= set(closed)
    assert len(closed) <= len(done) + 20, "jobs that were never opened should not have run"


def test_threads_of_a_concurrent_engine_really_overlap() -> None:
    together = threading.Barrier(4, timeout=10)

    def wait(request: Generate) -> str:
        together.wait()
        return "ok"

    engine = ScriptedEngine(wait, max_batch=1, concurrency=4)
    assert values(Driver(engine).run([lambda name=name: speak(str(name)) for name in range(4)])) == ["ok"] * 4


def test_scripted_replies_honour_stops_and_limits() -> None:
    engine = ScriptedEngine(lambda request: "<a>one</a> two")
    request = Generate((Segment(Author.PROMPT, "?"),), stop=("</a>",))
    (reply,) = engine.generate([request])
    assert isinstance(reply, Generation)
    assert (reply.text, reply.finish) == ("<a>one</a>", Finish.STOP)
    (short,) = engine.generate([Generate(request.context, ("</a>",), Sampling(max_tokens=4))])
    assert isinstance(short, Generation)
    assert (short.text, short.finish) == ("<a>o", Finish.LENGTH)


# --- what one job may do to the others ---------------------------------------------------------------------


def test_a_call_that_breaks_is_made_again_in_halves_so_that_one_bad_request_fails_alone() -> None:
    engine = FussyEngine(echo, max_batch=8)
    texts = ["a", "b", "crash", "c", "d", "e", "f", "g"]
    outcomes = Driver(engine).run([lambda text=text: speak(text) for text in texts])
    assert [outcome.value for outcome in outcomes] == [None if text == "crash" else f"{text}/0" for text in texts]


def test_an_error_shared_by_many_does_not_collect_their_frames() -> None:
    class Broken(ScriptedEngine):
        error = MemoryError("no room")

        def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
            raise self.error

    outcomes = Driver(Broken(echo)).run([lambda name=name: speak(str(name)) for name in range(300)])
    lengths = [len(outcome.failure.traceback.splitlines()) for outcome in outcomes if outcome.failure]
    assert len(lengths) == 300
    assert max(lengths) < 60


def test_jobs_that_break_before_or_after_their_work_fail_alone() -> None:
    def no_generator() -> Any:
        return "not a generator"

    def broken_factory() -> Any:
        raise ValueError("no such question")

    def broken_ending() -> Algorithm[str]:
        try:
            yield prompt("refuse")
        finally:
            raise RuntimeError("cannot tidy up")

    jobs = [no_generator, broken_factory, broken_ending, lambda: speak("fine")]
    outcomes = Driver(FussyEngine(echo)).run(jobs)
    reasons = [outcome.failure.reason if outcome.failure else "" for outcome in outcomes]
    assert "must return a generator" in reasons[0]
    assert reasons[1] == "ValueError: no such question"
    assert "cannot tidy up" in reasons[2]
    assert outcomes[3].value == "fine/0"


def test_a_generator_that_will_not_close_does_not_hide_why_the_run_ended() -> None:
    def stubborn() -> Algorithm[str]:
        try:
            yield prompt("x")
        finally:
            raise RuntimeError("cannot tidy up")

    with pytest.raises(BackendDown, match="wrong key"):
        Driver(DownEngine()).run([stubborn] * 3)


def test_two_questions_of_one_text_are_not_taken_for_each_other() -> None:
    def ask(name: str) -> Algorithm[str]:
        trajectory = Trajectory(Question(name, "the same?", ()), "x")
        reply = yield Generate((Segment(Author.PROMPT, "the same?"),), trajectory=trajectory)
        return str(reply.text)

    engine = ScriptedEngine({"a": ["one"], "b": ["two"]})
    assert values(Driver(engine).run([lambda: ask("a"), lambda: ask("b")])) == ["one", "two"]


def test_one_failed_request_of_several_fails_the_job_wherever_it_stands() -> None:
    def ask() -> Algorithm[str]:
        yield [prompt("fine"), prompt("refuse")]
        return "not reached"

    (outcome,) = Driver(FussyEngine(echo)).run([ask])
    assert outcome.failure is not None
    assert outcome.failure.reason == "too long"


# --- concurrent calls --------------------------------------------------------------------------------------


class EventLoopEngine(ScriptedEngine):
    """Begins calls without a thread of the driver. They end, newest first, when as many as allowed are running."""

    def __init__(self, concurrency: int, jobs: int) -> None:
        super().__init__(echo, max_batch=1, concurrency=concurrency)
        self.jobs_together = 2 * concurrency
        self.left = jobs
        self.running: list[tuple[Future[Any], Sequence[Generate]]] = []
        self.begun: list[str] = []

    def submit(self, requests: Sequence[Generate]) -> Future[Any]:
        call: Future[Any] = Future()
        self.running.append((call, requests))
        self.begun.append(requests[0].context[0].text)
        self.left -= 1
        if len(self.running) == self.concurrency or not self.left:
            running, self.running = self.running, []
            for each, asked in reversed(running):
                threading.Thread(target=lambda each=each, asked=asked: self.end(each, asked)).start()
        return call

    def end(self, call: Future[Any], requests: Sequence[Generate]) -> None:
        call.set_result(self.generate(requests))


def test_an_engine_may_begin_calls_without_threads_of_the_driver() -> None:
    engine = EventLoopEngine(2, jobs=8)
    assert values(Driver(engine).run([lambda n=n: speak(str(n)) for n in range(8)])) == [f"{n}/0" for n in range(8)]


@pytest.mark.parametrize("failure", [RuntimeError("broken"), CancelledError()])
def test_a_call_that_the_engine_began_and_that_fails_fails_its_requests_alone(failure: Exception) -> None:
    class Failing(EventLoopEngine):
        def end(self, call: Future[Any], requests: Sequence[Generate]) -> None:
            if requests[0].context[0].text == "3":
                call.set_exception(failure)
            else:
                super().end(call, requests)

    outcomes = Driver(Failing(2, jobs=8)).run([lambda n=n: speak(str(n)) for n in range(8)])
    assert [outcome.index for outcome in outcomes if outcome.failure is not None] == [3]


def test_a_backend_that_is_down_ends_the_run_also_if_it_began_the_call_itself() -> None:
    class Down(EventLoopEngine):
        def end(self, call: Future[Any], requests: Sequence[Generate]) -> None:
            call.set_exception(BackendDown("gone"))

    with pytest.raises(BackendDown, match="gone"):
        Driver(Down(2, jobs=8)).run([lambda n=n: speak(str(n)) for n in range(8)])


def test_calls_go_to_blocks_of_jobs_that_advance_together() -> None:
    engine = EventLoopEngine(2, jobs=18)
    Driver(engine).run([lambda n=n: conversation(n, 3) for n in range(6)])
    first, last = engine.begun[:12], engine.begun[12:]
    assert {text.split(".")[0] for text in first} == {"0", "1", "2", "3"}
    assert {text.split(".")[0] for text in last} == {"4", "5"}
    assert set(first[:4]) == {"0.0", "1.0", "2.0", "3.0"}


def test_a_request_that_an_older_job_joins_moves_forward() -> None:
    queue = RequestQueue(Generate, ScriptedEngine(echo), lambda engine, requests: engine.generate(requests), NO_CACHE)
    for job in (1, 2, 3):
        queue.add(b"%d" % job, prompt(str(job)), job)
    queue.join(queue.waiting[b"3"], 0)
    assert [pending.key for pending in queue.take_batch(2)] == [b"3", b"1"]
    queue.add(b"0", prompt("0"), 0)
    assert [pending.key for pending in queue.take_batch(8)] == [b"0", b"2"]
    assert queue.take_batch() == []


# --- ends --------------------------------------------------------------------------------------------------


def test_ctrl_c_while_outcomes_are_handed_over_keeps_all_that_are_finished() -> None:
    def impatient(outcome: Outcome[str]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        Driver(ScriptedEngine(echo, max_batch=64)).run([lambda n=n: speak(str(n)) for n in range(64)], impatient)
    assert sum(outcome.failure is None for outcome in caught.value.outcomes) == 64


def test_an_engine_that_goes_down_leaves_the_outcomes_so_far() -> None:
    class Dying(ScriptedEngine):
        def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
            if any(request.context[0].text == "5" for request in requests):
                raise BackendDown("gone")
            return super().generate(requests)

    with pytest.raises(BackendDown) as caught:
        Driver(Dying(echo, max_batch=1)).run([lambda n=n: speak(str(n)) for n in range(8)])
    assert [outcome.value is not None for outcome in caught.value.outcomes] == [True] * 5 + [False] * 3


def test_running_calls_are_cancelled_and_open_jobs_closed_when_the_consumer_goes_away() -> None:
    closed: list[int] = []
    cancelled = threading.Event()

    def waiting(request: Generate) -> str:
        if request.context[0].text != "0":
            cancelled.wait(timeout=20)
        return "ok"

    class Cancellable(ScriptedEngine):
        def cancel(self) -> None:
            cancelled.set()

    jobs = [lambda n=n: closes(n, closed) for n in range(6)]
    stream = Driver(Cancellable(waiting, max_batch=1, concurrency=3)).stream(jobs)
    assert next(stream).value == 0
    stream.close()
    assert cancelled.is_set()
    assert sorted(closed) == [0, 1, 2, 3, 4, 5]


def test_jobs_that_are_done_at_once_do_not_pile_up() -> None:
    opened = 0

    def instant() -> Algorithm[None]:
        return
        yield

    def jobs() -> Any:
        nonlocal opened
        for _ in range(10_000):
            opened += 1
            yield instant

    stream = Driver().stream(jobs())
    next(stream)
    assert opened <= 2
    assert sum(1 for _ in stream) == 9_999


# --- concurrency -------------------------------------------------------------------------------------------


class DawdlingRetriever(WordRetriever):
    """Answers from several threads, each time in another order."""

    concurrency = 4
    max_batch = 1

    def search(self, queries: Sequence[str], k: int) -> list[Any]:
        time.sleep(random.random() * 0.01)
        return super().search(queries, k)


def test_batches_of_a_local_engine_are_the_same_whatever_the_order_of_searches() -> None:
    def shared_search(name: int) -> Algorithm[str]:
        yield Retrieve(f"tower {name % 5}", 1)
        reply = yield prompt(str(name % 7))
        return str(reply.text)

    runs = []
    for _ in range(4):
        engine = CountingEngine(max_batch=3)
        Driver(engine, DawdlingRetriever()).run([lambda n=n: shared_search(n) for n in range(20)])
        runs.append([[request.context[0].text for request in batch] for batch in engine.batches])
    assert all(run == runs[0] for run in runs)


def test_a_request_that_is_under_way_is_not_made_again() -> None:
    first_is_running, asked_again = threading.Event(), threading.Event()

    class Slow(WordRetriever):
        concurrency = 4
        max_batch = 1

        def search(self, queries: Sequence[str], k: int) -> list[Any]:
            if queries == ["same"]:
                first_is_running.set()
                asked_again.wait(timeout=20)
            else:
                first_is_running.wait(timeout=20)
            return super().search(queries, k)

    def other_first() -> Algorithm[None]:
        yield Retrieve("other", 1)
        asked_again.set()
        yield Retrieve("same", 1)

    def same() -> Algorithm[None]:
        yield Retrieve("same", 1)

    retriever = Slow()
    Driver(retriever=retriever).run([same, other_first])
    assert sorted(call[0] for call in retriever.calls) == ["other", "same"]


def test_a_request_that_cannot_be_compared_fails_its_own_job() -> None:
    def bare() -> Algorithm[str]:
        reply = yield Generate(("a text, where a segment belongs",))  # type: ignore[arg-type]
        return str(reply.text)

    outcomes = Driver(ScriptedEngine(echo)).run([lambda: speak("a"), bare, lambda: speak("b")])
    assert [outcome.value for outcome in outcomes] == ["a/0", None, "b/0"]
    assert "has no attribute 'author'" in str(outcomes[1].failure)


def test_an_error_that_cannot_be_printed_is_still_a_failure() -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def silent() -> Algorithm[None]:
        raise Unspeakable
        yield

    outcomes = Driver(ScriptedEngine(echo)).run([silent, lambda: speak("b")])
    assert outcomes[0].failure is not None
    assert outcomes[1].value == "b/0"


def test_an_engine_that_cannot_be_cancelled_does_not_hide_why_the_run_ended() -> None:
    class Stubborn(DownEngine):
        def cancel(self) -> None:
            raise RuntimeError("no")

    engine = Stubborn()
    engine.concurrency, engine.max_batch = 2, 1
    with pytest.raises(BackendDown, match="wrong key") as caught:
        Driver(engine).run([lambda n=n: speak(str(n)) for n in range(4)])
    assert len(caught.value.outcomes) == 4


def test_jobs_may_come_from_any_iterable() -> None:
    jobs = ((lambda n=n: speak(str(n))) for n in range(3))
    assert values(Driver(ScriptedEngine(echo)).run(jobs)) == ["0/0", "1/0", "2/0"]


def test_impossible_batches_and_stops_are_refused() -> None:
    with pytest.raises(ValueError, match="max_batch is 0"):
        Driver(ScriptedEngine(echo, max_batch=0)).run([lambda: speak("a")])
    with pytest.raises(ValueError, match="a stop string is empty"):
        Generate((Segment(Author.PROMPT, "x"),), stop=("",))
