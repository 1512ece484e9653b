"""A response cache on disk: a resumed run pays for no request twice.

In: an engine and a file. Out: an engine that answers known requests from the file and forwards the others; equal
requests in flight are forwarded once. Every response is one line, on disk before it is returned; an incomplete last
line is requested again. Not cached: errors; that the context window is full, since a server may be started again with a
larger one; token ids, since the text is parsed and never trained on. Texts stay on disk; the memory holds a hash and a
position per response.
"""

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import astuple, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

from stepladder.core.errors import BackendDown, BackendError, StepladderError
from stepladder.core.io.files import write_error
from stepladder.core.requests import Finish, Generate, Generation
from stepladder.core.trace import UNKNOWN_TOKENS, Author, Segment, Usage
from stepladder.engines.base import Engine

#: The response to a request in flight.
_Pending = Future[Generation | BackendError]
#: Name of the cache file in the folder of a judge.
RESPONSES = "replies.jsonl"


@dataclass(frozen=True, slots=True)
class Spend:
    """What a folder has paid for, over all runs in it."""

    #: Paid calls, and calls that may have been billed without a response; those count with their maximum.
    calls: int
    lost: int
    tokens_read: int
    tokens_written: int
    #: None if a model has no price.
    usd: float | None
    #: Requests of this run that were answered without a call.
    cached: int

    def line(self) -> str:
        """One line for people."""
        dollars = "" if self.usd is None else f"${self.usd:,.4f}, "
        tokens = f"{self.tokens_read + self.tokens_written:,} tokens in {self.calls:,} calls"
        return f"{dollars}{tokens}, {self.cached:,} cached"


