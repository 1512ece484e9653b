"""Server-sent events: a response that is sent piece by piece, while something happens.

In: an asynchronous generator of encoded events. Out: an HTTP response. A browser reads it with `EventSource`, or with
`fetch` where the request is a POST.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

#: A comment, which clients ignore. It keeps proxies from closing a connection on which nothing happens.
HEARTBEAT = b": waiting\n\n"


def sse_event(content: object, name: str = "") -> bytes:
    """Plain data as a server-sent event. JSON escapes line breaks, so nothing in it ends the event.

    >>> sse_event({"loss": 0.5}, "curves")
    b'event: curves\\ndata: {"loss": 0.5}\\n\\n'
    """
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(content).encode() + b"\n\n"


class EventStream(StreamingResponse):
    """Server-sent events. Their generator is closed at the end, also when the client has disconnected."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        async with aclosing(self._events):
            await self.stream_response(send)
