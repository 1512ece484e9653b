"""Plays questions of many clients together: the bridge between an event loop and the driver.

In: algorithms, on an event loop (`Scheduler.ask`). Out: a `Ticket` each, on which news arrive: every step as it is made,
and the end. One thread runs the driver; new questions join those under way. A client that leaves takes its question
along: it is not begun, or ends before its next generation. An algorithm that fails ends alone; an engine that cannot
work at all ends all that are under way, and is tried again with the next question.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from prometheus_client import Counter, Gauge

from stepladder.core.requests import Algorithm, Job
from stepladder.core.trace import Step, StopReason, Trajectory, Usage
from stepladder.driver import Driver, Failure, Outcome
from stepladder.explore.episode import Cost, metered, watch_states
from stepladder.serve.http.server_metrics import Metrics
from stepladder.serve.http.timeouts import QueueFull

#: How long the thread is waited for at the end, in seconds.
_LAST_WAIT = 5.0
#: Weight of the latest question in the mean time that one takes.
_LATEST = 0.1

log = logging.getLogger(__name__)


class AgentMetrics(Metrics):
    """What a server of an agent counts."""

    def __init__(self) -> None:
        buckets = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
        super().__init__("stepladder_answer_seconds", "Time to answer a chat completion, waiting included.", buckets)
        registry = self.registry
        self.stops = Counter("stepladder_answers", "Questions played, by how they ended.", ["stop"], registry=registry)
        self.tokens = Counter("stepladder_tokens", "Tokens of questions played.", ["kind"], registry=registry)
        self.left = Counter("stepladder_left", "Questions whose client did not wait for the end.", registry=registry)
        self.waiting = Gauge("stepladder_waiting", "Questions that wait to be played.", registry=registry)
        self.playing = Gauge("stepladder_playing", "Questions being played.", registry=registry)

    def ended(self, outcome: Outcome[Any], spent: Usage) -> None:
        """Count what became of a question, and what it took."""
        self.tokens.labels("read").inc(spent.read)
        self.tokens.labels("written").inc(spent.written)
        if outcome.failure is not None:
            self.stops.labels(outcome.failure.stop.value).inc()
        elif isinstance(trajectory := outcome.value, Trajectory):
            self.stops.labels(trajectory.stop.value if trajectory.stop else "").inc()


@dataclass(frozen=True, slots=True)
class Ended:
    """The last news of a ticket: what the algorithm returned, or why it did not."""

    value: Any = None
    failure: Failure | None = None
    #: Tokens of everything that was played, also of what was not chosen in the end.
    usage: Usage = Usage()
    #: Whether the engine, or the index, cannot work at all.
    down: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """Nobody waits for the ticket any more."""


#: Steps that were made since the last news, or the end.
News = tuple[Step, ...] | Ended | Left


class _Left(Exception):
    """Ends an algorithm whose client has left."""


@dataclass(slots=True, eq=False)
class Ticket:
    """What one client waits for. Its news are read on the event loop."""

    algorithm: Algorithm[Any]
    cost: Cost = field(default_factory=Cost)
    news: asyncio.Queue[News] = field(default_factory=asyncio.Queue)
    #: Set on the event loop, read by the thread that plays.
    gone: bool = False
    ended: bool = False
    dropped: bool = False
    began: float = 0.0

    def leave(self) -> None:
        """Wait no longer; whoever reads the news is told."""
        if not self.ended and not self.gone:
            self.gone = True
            self.news.put_nowait(Left())

    def hear(self, news: News) -> None:
        """Take in news."""
        self.ended = isinstance(news, Ended)
        self.news.put_nowait(news)


class Scheduler:
    """Plays what it is asked to. `start` it on the event loop on which it is asked."""

    def __init__(self, driver: Driver, *, max_waiting: int, metrics: AgentMetrics, live: bool = True) -> None:
        """`live`: whether steps are told as they come, or all at the end, by ways to play that may drop them again."""
        self._driver, self._max_waiting, self._metrics, self._live = driver, max_waiting, metrics, live
        #: Whether the engine, or the index, could not work when it was last tried.
        self.down = False
        #: Guards what follows, which the thread shares with the event loop.
        self._changed = threading.Condition()
        self._waiting: deque[Ticket] = deque()
        self._closed = False
        #: Under way, by their place among the jobs of the driver; of the thread alone.
        self._playing: dict[int, Ticket] = {}
        self._seconds = 0.0
        metrics.waiting.set_function(lambda: len(self._waiting))
        metrics.playing.set_function(lambda: len(self._playing))

    def start(self) -> None:
        """Begin to play."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="player", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; when it is in the middle of a generation it is left behind after a moment."""
        with self._changed:
            self._closed = True
            for ticket in (*self._waiting, *self._playing.copy().values()):
                ticket.leave()
            self._changed.notify_all()
        self._thread.join(_LAST_WAIT)
        if self._thread.is_alive():
            log.warning("a generation did not end and was left behind")

    # --- On the event loop ------------------------------------------------------------------------------

    def ask(self, algorithm: Algorithm[Any]) -> Ticket:
        """Queue an algorithm, if there is room. `drop` the ticket when nobody waits for it any more."""
        ticket = Ticket(algorithm)
        with self._changed:
            # What was taken from the queue but not begun yet still has its place there.
            if len(self._waiting) + len(self._playing) >= self._max_waiting + self._driver.in_flight:
                seconds = len(self._waiting) * self._seconds / self._driver.in_flight
                raise QueueFull("questions", len(self._waiting), seconds)
            self._waiting.append(ticket)
            self._changed.notify()
        return ticket

    def drop(self, ticket: Ticket) -> None:
        """Nobody waits for a ticket any more: what was not begun is not begun, what was ends soon."""
        if ticket.ended or ticket.dropped:
            return
        ticket.dropped = True
        ticket.leave()
        self._metrics.left.inc()
        with self._changed, suppress(ValueError):  # begun already
            self._waiting.remove(ticket)

    # --- In the thread ----------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._closed:
            try:
                for outcome in self._driver.stream(self._jobs()):
                    ticket = self._playing.pop(outcome.index)
                    self.down = self.down and outcome.failure is not None
                    self._seconds += _LATEST * (perf_counter() - ticket.began - self._seconds)
                    self._tell_end(ticket, outcome)
            except Exception as error:  # the driver's backends cannot work; the next question tries them again
                log.exception("the questions under way were given up")
                self.down = True
                failure = Failure(StopReason.FAILED, str(error))
                for index in list(self._playing):
                    ticket = self._playing.pop(index)
                    self._metrics.ended(Outcome(index, failure=failure), ticket.cost.usage)
                    self._tell(ticket, Ended(failure=failure, down=True))

    def _jobs(self) -> Iterator[Job[Any] | None]:
        """Jobs as they come. Waits for one only while none is under way."""
        begun = 0
        while True:
            with self._changed:
                while not (self._waiting or self._playing or self._closed):
                    self._changed.wait()
                if self._closed:
                    return
                ticket = self._waiting.popleft() if self._waiting else None
                if ticket is not None:
                    self._playing[begun] = ticket
                    begun += 1
            if ticket is None:
                yield None
            else:
                ticket.began = perf_counter()
                yield self._job(ticket)

    def _job(self, ticket: Ticket) -> Job[Any]:
        shown: list[Step] = []

        def look(trajectory: Trajectory) -> None:
            """Pass on what is new on the way that was shown; another branch of a search is not on it."""
            if ticket.gone:
                raise _Left
            if not self._live and trajectory.stop is None:
                return
            if shown and (len(trajectory.steps) < len(shown) or trajectory.steps[len(shown) - 1] is not shown[-1]):
                return
            if new := trajectory.steps[len(shown) :]:
                shown.extend(new)
                self._tell(ticket, new)

        return lambda: metered(watch_states(ticket.algorithm, look), ticket.cost)

    def _tell_end(self, ticket: Ticket, outcome: Outcome[Any]) -> None:
        if outcome.failure is not None and not ticket.gone:
            log.error("a question failed: %s\n%s", outcome.failure.reason, outcome.failure.traceback)
        if not ticket.gone:
            self._metrics.ended(outcome, ticket.cost.usage)
        self._tell(ticket, Ended(outcome.value, outcome.failure, ticket.cost.usage))

    def _tell(self, ticket: Ticket, news: News) -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile: nobody is left to hear it
            self._loop.call_soon_threadsafe(ticket.hear, news)
