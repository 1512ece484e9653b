"""The requests that an algorithm may yield, and the replies it receives.

Algorithms are generators: they yield requests and receive replies. They do no I/O themselves, so each runs unchanged
on a scripted engine in a test and on a cluster.

    request     reply
    Generate    Generation: the generated text with token ids and log-probs
    Retrieve    tuple[Passage, ...]: best first
    Score       tuple[float | None, ...]: for each step, the probability that it is good; None if it is not judged
    Rank        tuple[float | None, ...]: for each trajectory, the value of its newest step among those of the others

A list of requests gets a list of replies in the same order; if one fails, its error is raised. `BestEffort` gets
replies and errors side by side, for algorithms that tolerate failed requests.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from stepladder.core.grammars.grammar import Grammar
from stepladder.core.trace import Author, Segment, Trajectory, Usage


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. Temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    #: Maximum tokens per generation.
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
    """Continue a context until a stop string, the end-of-sequence token or the token limit."""

    context: tuple[Segment, ...]
    stop: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    #: Sampling depends on this seed alone, never on the rest of the batch.
    seed: int = 0
    #: The state that the context renders, for rule-based engines (oracle, scripted) and for live display.
    trajectory: Trajectory | None = field(default=None, compare=False)
    #: What may be written. Generation ends when the text is complete; before that no end-of-sequence token is sampled.
    grammar: Grammar | None = None

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
    """Score every step of a trajectory."""

    trajectory: Trajectory
    #: Whether the passages of its newest query are retrieved. Some scorers read them.
    retrieved: bool = True


@dataclass(frozen=True, slots=True)
class Rank:
    """Compare the newest steps of several trajectories from one state, jointly."""

    trajectories: tuple[Trajectory, ...]


Request = Generate | Retrieve | Score | Rank


@dataclass(frozen=True, slots=True)
class BestEffort:
    """Requests of which some may fail: the reply to a failed request is its error."""

    requests: Sequence[Request]


#: Anything an algorithm may yield.
AnyRequest = Request | Sequence[Request] | BestEffort


class Finish(StrEnum):
    """Why a generation ended."""

    STOP = "stop"  # a stop string was generated
    END = "end"  # the model ended its turn
    LENGTH = "length"  # max_tokens reached
    CONTEXT_FULL = "no_room"  # the context window was full before the generation ended (value: stored in caches)


@dataclass(frozen=True, slots=True)
class Generation:
    """The reply to `Generate`."""

    #: The request's context as the engine read it, with token ids for every segment.
    context: tuple[Segment, ...]
    #: The generated segment, with its tokens.
    written: Segment
    #: The text to parse: truncated right after the first stop string. The last token may extend beyond it.
    text: str
    finish: Finish
    usage: Usage = Usage()


def empty_generation(context: tuple[Segment, ...]) -> Generation:
    """The reply when the prompt already fills the context window."""
    return Generation(context, Segment(Author.POLICY, ""), "", Finish.CONTEXT_FULL)


Result = TypeVar("Result")
#: A generator that yields a request (or a list of them) and receives the reply (or the list of replies).
Algorithm = Generator[AnyRequest, Any, Result]
#: Creates an algorithm. Called lazily, so that a million queued jobs take no memory.
Job = Callable[[], Algorithm[Result]]


def requests_in(yielded: AnyRequest) -> list[Request]:
    """What an algorithm yielded, as a flat list of requests."""
    if isinstance(yielded, Request):
        return [yielded]
    return list(yielded.requests if isinstance(yielded, BestEffort) else yielded)


def send_replies(algorithm: Algorithm[Any], yielded: AnyRequest, replies: Sequence[Any]) -> AnyRequest:
    """Send an algorithm the replies (or errors) to what it yielded; returns what it yields next."""
    if isinstance(yielded, BestEffort):
        return algorithm.send(list(replies))
    failed = next((reply for reply in replies if isinstance(reply, Exception)), None)
    if failed is None:
        return algorithm.send(replies[0] if isinstance(yielded, Request) else list(replies))
    raised_at = failed.__traceback__
    try:
        return algorithm.throw(failed)
    finally:
        failed.__traceback__ = raised_at  # algorithms may share the error: it must not accumulate their frames
