"""The contract of an engine: something that writes on from a context. `check_engine` tests it in public.

In: a batch of `Generate` requests. Out: for each, in order, a `Generation`, or the `BackendError` that this
request alone ran into. An engine owns its tokenizer: it gives token ids to the segments it reads for the
first time and uses the stored ids of those it has seen before.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from stepladder.core.contract import expect
from stepladder.core.errors import BackendError, StepladderError
from stepladder.core.requests import Finish, Generate, Generation, Sampling
from stepladder.core.trace import Author, Segment


class EngineOutOfMemory(StepladderError):
    """The rows under way take more memory than there is. Fewer of them at a time may fit."""


class Engine(ABC):
    """Something that generates text. Subclasses set the attributes below as they need."""

    name: ClassVar[str]
    #: Most requests the driver puts into one call.
    max_batch: int = 64
    #: Calls the driver may have under way at once.
    concurrency: int = 1

    @abstractmethod
    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        """Answer every request, in order."""

    def open_session(self) -> "Session | None":
        """Room for requests that come and go one by one; None where a batch begins and ends together."""
        return None

    def cancel(self) -> None:  # noqa: B027 - nothing to do unless an engine has long calls
        """Ask running calls to end soon; their replies will not be used."""

    def on_idle(self) -> None:  # noqa: B027
        """Nothing will be asked for a while: free what the next requests can do without."""

    def close(self) -> None:  # noqa: B027
        """Free what the engine holds."""


class Session(ABC):
    """Requests under way in an engine, which others may join: nobody waits for the longest of a batch."""

    @abstractmethod
    def add(self, requests: Mapping[Hashable, Generate]) -> None:
        """Begin with requests, each under a key of the caller's."""

    @abstractmethod
    def step(self) -> dict[Hashable, Generation | BackendError]:
        """Go on until at least one of those under way is answered; the replies by key."""


def cut_at_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text up to and including the stop string that ends first, and whether there is one.

    >>> cut_at_stop("<a>1</a> and more", ["</b>", "</a>"])
    ('<a>1</a>', True)
    """
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    return (text[: min(ends)], True) if ends else (text, False)


def check_engine(engine: Engine, *, logprob_tolerance: float = 1e-2) -> None:
    """Test an engine against its contract; raises `ContractViolation` with what is wrong.

    Run it on your own engine in your own tests. Works for engines that answer from a context alone; those that play by
    a trajectory (gold, scripted) have tests of their own.
    """
    expect(engine.generate([]) == [], "an empty batch must give an empty list")
    texts = ("Where is the tower?", "Who?", "A longer question, so that lengths in a batch differ: what is it?")
    batch = [Generate((Segment(Author.PROMPT, text),), sampling=Sampling(max_tokens=12)) for text in texts]
    together = _generate(engine, batch)
    for request, reply in zip(batch, together):
        _check_reply(request, reply)
        (alone,) = _generate(engine, [request])
        expect(
            alone.text == reply.text,
            f"a greedy reply depends on its batch: {reply.text!r} together, {alone.text!r} alone",
        )
        for ours, theirs in zip(alone.written.logprobs, reply.written.logprobs):
            expect(abs(ours - theirs) <= logprob_tolerance, f"a log-prob depends on its batch: {ours}, {theirs}")
        _check_stop(engine, request, reply.text)
    _check_seeds(engine, batch[0])
    _check_second_turn(engine, batch[0], together[0])


def _generate(engine: Engine, requests: Sequence[Generate]) -> list[Generation]:
    replies = engine.generate(requests)
    expect(len(replies) == len(requests), f"{len(requests)} requests gave {len(replies)} replies")
    succeeded = [reply for reply in replies if isinstance(reply, Generation)]
    expect(len(succeeded) == len(replies), f"plain requests failed: {replies}")
    return succeeded


def _check_reply(request: Generate, reply: Generation) -> None:
    expect(len(reply.context) == len(request.context), "the reply's context has other segments than asked")
    expect(reply.written.author is Author.POLICY, "what the engine writes is the policy's")
    expect(reply.text == reply.written.text, "without a stop string, text is all that was written")
    if reply.written.tokens:
        expect(all(segment.tokens for segment in reply.context), "a context segment has no token ids")
        expect(len(reply.written.logprobs) == len(reply.written.tokens), "there must be one log-prob a token written")
        expect(all(value <= 0 for value in reply.written.logprobs), "a log-prob is above 0")
        expect(len(reply.written.tokens) <= request.sampling.max_tokens, "more tokens than max_tokens")


def _check_stop(engine: Engine, request: Generate, unstopped_text: str) -> None:
    """Ask again, with a stop string that the model is known to write."""
    for stop in {
        unstopped_text[middle : middle + 2] for middle in (len(unstopped_text) // 2, len(unstopped_text) // 3)
    } - {""}:
        (reply,) = _generate(engine, [replace(request, stop=("\x00never", stop))])
        expected, _ = cut_at_stop(unstopped_text, [stop])
        expect(
            reply.text == expected and reply.finish is Finish.STOP,
            f"with the stop {stop!r} the text must be {expected!r}, not {reply.text!r} ({reply.finish.value})",
        )
        expect(reply.written.text.startswith(reply.text), "text is not the beginning of what was written")


def _check_seeds(engine: Engine, request: Generate) -> None:
    sampled = replace(request.sampling, temperature=1.0)
    requests = [replace(request, sampling=sampled, seed=seed) for seed in range(6)]
    first, second = ([reply.text for reply in _generate(engine, requests)] for _ in range(2))
    expect(first == second, f"equal seeds gave different texts: {first} and {second}")
    expect(len(set(first)) > 1, f"six seeds at temperature 1 all gave {first[0]!r}")


def _check_second_turn(engine: Engine, request: Generate, first: Generation) -> None:
    """The ids of the first turn must be used again as they are."""
    more = Segment(Author.ENVIRONMENT, " It is here. ")
    known = (*first.context, first.written)
    (reply,) = _generate(engine, [replace(request, context=(*known, more))])
    expect(reply.context[:-1] == known, "segments that had token ids were changed")
    expect(reply.context[-1].text == more.text, "the new segment's text was changed")
