"""The contract of an engine: something that writes on from a context. `check_engine` tests it in public.

In: a batch of `Generate` requests. Out: for each, in order, a `Generation`, or the `EngineError` that this
request alone ran into. An engine owns its tokenizer: it gives token ids to the segments it reads for the
first time and uses the stored ids of those it has seen before.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from stepladder.errors import StepladderError
from stepladder.request import Finish, Generate, Generation, Sampling
from stepladder.trace import Author, Segment


class EngineError(StepladderError):
    """One request failed. Its episode is recorded as failed; the others go on."""


class EngineDown(StepladderError):
    """The engine cannot work at all (wrong key, unknown model, no server). The run stops."""


class Engine(ABC):
    """Something that generates text. Subclasses set the attributes below as they need."""

    name: ClassVar[str]
    #: Most requests the driver puts into one call.
    max_batch: int = 64
    #: Calls the driver may have under way at once.
    concurrency: int = 1

    @abstractmethod
    def generate(self, requests: Sequence[Generate]) -> list[Generation | EngineError]:
        """Answer every request, in order."""

    def cancel(self) -> None:  # noqa: B027 - nothing to do unless an engine has long calls
        """Ask running calls to end soon; their replies will not be used."""

    def close(self) -> None:  # noqa: B027
        """Free what the engine holds."""


class ContractViolation(AssertionError):
    """What an implementation does is not what the others rely on."""


def expect(condition: bool, message: str) -> None:
    """Raise `ContractViolation` with the message unless the condition holds."""
    if not condition:
        raise ContractViolation(message)


def check_engine(engine: Engine, *, stop: str = "e", logprob_tolerance: float = 1e-2) -> None:
    """Test an engine against its contract; raises `ContractViolation` with what is wrong.

    Run it on your own engine in your own tests. `stop` is a string the model is likely to write. Works for engines
    that answer from a context alone; engines that play by a trajectory (gold, scripted) have tests of their own.
    """
    expect(engine.generate([]) == [], "an empty batch must give an empty list")

    def prompt(text: str, seed: int = 0, **settings: float) -> Generate:
        sampling = replace(Sampling(max_tokens=12), **settings)  # type: ignore[arg-type]
        return Generate((Segment(Author.PROMPT, text),), stop=(stop,), sampling=sampling, seed=seed)

    texts = ("Where is the tower?", "Who?", "A longer question, so that lengths in a batch differ: what is it?")
    batch = [prompt(text) for text in texts]
    together = [_succeeded(reply) for reply in engine.generate(batch)]
    expect(len(together) == len(batch), f"{len(batch)} requests gave {len(together)} replies")

    for request, reply in zip(batch, together):
        _check_reply(request, reply, stop)
        (alone,) = (_succeeded(each) for each in engine.generate([request]))
        expect(
            alone.text == reply.text,
            f"a greedy reply depends on its batch: {reply.text!r} together, {alone.text!r} alone",
        )
        for ours, theirs in zip(alone.written.logprobs, reply.written.logprobs):
            expect(abs(ours - theirs) <= logprob_tolerance, f"a log-prob depends on its batch: {ours} {theirs}")

    hot = [prompt(texts[0], seed=seed, temperature=1.0) for seed in range(6)]
    first, second = ([_succeeded(reply).text for reply in engine.generate(hot)] for _ in range(2))
    expect(first == second, f"equal seeds gave different texts: {first} and {second}")
    expect(len(set(first)) > 1, f"six seeds at temperature 1 all gave {first[0]!r}")

    # A second turn: the ids of the first must be used again as they are.
    spoken = together[0]
    more = Segment(Author.ENVIRONMENT, " It is here. ")
    (reply,) = (
        _succeeded(each)
        for each in engine.generate([replace(batch[0], context=(*spoken.context, spoken.written, more))])
    )
    expect(reply.context[:-1] == (*spoken.context, spoken.written), "segments that had token ids were changed")
    expect(reply.context[-1].text.strip() == more.text.strip(), "the new segment's text was changed")


def _succeeded(reply: Generation | EngineError) -> Generation:
    if isinstance(reply, EngineError):
        raise ContractViolation(f"a plain request failed: {reply}") from reply
    return reply


def _check_reply(request: Generate, reply: Generation, stop: str) -> None:
    expect(len(reply.context) == len(request.context), "the reply's context has other segments than asked")
    expect(reply.written.author is Author.POLICY, "what the engine writes is the policy's")
    expect(reply.written.text.startswith(reply.text), "text is not the beginning of what was written")
    if reply.written.tokens:
        expect(all(segment.tokens for segment in reply.context), "a context segment has no token ids")
        expect(
            len(reply.written.logprobs) == len(reply.written.tokens),
            "there must be one log-prob for each token written",
        )
        expect(all(value <= 0 for value in reply.written.logprobs), "a log-prob is above 0")
        expect(len(reply.written.tokens) <= request.sampling.max_tokens, "more tokens than max_tokens")
    if reply.finish is Finish.STOP:
        expect(
            reply.text.endswith(stop) and reply.text.count(stop) == 1,
            f"a reply that stopped must end right behind its first {stop!r}, not as {reply.text!r}",
        )
    else:
        expect(stop not in reply.text, f"{stop!r} was written but the reply did not stop there")
