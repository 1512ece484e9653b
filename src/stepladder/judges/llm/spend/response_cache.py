"""What a paid model said, kept on disk: a run that starts again pays for nothing twice.

In: an engine and a file. Out: an engine that answers a request it has seen before from the file and passes on the
others; equal requests that are under way at once are passed on once. Every reply is one line, on disk before it is
handed on; a last line that was cut off is asked for again. Errors are not kept. Token ids are not kept either: this is
for text that is read, and not trained on.
"""

import json
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

from stepladder.core.errors import BackendDown, BackendError, StepladderError
from stepladder.core.requests import Finish, Generate, Generation
from stepladder.core.trace import Author, Segment, Usage
from stepladder.engines.base import Engine

#: What a request is answered with, once it is.
_Answer = Future[Generation | BackendError]


class ResponseCache:
    """The replies in a file. `model_name` keeps those of different models apart. Reading changes nothing."""

    def __init__(self, path: Path, model_name: str) -> None:
        self.path = path
        self.model_name = model_name
        #: `_whole`: the length of the whole lines, where an unfinished one stands behind them.
        self._known, self._whole = _read(path)

    def __contains__(self, request: object) -> bool:
        return isinstance(request, Generate) and self.key(request) in self._known

    def key(self, request: Generate) -> str:
        """What makes requests equal."""
        texts = [(segment.author.value, segment.text) for segment in request.context]
        sampling = request.sampling
        parts = (
            self.model_name,
            texts,
            request.stop,
            (sampling.temperature, sampling.top_p, sampling.max_tokens),
            request.seed,
        )
        return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def get(self, key: str, request: Generate) -> Generation | None:
        """The reply to a request, if it is known."""
        row = self._known.get(key)
        if row is None:
            return None
        usage = Usage(row["read"], row["written"])
        return Generation(
            request.context, Segment(Author.POLICY, row["text"]), row["text"], Finish(row["finish"]), usage
        )

    def total(self) -> tuple[int, Usage]:
        """How many replies there are, and what they took."""
        rows = list(self._known.values())
        return len(rows), Usage(sum(row["read"] for row in rows), sum(row["written"] for row in rows))

    def add(self, key: str, reply: Generation) -> None:
        """Keep a reply. When this returns, the system has it: what ends this process then cannot lose it."""
        row = {
            "key": key,
            "text": reply.text,
            "finish": reply.finish.value,
            "read": reply.usage.read,
            "written": reply.usage.written,
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                if self._whole is not None:  # what was left unfinished goes, so that a line can follow
                    file.truncate(self._whole)
                self._whole = file.seek(0, os.SEEK_END)
                file.write(json.dumps(row).encode() + b"\n")
            self._whole = None
        except OSError as error:
            raise BackendDown(f"{self.path}: a paid reply could not be kept: {error.strerror or error}") from error
        self._known[key] = row


class CachedEngine(Engine):
    """An engine whose replies are kept in a file. `model_name` keeps replies of different models apart."""

    name: ClassVar[str] = "remembering"

    def __init__(self, engine: Engine, path: Path, model_name: str) -> None:
        self.engine = engine
        self.max_batch, self.concurrency = engine.max_batch, engine.concurrency
        self.replies = ResponseCache(path, model_name)
        #: Requests that were answered without a call: from the file, or by the reply to an equal one under way.
        self.cached = 0
        self._under_way: dict[str, _Answer] = {}
        self._changed = threading.Condition()

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        """Answer every request, in order; those known from the file cost nothing."""
        ours: dict[str, Generate] = {}
        answers: list[_Answer] = []
        with self._changed:
            for request in requests:
                key = self.replies.key(request)
                answer = self._known(key, request) or self._under_way.get(key)
                if answer is None:
                    answer = self._under_way[key] = Future()
                    ours[key] = request
                else:
                    self.cached += 1
                answers.append(answer)
        if ours:
            self._ask(ours)
        return [_handed(answer.result(), request) for answer, request in zip(answers, requests)]

    def cancel(self) -> None:
        """As the engine does."""
        self.engine.cancel()

    def close(self) -> None:
        """Wait until what is under way has been kept, for it is paid; then as the engine does."""
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way)
        self.engine.close()

    def _ask(self, ours: dict[str, Generate]) -> None:
        """Pass requests on, keep the replies, and hand them to all who wait."""
        try:
            replies = dict(zip(ours, self.engine.generate(list(ours.values())), strict=True))
            with self._changed:
                for key, reply in replies.items():
                    if isinstance(reply, Generation):
                        self.replies.add(key, reply)
        except BaseException as error:
            self._tell(dict.fromkeys(ours, error))
            raise
        self._tell(replies)

    def _tell(self, replies: Mapping[str, Generation | BaseException]) -> None:
        with self._changed:
            for key, reply in replies.items():
                answer = self._under_way.pop(key)
                if isinstance(reply, Generation | BackendError):
                    answer.set_result(reply)
                else:
                    answer.set_exception(reply)
            self._changed.notify_all()

    def _known(self, key: str, request: Generate) -> _Answer | None:
        reply = self.replies.get(key, request)
        if reply is None:
            return None
        answer: _Answer = Future()
        answer.set_result(reply)
        return answer


def _handed(reply: Generation | BackendError, request: Generate) -> Generation | BackendError:
    return replace(reply, context=request.context) if isinstance(reply, Generation) else reply


def _read(path: Path) -> tuple[dict[str, dict[str, Any]], int | None]:
    """The replies in a file and, where a killed process left a line unfinished, the length of what is before it."""
    if not path.exists():
        return {}, None
    whole, newline, cut_off = path.read_bytes().rpartition(b"\n")
    known: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(whole.split(b"\n") if whole else (), start=1):
        try:
            row = json.loads(line)
            known[row["key"]] = {name: row[name] for name in ("key", "text", "finish", "read", "written")}
        except (ValueError, KeyError, TypeError) as error:
            raise StepladderError(f"{path}:{number}: not a kept reply ({error}); take the line out") from error
    return known, len(whole) + len(newline) if cut_off else None
