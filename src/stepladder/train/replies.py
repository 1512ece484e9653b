"""What a paid model said, kept on disk: a run that starts again pays for nothing twice.

In: an engine and a file. Out: an engine that answers a request it has seen before from the file and passes on the
others. Every reply is one line, appended as it comes; a last line that was cut off is asked for again. Errors are not
kept. For engines without token ids, such as servers.
"""

import json
import threading
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

from stepladder.engines.base import Engine, EngineError
from stepladder.errors import StepladderError
from stepladder.request import Finish, Generate, Generation
from stepladder.trace import Author, Segment, Usage


class RememberingEngine(Engine):
    """An engine whose replies are kept in a file. `name_of_model` keeps replies of different models apart."""

    name: ClassVar[str] = "remembering"

    def __init__(self, engine: Engine, path: Path, name_of_model: str) -> None:
        self.engine = engine
        self.max_batch, self.concurrency = engine.max_batch, engine.concurrency
        self.path = path
        self.name_of_model = name_of_model
        #: Requests that were answered from the file.
        self.recalled = 0
        self._lock = threading.Lock()
        self._known = _read(path)

    def generate(self, requests: Sequence[Generate]) -> list[Generation | EngineError]:
        """Answer every request, in order; those known from the file cost nothing."""
        keys = [self._key(request) for request in requests]
        unknown = [index for index, key in enumerate(keys) if key not in self._known]
        asked = self.engine.generate([requests[index] for index in unknown]) if unknown else []
        replies: dict[int, Generation | EngineError] = dict(zip(unknown, asked, strict=True))
        with self._lock:
            self.recalled += len(requests) - len(unknown)
            self._append([(keys[index], reply) for index, reply in replies.items() if isinstance(reply, Generation)])
        return [
            replies[index] if index in replies else _generation(request, self._known[key])
            for index, (request, key) in enumerate(zip(requests, keys))
        ]

    def cancel(self) -> None:
        """As the engine does."""
        self.engine.cancel()

    def close(self) -> None:
        """As the engine does."""
        self.engine.close()

    def _key(self, request: Generate) -> str:
        texts = [(segment.author.value, segment.text) for segment in request.context]
        sampling = request.sampling
        parts = (
            self.name_of_model,
            texts,
            request.stop,
            (sampling.temperature, sampling.top_p, sampling.max_tokens),
            request.seed,
        )
        return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def _append(self, replies: Sequence[tuple[str, Generation]]) -> None:
        if not replies:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8", newline="\n") as file:
            for key, reply in replies:
                row = {
                    "key": key,
                    "text": reply.text,
                    "finish": reply.finish.value,
                    "read": reply.usage.read,
                    "written": reply.usage.written,
                }
                self._known[key] = row
                file.write(json.dumps(row) + "\n")


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """The replies in a file. A line that a killed process left unfinished is taken off, so that the next can follow."""
    if not path.exists():
        return {}
    whole, _, cut_off = path.read_bytes().rpartition(b"\n")
    if cut_off:
        with path.open("rb+") as file:
            file.truncate(len(whole) + 1 if whole else 0)
    known: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(whole.split(b"\n") if whole else (), start=1):
        try:
            row = json.loads(line)
            known[row["key"]] = {name: row[name] for name in ("key", "text", "finish", "read", "written")}
        except (ValueError, KeyError, TypeError) as error:
            raise StepladderError(f"{path}:{number}: not a kept reply ({error}); delete the file") from error
    return known


def _generation(request: Generate, row: dict[str, Any]) -> Generation:
    written = Segment(Author.POLICY, row["text"])
    usage = Usage(row["read"], row["written"])
    return Generation(request.context, written, row["text"], Finish(row["finish"]), usage)
