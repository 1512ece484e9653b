"""The scheduler: runs the questions of many clients in one driver, and connects it to an event loop.

In: algorithms, from an event loop (`Scheduler.submit`). Out: the events of each (`Scheduler.events`): new steps, and
the result or an `HTTPError`. One thread runs the driver; new questions join the running ones. When a client
disconnects, its question is not started, or ends before its next generation. A failed algorithm fails alone; if the
engine is down, all running ones fail, and the next question tries it again.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from stepladder.core.io.masking import mask
from stepladder.core.requests import Algorithm, Job
from stepladder.core.trace import Step, StopReason, Trajectory, Usage
from stepladder.driver import Driver, Failure, Outcome
from stepladder.explore.episode import Cost, metered, watch_states
from stepladder.serve.http.answer_health import AnswerHealth
from stepladder.serve.http.http_errors import HTTPError, QueueFull
from stepladder.serve.http.server_metrics import Metrics

#: Seconds to wait for the thread at shutdown.
_JOIN_TIMEOUT = 5.0
#: Weight of the latest question in the running mean of durations.
_SMOOTHING = 0.1

_DOWN = "the engine or the index is down; see the server's log"
_FAILED = "the agent failed at this question; see the server's log"

log = logging.getLogger(__name__)


class AgentMetrics(Metrics):
    """The metrics of the agent server."""

    def __init__(self) -> None:
        buckets = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
        super().__init__("answer_seconds", "Time to answer a chat completion, including the queue.", buckets)
        self.stops = self.counter("answers", "Finished questions by stop reason.", "stop")
        self.tokens = self.counter("tokens", "Tokens of finished questions.", "kind")
        self.disconnected = self.counter("disconnected", "Questions of disconnected clients.")

    def count_outcome(self, outcome: Outcome[Any], usage: Usage) -> None:
        """Count the outcome of a question and its tokens."""
        self.tokens.labels("read").inc(usage.read)
        self.tokens.labels("written").inc(usage.written)
        if outcome.failure is not None:
            self.stops.labels(outcome.failure.stop.value).inc()
        elif isinstance(trajectory := outcome.value, Trajectory):
            self.stops.labels(trajectory.stop.value if trajectory.stop else "").inc()


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request that succeeded."""

    value: Any
    #: Tokens of everything that was generated, including discarded branches.
    usage: Usage


#: New steps since the last event, or the end.
Event = tuple[Step, ...] | Finished | HTTPError