class ResponseCache:
    """The responses in a file; `model_name` separates those of different models. Reading does not change the file."""

    def __init__(self, path: Path, model_name: str) -> None:
        self.path = path
        self.model_name = model_name
        #: The number of responses, and the sum of their tokens.
        self.count, self.usage = 0, Usage()
        #: The positions of the responses in the file, by key.
        self._positions: dict[bytes, int] = {}
        #: Length of the complete lines, if a killed process left an incomplete one after them.
        self._complete: int | None = None
        self._read()

    def __contains__(self, request: object) -> bool:
        return isinstance(request, Generate) and self.key(request) in self._positions

    def key(self, request: Generate) -> bytes:
        """The cache key of a request."""
        texts = [(segment.author.value, segment.text) for segment in request.context]
        parts: tuple[Any, ...] = (self.model_name, texts, request.stop, astuple(request.sampling), request.seed)
        parts += () if request.grammar is None else (request.grammar,)
        return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def get(self, key: bytes, request: Generate) -> Generation | None:
        """The cached response to a request, or None."""
        if key not in self._positions:
            return None
        try:
            with self.path.open("rb") as file:
                file.seek(self._positions[key])
                found, row, usage = _read_row(file.readline())
            if found != key:
                raise ValueError("another response")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BackendDown(f"{self.path} was changed while it was used: run the same command again") from error
        return Generation(
            request.context,
            Segment(Author.POLICY, row["text"], vocabulary=UNKNOWN_TOKENS),
            row["text"],
            Finish(row["finish"]),
            usage,
        )

    def add(self, key: bytes, response: Generation) -> None:
        """Append a response. When this returns the operating system has it: killing this process cannot lose it.

        One that is known already stays as it is.
        """
        if response.finish is Finish.CONTEXT_FULL or key in self._positions:
            return
        row = {
            "key": key.hex(),
            "text": response.text,
            "finish": response.finish.value,
            "read": response.usage.read,
            "written": response.usage.written,
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                if self._complete is not None:  # remove the incomplete last line
                    file.truncate(self._complete)
                self._complete = position = file.seek(0, os.SEEK_END)
                file.write(json.dumps(row).encode() + b"\n")
            self._complete = None
        except OSError as error:
            raise BackendDown(str(write_error(self.path, "paid response", error, "The ledger counts it."))) from error
        self._note(key, position, response.usage)

    def _note(self, key: bytes, position: int, usage: Usage) -> None:
        self._positions[key] = position
        self.count, self.usage = self.count + 1, self.usage + usage

    def _read(self) -> None:
        if not self.path.exists():
            return
        position = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    self._complete = position
                    return
                try:
                    key, row, usage = _read_row(line)
                except (ValueError, KeyError, TypeError) as error:
                    problem = f"{self.path}:{number}: not a cached response ({error}); delete the line"
                    raise StepladderError(problem) from error
                if row["finish"] != Finish.CONTEXT_FULL:  # older versions cached these
                    self._note(key, position, usage)
                position += len(line)


def _read_row(line: bytes) -> tuple[bytes, dict[str, str], Usage]:
    row = json.loads(line)
    texts = {name: row[name] for name in ("text", "finish")}
    return bytes.fromhex(row["key"]), texts, Usage(row["read"], row["written"])


class CachedEngine(Engine):
    """An engine with a response cache in a file; `model_name` separates the responses of different models."""

    name: ClassVar[str] = "cached"

    def __init__(self, engine: Engine, path: Path, model_name: str, paid: Callable[[int], Spend] | None = None) -> None:
        """`paid`: what a paid engine has spent, given the number of cached requests; without it the engine is free."""
        self.engine = engine
        self._paid = paid
        self.max_batch, self.concurrency, self.max_samples = engine.max_batch, engine.concurrency, engine.max_samples
        self.responses = ResponseCache(path, model_name)
        #: Requests answered without a call: from the file, or by an equal request in flight.
        self.cached = 0
        self._in_flight: dict[bytes, _Pending] = {}
        self._changed = threading.Condition()

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        """Answer every request, in order; cached ones without a call."""
        new: dict[bytes, Generate] = {}
        found: list[Generation | _Pending] = []
        with self._changed:
            for request in requests:
                key = self.responses.key(request)
                each = self.responses.get(key, request) or self._in_flight.get(key)
                if each is None:
                    each = self._in_flight[key] = Future()
                    new[key] = request
                else:
                    self.cached += 1
                found.append(each)
        if new:
            self._forward(new)
        responses = [each.result() if isinstance(each, Future) else each for each in found]
        return [
            replace(response, context=request.context) if isinstance(response, Generation) else response
            for response, request in zip(responses, requests)
        ]

    def keep(self, requests: Sequence[Generate], responses: Sequence[Generation | BackendError]) -> None:
        """Save responses before `generate` returns them: what is paid must not be lost if the rest of a batch fails.

        Of fewer responses than requests, those of the first.
        """
        with self._changed:
            for request, response in zip(requests, responses):
                if isinstance(response, Generation):
                    self.responses.add(self.responses.key(request), response)

    def spend(self) -> Spend:
        """What the responses in the file took, over all runs."""
        if self._paid is not None:
            return self._paid(self.cached)
        usage = self.responses.usage
        return Spend(self.responses.count, 0, usage.read, usage.written, 0.0, self.cached)

    def cancel(self) -> None:
        self.engine.cancel()

    def close(self) -> None:
        """Wait until all paid responses in flight are saved, then close the engine."""
        with self._changed:
            self._changed.wait_for(lambda: not self._in_flight)
        self.engine.close()

    def _forward(self, requests: dict[bytes, Generate]) -> None:
        """Send requests to the engine, save the responses, and resolve everything that waits for them."""
        responses: Mapping[bytes, Generation | BaseException] = {}
        try:
            responses = dict(zip(requests, self.engine.generate(list(requests.values())), strict=True))
            with self._changed:
                for key, response in responses.items():
                    if isinstance(response, Generation):
                        self.responses.add(key, response)
        except BaseException as error:
            responses = dict.fromkeys(requests, error)
            raise
        finally:
            with self._changed:
                for key, response in responses.items():
                    pending = self._in_flight.pop(key)
                    if isinstance(response, Generation | BackendError):
                        pending.set_result(response)
                    else:
                        pending.set_exception(response)
                self._changed.notify_all()
