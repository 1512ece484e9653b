"""An engine that returns scripted text, for exact and fast tests of algorithms.

In: requests. Out: for each, the text that the script specifies. Token ids are the UTF-8 bytes of the text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from stepladder.core.errors import BackendError
from stepladder.core.requests import Finish, Generate, Generation
from stepladder.core.trace import Author, Segment, Usage
from stepladder.engines.base import Engine, cut_at_stop

#: A function from a request to its text; or, by question id, the text of each step.
Script = Callable[[Generate], str] | Mapping[str, Sequence[str]]


class ScriptedEngine(Engine):
    """Returns scripted text."""

    name = "scripted"

    def __init__(self, script: Script, *, max_batch: int = 256, concurrency: int = 1) -> None:
        self.script = script
        self.max_batch = max_batch
        self.concurrency = concurrency

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        """One scripted reply per request."""
        return [self._reply(request) for request in requests]

    def _reply(self, request: Generate) -> Generation | BackendError:
        scripted = self._scripted_text(request)
        if isinstance(scripted, BackendError):
            return scripted
        text, stopped = cut_at_stop(scripted, request.stop)
        tokens = tuple(text.encode())
        finish = Finish.STOP if stopped else Finish.END
        if len(tokens) > request.sampling.max_tokens:
            tokens = tokens[: request.sampling.max_tokens]
            text, finish = bytes(tokens).decode(errors="ignore"), Finish.LENGTH
        context = tuple(
            segment if segment.tokens else replace(segment, tokens=tuple(segment.text.encode()), vocabulary="bytes")
            for segment in request.context
        )
        written = Segment(Author.POLICY, text, tokens, (0.0,) * len(tokens), "bytes")
        usage = Usage(sum(len(segment.tokens) for segment in context), len(tokens))
        return Generation(context, written, text, finish, usage)

    def _scripted_text(self, request: Generate) -> str | BackendError:
        if callable(self.script):
            return self.script(request)
        if request.trajectory is None:
            return BackendError("a script by question id needs requests with a trajectory")
        lines = self.script.get(request.trajectory.question.id, ())
        step = len(request.trajectory.steps)
        if step >= len(lines):
            return BackendError(f"the script of {request.trajectory.question.id!r} has no step {step}")
        return lines[step]