class _Abandoned(Exception):
    """Raised inside an algorithm that nobody waits for."""


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A submitted algorithm. Its events are read on the event loop."""

    algorithm: Algorithm[Any]
    cost: Cost = field(default_factory=Cost)
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    #: Set on the event loop when nobody waits any more, read by the scheduler's thread.
    abandoned: bool = False
    finished: bool = False
    started: float = 0.0

    def put(self, event: Event) -> None:
        """Add an event."""
        self.finished = not isinstance(event, tuple)
        self.events.put_nowait(event)


class Scheduler:
    """Runs submitted algorithms. Call `start` on the event loop that submits them."""

    def __init__(
        self,
        driver: Driver,
        *,
        max_waiting: int,
        metrics: AgentMetrics,
        live: bool = True,
        tells_reasons: bool = False,
    ) -> None:
        """`live`: report steps as they are made; otherwise at the end, for searches that may discard steps.

        `tells_reasons`: clients are told why a question failed. Otherwise only the log says it.
        """
        self._tells_reasons = tells_reasons
        self._driver, self._max_waiting, self._metrics, self._live = driver, max_waiting, metrics, live
        #: Whether the engine or the retriever was down at the last attempt.
        self.down = False
        self._health = AnswerHealth()
        #: Protects the following attributes, which the thread shares with the event loop.
        self._condition = threading.Condition()
        self._waiting: deque[QueuedRequest] = deque()
        self._closed = False
        #: Running requests by the index of their driver job; used by the thread alone.
        self._running: dict[int, QueuedRequest] = {}
        self._mean_seconds = 0.0
        metrics.gauge("waiting", "Questions in the queue.", lambda: len(self._waiting))
        metrics.gauge("running", "Running questions.", lambda: len(self._running))

    @property
    def busy(self) -> bool:
        """Whether a question waits or runs."""
        return bool(self._waiting or self._running)

    def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; if it is busy with a generation, it is abandoned after a timeout."""
        with self._condition:
            self._closed = True
            for request in (*self._waiting, *self._running.copy().values()):
                request.abandoned = True
            self._condition.notify_all()
        self._thread.join(_JOIN_TIMEOUT)
        if self._thread.is_alive():
            log.warning("a generation did not stop in time and was abandoned")

    # --- On the event loop ------------------------------------------------------------------------------

    def submit(self, algorithm: Algorithm[Any]) -> QueuedRequest:
        """Queue an algorithm; raises `QueueFull`. Call `cancel` when nobody waits for it any more."""
        request = QueuedRequest(algorithm)
        with self._condition:
            # Requests that left the queue but have not started yet still count.
            if len(self._waiting) + len(self._running) >= self._max_waiting + self._driver.in_flight:
                seconds = len(self._waiting) * self._mean_seconds / self._driver.in_flight
                raise QueueFull("questions", len(self._waiting), seconds)
            self._waiting.append(request)
            self._condition.notify()
        return request

    def cancel(self, request: QueuedRequest) -> None:
        """Drop a request that nobody waits for: it is not started, or ends soon."""
        if request.finished or request.abandoned:
            return
        request.abandoned = True
        self._metrics.disconnected.inc()
        with self._condition, suppress(ValueError):  # already started
            self._waiting.remove(request)

    def check_health(self) -> None:
        """Raise `HTTPError` while questions cannot be answered."""
        if self.down:
            raise HTTPError(503, "the engine is down; see the log", fields={"status": "down"})
        self._health.check()

    async def events(
        self, request: QueuedRequest, seconds: float, heartbeat: float = 15.0
    ) -> AsyncGenerator[tuple[Step, ...] | Finished, None]:
        """New steps as they come, an empty tuple after every `heartbeat` seconds without any, and finally the result.

        Close the generator when nobody listens any more: the question is then cancelled, as it is after `seconds`.
        """
        deadline = perf_counter() + seconds
        event: Event = ()
        try:
            while not isinstance(event, Finished):
                remaining = deadline - perf_counter()
                if remaining <= 0:
                    raise HTTPError(504, f"the question was not answered within {seconds:g} s")
                event = ()
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(heartbeat, remaining)):
                        event = await request.events.get()
                if isinstance(event, HTTPError):
                    raise event
                if isinstance(event, Finished):
                    self._health.count(failed=False)
                yield event
        except HTTPError:
            self._health.count(failed=True)
            raise
        finally:
            self.cancel(request)

    # --- In the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            try:
                for outcome in self._driver.stream(self._jobs()):
                    request = self._running.pop(outcome.index)
                    self.down = self.down and outcome.failure is not None
                    self._mean_seconds += _SMOOTHING * (perf_counter() - request.started - self._mean_seconds)
                    self._finish(request, outcome)
            except Exception as error:  # the engine or the retriever is down; the next question tries again
                log.exception("the running questions failed")
                self.down = True
                failure = Failure(StopReason.FAILED, str(error))
                while self._running:
                    index, request = self._running.popitem()
                    self._metrics.count_outcome(Outcome(index, failure=failure), request.cost.usage)
                    detail = mask(str(error)) if self._tells_reasons else _DOWN
                    self._send(request, HTTPError(503, detail))

    def _jobs(self) -> Iterator[Job[Any] | None]:
        """Jobs as they arrive. Waits for one only while none is running."""
        count = 0
        while True:
            with self._condition:
                while not (self._waiting or self._running or self._closed):
                    self._condition.wait()
                if self._closed:
                    return
                request = self._waiting.popleft() if self._waiting else None
                if request is not None:
                    self._running[count] = request
                    count += 1
            if request is None:
                yield None
            else:
                request.started = perf_counter()
                yield self._job(request)

    def _job(self, request: QueuedRequest) -> Job[Any]:
        sent: list[Step] = []

        def on_step(trajectory: Trajectory) -> None:
            """Send the new steps of the trajectory that was sent before; other branches of a search are ignored."""
            if request.abandoned:
                raise _Abandoned
            if not self._live and trajectory.stop is None:
                return
            if sent and (len(trajectory.steps) < len(sent) or trajectory.steps[len(sent) - 1] is not sent[-1]):
                return
            if new := trajectory.steps[len(sent) :]:
                sent.extend(new)
                self._send(request, new)

        return lambda: metered(watch_states(request.algorithm, on_step), request.cost)

    def _finish(self, request: QueuedRequest, outcome: Outcome[Any]) -> None:
        if not request.abandoned:
            self._metrics.count_outcome(outcome, request.cost.usage)
            if outcome.failure is not None:
                log.error("a question failed: %s\n%s", outcome.failure.reason, outcome.failure.traceback)
        if outcome.failure is not None:
            self._send(request, HTTPError(500, outcome.failure.reason if self._tells_reasons else _FAILED))
        else:
            self._send(request, Finished(outcome.value, request.cost.usage))

    def _send(self, request: QueuedRequest, event: Event) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody reads it
            self._loop.call_soon_threadsafe(request.put, event)
