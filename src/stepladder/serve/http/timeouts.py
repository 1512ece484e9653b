"""How long a server bears with a client: while its request comes, while it waits, and when there are too many.

In: what is heard of the client. Out: the body of its request, or a refusal; and the news that it went away.
"""

import asyncio
import math
from collections.abc import Callable, MutableMapping
from typing import Any, Self

from stepladder.core.errors import StepladderError
from stepladder.serve.http.app import Receive, HTTPError

#: Of a body that is too long, so many times the limit is read and thrown away: clients listen when they have spoken.
_PATIENCE = 8
#: A client that waits for longer is watched: when it goes away, nothing more is done for it.
_WATCH_AFTER_SECONDS = 0.25
#: The longest time, in seconds, that a refused client is asked to stay away.
_LONGEST_AWAY = 60


class QueueFull(StepladderError):
    """No room for more; `wait` says in how many seconds there should be."""

    def __init__(self, what: str, waiting: int, seconds: float) -> None:
        """`what` waits, in the plural; what waits should be done in so many seconds."""
        self.wait = min(max(1, math.ceil(seconds)), _LONGEST_AWAY)
        super().__init__(f"{waiting:,} {what} are waiting and there is no room for more: try again in {self.wait} s")

    @property
    def refusal(self) -> HTTPError:
        """What the client is told."""
        return HTTPError(429, str(self), {"retry-after": str(self.wait)})


async def read_body(receive: Receive, limit: int, seconds: float, advice: str) -> bytes:
    """The body, if it comes within so many seconds and is not longer than the limit; `advice` if it is."""
    length = 0
    parts: list[bytes] = []
    with _Deadline(seconds) as deadline:
        while length <= _PATIENCE * limit:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise HTTPError(499, "the client went away")
            part = message.get("body", b"")
            length += len(part)
            if length <= limit:
                parts.append(part)
            if not message.get("more_body", False):
                break
    if deadline.passed:
        raise HTTPError(408, f"the body did not come within {seconds:g} s", {"connection": "close"})
    if length > limit:
        raise HTTPError(413, f"the body is longer than {limit:,} bytes: {advice}", {"connection": "close"})
    return b"".join(parts)


class _Deadline:
    """Ends what the task does in a `with` after so many seconds; `passed` says whether it came to that.

    What `asyncio.timeout` does, at a fifth of its price: every request pays it, and hardly one needs it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.passed = False

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._pass)
        return self

    def _pass(self) -> None:
        self.passed = True
        if self._task is not None:
            self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._timer.cancel()
        if not self.passed or kind is not asyncio.CancelledError:
            return False
        if self._task is not None:
            self._task.uncancel()
        return True


class DisconnectWatch:
    """Notices that a client went away while it waits, and calls `leave`.

    Most answers are there before that, and a timer is cheaper than a task: it begins after a moment.
    """

    def __init__(self, leave: Callable[[], None], receive: Receive) -> None:
        self._leave, self._receive = leave, receive
        self._gone: asyncio.Future[MutableMapping[str, Any]] | None = None

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_SECONDS, self._begin)

    def _begin(self) -> None:
        # After the body, the next that is heard of a client is its end.
        self._gone = gone = asyncio.ensure_future(self._receive())
        gone.add_done_callback(lambda _: self._leave())

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._gone is not None:
            self._gone.cancel()
