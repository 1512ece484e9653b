"""How long the search server bears with a client: while its request comes, and while it waits for the answer.

In: what is heard of the client. Out: the body of its request, or a refusal; and the news that it went away.
"""

import asyncio
from collections.abc import MutableMapping
from typing import Any, Self

from stepladder.retrieval.gate import Receive, Refused, Reply, problem
from stepladder.retrieval.server_settings import ServerSettings
from stepladder.retrieval.serving import Ticket

#: Of a body that is too long, so many times the limit is read and thrown away: clients listen when they have spoken.
_PATIENCE = 8
#: A client that waits for longer is watched: when it goes away, its queries are not searched for.
_WATCH_AFTER_SECONDS = 0.25
#: Nobody hears it, but it is counted.
CLIENT_GONE = Reply(499, b"")


async def read_body(receive: Receive, settings: ServerSettings) -> bytes:
    """The body, if it comes in time and is not longer than the limit."""
    limit, length = settings.max_body_bytes, 0
    parts: list[bytes] = []
    with _Deadline(settings.body_seconds) as deadline:
        while length <= _PATIENCE * limit:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(CLIENT_GONE)
            part = message.get("body", b"")
            length += len(part)
            if length <= limit:
                parts.append(part)
            if not message.get("more_body", False):
                break
    if deadline.passed:
        late = f"the body did not come within {settings.body_seconds:g} s"
        raise Refused(problem(408, late, {"connection": "close"}))
    if length > limit:
        reason = f"the body is longer than {limit:,} bytes: send fewer queries a request"
        raise Refused(problem(413, reason, {"connection": "close"}))
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


class Watch:
    """Notices that a client went away while it waits for a ticket.

    Most answers are there before that, and a timer is cheaper than a task: it begins after a moment.
    """

    def __init__(self, ticket: Ticket, receive: Receive) -> None:
        self._ticket, self._receive = ticket, receive
        self._gone: asyncio.Future[MutableMapping[str, Any]] | None = None

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_SECONDS, self._begin)

    def _begin(self) -> None:
        # After the body, the next that is heard of a client is its end.
        self._gone = gone = asyncio.ensure_future(self._receive())
        gone.add_done_callback(lambda _: self._ticket.leave())

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._gone is not None:
            self._gone.cancel()
