"""Waits for the result of a question on behalf of a client.

In: a request of the scheduler. Out: the steps as they are made, then the result; or an `HTTPError`.
"""

import asyncio
from collections.abc import AsyncGenerator
from time import perf_counter

from stepladder.core.trace import Step
from stepladder.serve.agent.scheduler import Disconnected, Finished, QueuedRequest, Scheduler
from stepladder.serve.http.app import HTTPError


async def stream_events(
    scheduler: Scheduler, request: QueuedRequest, seconds: float, heartbeat: float = 15.0
) -> AsyncGenerator[tuple[Step, ...] | Finished, None]:
    """New steps as they come, an empty tuple after every `heartbeat` seconds without any, and finally the result.

    Close the generator when nobody listens any more: the question is then cancelled, as it is after `seconds`.
    """
    deadline = perf_counter() + seconds
    try:
        while True:
            remaining = deadline - perf_counter()
            if remaining <= 0:
                raise HTTPError(504, f"the question was not answered within {seconds:g} s")
            try:
                async with asyncio.timeout(min(heartbeat, remaining)):
                    event = await request.events.get()
            except TimeoutError:
                yield ()
                continue
            if isinstance(event, Disconnected):
                raise HTTPError(499, "the client disconnected")
            if isinstance(event, Finished) and event.down:
                raise HTTPError(503, "the engine or the index is down; see the server's log")
            if isinstance(event, Finished) and event.failure is not None:
                raise HTTPError(500, "the agent failed at this question; see the server's log")
            yield event
            if isinstance(event, Finished):
                return
    finally:
        scheduler.cancel(request)
