"""`POST /v1/chat/completions`: reads a request, has it played, and answers whole or as a stream of events.

In: a request. Out: a reply in OpenAI's shape, or `HTTPError`. A client that goes away ends its question.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from stepladder.core.io.json_body import BadRequest
from stepladder.serve.agent.chat_request import ChatRequest, UnknownModel, read_chat
from stepladder.serve.agent.chat_response import BEAT, DONE, MODEL_NOT_FOUND, Completion, error, event
from stepladder.serve.agent.client_wait import followed
from stepladder.serve.agent.scheduler import Ended, Scheduler, Ticket
from stepladder.serve.agent.served_agent import ServedAgent
from stepladder.serve.agent.server_config import AgentServerConfig
from stepladder.serve.http.app import Receive, HTTPError, Response, StreamingResponse, EventStream, json_response
from stepladder.serve.http.timeouts import QueueFull, DisconnectWatch, read_body

log = logging.getLogger(__name__)

_STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))


class Chat:
    """Answers chat completions by one agent."""

    def __init__(self, agent: ServedAgent, player: Scheduler, settings: AgentServerConfig) -> None:
        self._agent, self._player, self._settings = agent, player, settings

    async def __call__(self, receive: Receive) -> Response | StreamingResponse:
        limits = self._settings
        body = await read_body(receive, limits.max_body_bytes, limits.body_seconds, "leave out earlier messages")
        try:
            asked = read_chat(body, limits, self._agent.sampling)
        except UnknownModel as unknown:
            return json_response(error(404, str(unknown), MODEL_NOT_FOUND), 404)
        except BadRequest as bad:
            raise HTTPError(422, str(bad)) from bad
        try:
            ticket = self._player.ask(self._agent.question(asked.question, asked.sampling, asked.seed))
        except QueueFull as full:
            raise full.refusal from full
        if asked.stream:
            return EventStream(self._events(asked, ticket, receive), b"text/event-stream; charset=utf-8", _STREAM_HEADERS)
        return await self._whole(ticket, receive)

    async def _whole(self, ticket: Ticket, receive: Receive) -> Response:
        answer = Completion(self._settings.model)
        with DisconnectWatch(ticket.leave, receive):
            async with aclosing(followed(self._player, ticket, self._settings.answer_seconds)) as news:
                async for each in news:
                    if isinstance(each, Ended):
                        return json_response(answer.whole(each.value, each.usage))
        raise AssertionError("a question ends, or is refused")

    async def _events(self, asked: ChatRequest, ticket: Ticket, receive: Receive) -> AsyncGenerator[bytes, None]:
        """The answer as it comes. What goes wrong now is an event too: the status has been sent."""
        answer, number = Completion(self._settings.model), 0
        try:
            yield event(answer.opening())
            with DisconnectWatch(ticket.leave, receive):
                async with aclosing(followed(self._player, ticket, self._settings.answer_seconds)) as news:
                    async for each in news:
                        if isinstance(each, Ended):
                            yield event(answer.answer(each.value))
                            yield event(answer.end(each.value))
                            if asked.with_usage:
                                yield event(answer.cost(each.usage))
                            continue
                        for step in each:
                            number += 1
                            yield event(answer.step(step, number))
                        if not each:
                            yield BEAT
        except HTTPError as refused:
            yield event(error(refused.status, refused.detail))
        except asyncio.CancelledError:  # the time to drain is over, and with it this task
            yield event(error(503, "the server is ending: ask another, or try again"))
        except Exception:
            log.exception("an answer could not be told")
            yield event(error(500, "the server failed; its log says why"))
        finally:
            self._player.drop(ticket)
        yield DONE
