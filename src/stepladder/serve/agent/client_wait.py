"""Follows one question to its end on behalf of a client, and no longer than the client waits.

In: a ticket of the player. Out: the steps as they are made, then what came out; or `HTTPError`, with what to tell.
"""

import asyncio
from collections.abc import AsyncGenerator
from time import perf_counter

from stepladder.core.trace import Step
from stepladder.serve.agent.scheduler import Ended, Left, Scheduler, Ticket
from stepladder.serve.http.app import HTTPError


async def followed(
    player: Scheduler, ticket: Ticket, seconds: float, beat: float = 15.0
) -> AsyncGenerator[tuple[Step, ...] | Ended, None]:
    """New steps as they come, none of them after each `beat` seconds without any; at last the end, a good one.

    Close it when nobody listens any more: the question is then played no further. So it is after so many `seconds`.
    """
    deadline = perf_counter() + seconds
    try:
        while True:
            rest = deadline - perf_counter()
            if rest <= 0:
                raise HTTPError(504, f"the question was not answered within {seconds:g} s")
            try:
                async with asyncio.timeout(min(beat, rest)):
                    news = await ticket.news.get()
            except TimeoutError:
                yield ()
                continue
            if isinstance(news, Left):
                raise HTTPError(499, "the client went away")
            if isinstance(news, Ended) and news.down:
                raise HTTPError(503, "the engine or the index cannot work now; the server's log says why")
            if isinstance(news, Ended) and news.failure is not None:
                raise HTTPError(500, "the agent failed at this question; the server's log says why")
            yield news
            if isinstance(news, Ended):
                return
    finally:
        player.drop(ticket)
