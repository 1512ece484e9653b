"""Live updates of a page: what has changed is sent as server-sent events while somebody looks.

In: a function that looks at files and yields what has changed. Out: a response that calls it again and again, until the
browser leaves or the server shuts down.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

from fastapi import Request
from starlette.concurrency import iterate_in_threadpool

from stepladder.serve.http.http_errors import HTTPError
from stepladder.serve.http.server_sent_events import HEARTBEAT, EventStream, sse_event
from stepladder.serve.studio.site import Site

#: Seconds between two looks at whether the browser has left or the server shuts down.
_TICK = 0.25
#: Seconds without news after which a heartbeat is sent.
_HEARTBEAT_SECONDS = 15.0

#: An event: its name and its data, which must be possible as JSON.
News = tuple[str, Any]


def live_events(request: Request, site: Site, look: Callable[[], Iterable[News]], seconds: float) -> EventStream:
    """Call `look` in a thread every so many seconds, and send each of its news as soon as it is there.

    An `HTTPError` of a look, such as that of a run that was deleted meanwhile, is the event `problem`, once.
    """

    async def events() -> AsyncGenerator[bytes, None]:
        silent, problem = 0.0, ""
        while True:
            silent += seconds
            try:
                async for name, data in iterate_in_threadpool(look()):
                    silent, problem = 0.0, ""
                    yield sse_event(data, name)
            except HTTPError as error:
                if error.detail != problem:
                    problem = error.detail
                    yield sse_event(problem, "problem")
            if silent >= _HEARTBEAT_SECONDS:
                silent = 0.0
                yield HEARTBEAT
            waited = 0.0
            while waited < seconds:
                if site.is_draining() or await request.is_disconnected():
                    return
                await asyncio.sleep(_TICK)
                waited += _TICK

    return EventStream(events())
