"""What an algorithm may ask for, and what it gets back.

Algorithms are generators: they yield requests and receive replies. They do no I/O themselves, so every one of
them runs unchanged on a scripted engine in a test and on a cluster.

    request     reply
    Generate    Generation: what the engine wrote, with token ids and log-probs
    Retrieve    tuple[Passage, ...]: best first
    Score       tuple[float, ...]: for each step of the trajectory the probability that it is good

Yielding a list of requests gives the list of their replies, in the same order; where one of them fails, its error is
raised. Yielding `BestEffort` of them gives replies and errors side by side, for algorithms that can do without some.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from stepladder.core.trace import Author, Segment, Trajectory, Usage


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw tokens. Temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    #: Most tokens of one generation.
    max_tokens: int = 256

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature is {self.temperature}; it must be 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; at least 1 is needed")


@dataclass(frozen=True, slots=True)
class Generate:
    """Write on from a context until one of the stop strings, the end of sequence or the token limit."""

    context: tuple[Segment, ...]
    stop: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    #: Draws depend on this alone, never on what else is in the batch.
    seed: int = 0
    #: The state that the context renders, for engines that play by rule (gold, scripted) and for onlookers.
    trajectory: Trajectory | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if "" in self.stop:
            raise ValueError("a stop string is empty; it would end every generation before its first token")


@dataclass(frozen=True, slots=True)
class Retrieve:
    """Search the corpus for the k best passages."""

    query: str
    k: int = 3


@dataclass(frozen=True, slots=True)
class Score:
    """Grade every step of a trajectory."""

    trajectory: Trajectory


Request = Generate | Retrieve | Score


@dataclass(frozen=True, slots=True)
class BestEffort:
    """Requests made together, of which some may fail: a failed one is answered with its error."""

    requests: Sequence[Request]


#: What an algorithm may yield.
AnyRequest = Request | Sequence[Request] | BestEffort


class Finish(StrEnum):
    """Why a generation ended."""

    STOP = "stop"  # a stop string was written
    END = "end"  # the model ended its turn
    LENGTH = "length"  # max_tokens reached
    CONTEXT_FULL = "no_room"  # the model's window was full before the generation came to an end


@dataclass(frozen=True, slots=True)
class Generation:
    """The reply to `Generate`."""

    #: The request's context as the engine read it, with the token ids of every segment.
    context: tuple[Segment, ...]
    #: What the policy wrote, tokens and all.
    written: Segment
    #: The text to parse: as written, cut right behind the first stop string. The last token may reach further.
    text: str
    finish: Finish
    usage: Usage = Usage()


def empty_generation(context: tuple[Segment, ...]) -> Generation:
    """The reply when the context fills the model's window."""
    return Generation(context, Segment(Author.POLICY, ""), "", Finish.CONTEXT_FULL)


Result = TypeVar("Result")
#: A generator that yields a request (or a list of them) and receives the reply (or the list of replies).
Algorithm = Generator[AnyRequest, Any, Result]
#: Makes a fresh algorithm; called when its turn comes, so that a million jobs cost no memory in advance.
Job = Callable[[], Algorithm[Result]]


def requests_in(asking: AnyRequest) -> list[Request]:
    """The single requests of what an algorithm yielded."""
    if isinstance(asking, Request):
        return [asking]
    return list(asking.requests if isinstance(asking, BestEffort) else asking)


def send_replies(algorithm: Algorithm[Any], asking: AnyRequest, replies: Sequence[Any]) -> AnyRequest:
    """Hand an algorithm the replies to what it asked, some of which may be errors; returns what it asks next."""
    if isinstance(asking, BestEffort):
        return algorithm.send(list(replies))
    failed = next((reply for reply in replies if isinstance(reply, Exception)), None)
    if failed is None:
        return algorithm.send(replies[0] if isinstance(asking, Request) else list(replies))
    raised_at = failed.__traceback__
    try:
        return algorithm.throw(failed)
    finally:
        failed.__traceback__ = raised_at  # others may get the same error: it must not collect all their frames
