"""The engine interface: generates text that continues a context. `check_engine` tests an implementation against it.

In: a batch of `Generate` requests. Out: for each request, in order, a `Generation`, or the `BackendError` of that
request. An engine owns its tokenizer: it tokenizes segments without token ids and reuses the stored ids of the others.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from stepladder.core.errors import BackendError, StepladderError, expect
from stepladder.core.requests import Finish, Generate, Generation, Sampling
from stepladder.core.trace import Author, Segment

#: Replies by the caller's keys.
Replies = dict[Hashable, Generation | BackendError]


class EngineOutOfMemory(StepladderError):
    """The running requests need more memory than is available. A smaller batch may fit."""


class Engine(ABC):
    """A generation backend. Subclasses override the attributes below as needed."""

    name: ClassVar[str]
    #: Maximum number of requests per call of `generate`.
    max_batch: int = 64
    #: Maximum number of concurrent calls of `generate`.
    concurrency: int = 1
    #: Above 1: a call holds only requests that differ by their seed, at most so many. The server samples them together.
    max_samples: int = 1
    #: Jobs that advance together; 1: the oldest one comes first. The last jobs of a run have few calls at a time and
    #: leave a server idle, unless they end together. But those that advance together are all unfinished if a run stops.
    jobs_together: int = 1
    #: Requests join a running session once they are at least 1/join_share of those in it: a join may have a fixed cost.
    join_share: int = 4

    @abstractmethod
    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        """Generate a reply to every request, in order."""

    def submit(self, requests: Sequence[Generate]) -> Future[list[Generation | BackendError]] | None:  # noqa: ARG002
        """Begin a call of `generate` and return at once; None if the caller has to call `generate` from a thread.

        For engines with `concurrency` above 1 that wait for many calls in one thread of their own.
        """
        return None

    def open_session(self) -> "Session | None":
        """A session for continuous batching; None if the engine only supports whole batches."""
        return None

    def cancel(self) -> None:  # noqa: B027 - nothing to do unless an engine has long calls
        """Ask running calls to stop soon. Their replies are discarded."""

    def on_idle(self) -> None:  # noqa: B027
        """Called when no requests are expected for a while: free what can be recomputed."""

    def close(self) -> None:  # noqa: B027
        """Free all resources."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine is built from. Each engine uses the options that apply to it."""

    #: The agent whose format the oracle writes.
    agent: Any = None
    #: A model folder, a hub name, a built-in name, or the name of a model on the server at `base_url`.
    model: str | None = None
    base_url: str | Sequence[str] | None = None
    api: Literal["chat", "completions"] = "chat"
    device: str = "auto"
    dtype: str = "auto"
    #: Maximum number of requests per batch of a local model, and of concurrent calls to a server.
    max_batch: int = 64
    concurrency: int = 32
    #: Variables of the chat template, such as {"enable_thinking": False}.
    chat_options: Mapping[str, Any] | None = None
    #: Settings of vLLM, those of `VLLMConfig`.
    vllm: Mapping[str, Any] | None = None


class Session(ABC):
    """Continuous batching: requests join and leave while others are running."""

    @abstractmethod
    def add(self, requests: Mapping[Hashable, Generate]) -> None:
        """Submit requests under keys chosen by the caller."""

    @abstractmethod
    def step(self) -> Replies:
        """Generate until at least one request finishes; return the finished replies by key."""


def cut_at_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text up to and including the stop string that ends first, and whether there is one.

    >>> cut_at_stop("<a>1</a> and more", ["</b>", "</a>"])
    ('<a>1</a>', True)
    """
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    return (text[: min(ends)], True) if ends else (text, False)


def check_engine(engine: Engine, *, logprob_tolerance: float = 1e-2) -> None:
    """Test an engine against the interface; raises `ContractViolation` with the problem.

    Run it on your own engine in your own tests. It works for engines that depend on the context alone, not for those
    that read the trajectory (oracle, scripted).
    """
    expect(engine.generate([]) == [], "an empty batch must return an empty list")
    texts = ("Where is the tower?", "Who?", "A longer question, so that lengths in a batch differ: what is it?")
    batch = [Generate((Segment(Author.PROMPT, text),), sampling=Sampling(max_tokens=12)) for text in texts]
    together = _generate(engine, batch)
    for request, reply in zip(batch, together):
        _check_reply(request, reply)
        (alone,) = _generate(engine, [request])
        expect(
            alone.text == reply.text,
            f"a greedy reply depends on its batch: {reply.text!r} batched, {alone.text!r} alone",
        )
        for ours, theirs in zip(alone.written.logprobs, reply.written.logprobs):
            expect(abs(ours - theirs) <= logprob_tolerance, f"a log-prob depends on its batch: {ours}, {theirs}")
        _check_stop(engine, request, reply.text)
    _check_seeds(engine, batch[0])
    _check_second_turn(engine, batch[0], together[0])


def _generate(engine: Engine, requests: Sequence[Generate]) -> list[Generation]:
    replies = engine.generate(requests)
    expect(len(replies) == len(requests), f"{len(requests)} requests returned {len(replies)} replies")
    succeeded = [reply for reply in replies if isinstance(reply, Generation)]
    expect(len(succeeded) == len(replies), f"plain requests failed: {replies}")
    return succeeded


def _check_reply(request: Generate, reply: Generation) -> None:
    expect(len(reply.context) == len(request.context), "the reply's context differs from the request's in segments")
    expect(reply.written.author is Author.POLICY, "the generated segment must have author POLICY")
    expect(reply.text == reply.written.text, "without a stop string, text must be the whole generated segment")
    if reply.written.tokens:
        expect(all(segment.tokens for segment in reply.context), "a context segment has no token ids")
        expect(len(reply.written.logprobs) == len(reply.written.tokens), "expected one log-prob per generated token")
        expect(all(value <= 0 for value in reply.written.logprobs), "a log-prob is above 0")
        expect(len(reply.written.tokens) <= request.sampling.max_tokens, "more tokens than max_tokens")


def _check_stop(engine: Engine, request: Generate, unstopped: str) -> None:
    """Repeat the request with stop strings that the model is known to generate."""
    for stop in {unstopped[middle : middle + 2] for middle in (len(unstopped) // 2, len(unstopped) // 3)} - {""}:
        (reply,) = _generate(engine, [replace(request, stop=("\x00never", stop))])
        expected, _ = cut_at_stop(unstopped, [stop])
        expect(
            reply.text == expected and reply.finish is Finish.STOP,
            f"with the stop {stop!r} the text must be {expected!r}, not {reply.text!r} ({reply.finish.value})",
        )
        expect(reply.written.text.startswith(reply.text), "text is not a prefix of the generated segment")


def _check_seeds(engine: Engine, request: Generate) -> None:
    sampled = replace(request.sampling, temperature=1.0)
    requests = [replace(request, sampling=sampled, seed=seed) for seed in range(6)]
    first, second = ([reply.text for reply in _generate(engine, requests)] for _ in range(2))
    expect(first == second, f"equal seeds gave different texts: {first} and {second}")
    expect(len(set(first)) > 1, f"six seeds at temperature 1 all gave {first[0]!r}")


def _check_second_turn(engine: Engine, request: Generate, first: Generation) -> None:
    """The token ids of the first turn must be reused unchanged."""
    more = Segment(Author.ENVIRONMENT, " It is here. ")
    known = (*first.context, first.written)
    (reply,) = _generate(engine, [replace(request, context=(*known, more))])
    expect(reply.context[:-1] == known, "segments that had token ids were changed")
    expect(reply.context[-1].text == more.text, "the new segment's text was changed")
