"""A response cache on disk: a resumed run pays for no request twice.

In: an engine and a file. Out: an engine that answers known requests from the file and forwards the others; equal
requests in flight are forwarded once. Every response is one line, on disk before it is returned; an incomplete last
line is requested again. Errors and token ids are not cached: the text is parsed, never trained on.
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
        #: The responses by key. `_complete`: length of the complete lines, if an incomplete one follows them.
        self.rows, self._complete = _read(path)

    def __contains__(self, request: object) -> bool:
        return isinstance(request, Generate) and self.key(request) in self.rows

    def key(self, request: Generate) -> str:
        """The cache key of a request."""
        texts = [(segment.author.value, segment.text) for segment in request.context]
        parts: tuple[Any, ...] = (self.model_name, texts, request.stop, astuple(request.sampling), request.seed)
        parts += () if request.grammar is None else (request.grammar,)
        return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def get(self, key: str, request: Generate) -> Generation | None:
        """The cached response to a request, or None."""
        row = self.rows.get(key)
        if row is None:
            return None
        usage = Usage(row["read"], row["written"])
        return Generation(
            request.context,
            Segment(Author.POLICY, row["text"], vocabulary=UNKNOWN_TOKENS),
            row["text"],
            Finish(row["finish"]),
            usage,
        )

    def add(self, key: str, response: Generation) -> None:
        """Append a response. When this returns the operating system has it: killing this process cannot lose it."""
        row = {
            "key": key,
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
                self._complete = file.seek(0, os.SEEK_END)
                file.write(json.dumps(row).encode() + b"\n")
            self._complete = None
        except OSError as error:
            raise BackendDown(f"{self.path}: a paid response could not be saved: {error.strerror or error}") from error
        self.rows[key] = row


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
        self._in_flight: dict[str, _Pending] = {}
        self._changed = threading.Condition()

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        """Answer every request, in order; cached ones without a call."""
        new: dict[str, Generate] = {}
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

    def spend(self) -> Spend:
        """What the responses in the file took, over all runs."""
        if self._paid is not None:
            return self._paid(self.cached)
        rows = list(self.responses.rows.values())
        read, written = (sum(row[name] for row in rows) for name in ("read", "written"))
        return Spend(len(rows), 0, read, written, 0.0, self.cached)

    def cancel(self) -> None:
        self.engine.cancel()

    def close(self) -> None:
        """Wait until all paid responses in flight are saved, then close the engine."""
        with self._changed:
            self._changed.wait_for(lambda: not self._in_flight)
        self.engine.close()

    def _forward(self, requests: dict[str, Generate]) -> None:
        """Send requests to the engine, save the responses, and resolve everything that waits for them."""
        responses: Mapping[str, Generation | BaseException] = {}
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


def _read(path: Path) -> tuple[dict[str, dict[str, Any]], int | None]:
    """The responses in a file; and the length of its complete lines, if a killed process left an incomplete one."""
    if not path.exists():
        return {}, None
    complete, newline, incomplete = path.read_bytes().rpartition(b"\n")
    known: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(complete.split(b"\n") if complete else (), start=1):
        try:
            row = json.loads(line)
            known[row["key"]] = {name: row[name] for name in ("key", "text", "finish", "read", "written")}
        except (ValueError, KeyError, TypeError) as error:
            raise StepladderError(f"{path}:{number}: not a cached response ({error}); delete the line") from error
    return known, len(complete) + len(newline) if incomplete else None
