"""Limits on clients: timeouts for request bodies, disconnects while a request waits, and full queues.

In: the messages of a client. Out: the body of its request or an `HTTPError`; a callback on disconnect.
"""

import asyncio
import math
from collections.abc import Callable, MutableMapping
from typing import Any, Self

from stepladder.core.errors import StepladderError
from stepladder.serve.http.app import HTTPError, Receive

#: Of a body that is too long, this many times the limit is read and discarded: clients read the response afterwards.
_DISCARD_FACTOR = 8
#: Requests that take longer are watched for disconnects.
_WATCH_AFTER_SECONDS = 0.25
#: Upper limit of Retry-After, in seconds.
_MAX_RETRY_AFTER = 60


class QueueFull(StepladderError):
    """The queue is full; `retry_after` estimates in how many seconds there will be room."""

    def __init__(self, what: str, waiting: int, seconds: float) -> None:
        """`what`: the plural of what waits. `seconds`: the time to process all that waits."""
        self.retry_after = min(max(1, math.ceil(seconds)), _MAX_RETRY_AFTER)
        super().__init__(f"the queue is full, {waiting:,} {what} are waiting: try again in {self.retry_after} s")

    @property
    def http_error(self) -> HTTPError:
        """The error for the client."""
        return HTTPError(429, str(self), {"retry-after": str(self.retry_after)})


async def read_body(receive: Receive, limit: int, seconds: float, advice: str) -> bytes:
    """The body, within a time and size limit; `advice` is added to the error if it is too long."""
    length = 0
    parts: list[bytes] = []
    with _Deadline(seconds) as deadline:
        while length <= _DISCARD_FACTOR * limit:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise HTTPError(499, "the client disconnected")
            part = message.get("body", b"")
            length += len(part)
            if length <= limit:
                parts.append(part)
            if not message.get("more_body", False):
                break
    if deadline.expired:
        raise HTTPError(408, f"the body was not received within {seconds:g} s", {"connection": "close"})
    if length > limit:
        raise HTTPError(413, f"the body is longer than {limit:,} bytes: {advice}", {"connection": "close"})
    return b"".join(parts)


class _Deadline:
    """Cancels the code in a `with` block after some seconds; `expired` tells whether that happened.

    Like `asyncio.timeout`, but five times cheaper: every request pays for it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.expired = False

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)
        return self

    def _expire(self) -> None:
        self.expired = True
        if self._task is not None:
            self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._timer.cancel()
        if not self.expired or kind is not asyncio.CancelledError:
            return False
        if self._task is not None:
            self._task.uncancel()
        return True


class DisconnectWatch:
    """Calls `on_disconnect` if the client disconnects while it waits.

    Starts after a delay: most responses are faster, and a timer is cheaper than a task.
    """

    def __init__(self, on_disconnect: Callable[[], None], receive: Receive) -> None:
        self._on_disconnect, self._receive = on_disconnect, receive
        self._disconnect: asyncio.Future[MutableMapping[str, Any]] | None = None

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_SECONDS, self._start)

    def _start(self) -> None:
        # After the body, the next message of a client is its disconnect.
        self._disconnect = disconnect = asyncio.ensure_future(self._receive())
        disconnect.add_done_callback(lambda _: self._on_disconnect())

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._disconnect is not None:
            self._disconnect.cancel()
