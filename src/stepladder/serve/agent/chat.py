"""`POST /v1/chat/completions`: answers a question, as one response or as a stream of events.

In: a request. Out: a response in OpenAI's format, or an `HTTPError`. When the client disconnects, its question ends.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from stepladder.core.io.json_body import BadRequest
from stepladder.serve.agent.chat_request import ChatRequest, UnknownModel, read_chat
from stepladder.serve.agent.chat_response import DONE, HEARTBEAT, MODEL_NOT_FOUND, Completion, error_body, sse_event
from stepladder.serve.agent.client_wait import stream_events
from stepladder.serve.agent.scheduler import Finished, QueuedRequest, Scheduler
from stepladder.serve.agent.served_agent import ServedAgent
from stepladder.serve.agent.server_config import AgentServerConfig
from stepladder.serve.http.app import EventStream, HTTPError, Receive, Response, StreamingResponse, json_response
from stepladder.serve.http.timeouts import DisconnectWatch, QueueFull, read_body

log = logging.getLogger(__name__)

_STREAM_TYPE = b"text/event-stream; charset=utf-8"
_STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))


class Chat:
    """Chat completions by one agent."""

    def __init__(self, agent: ServedAgent, scheduler: Scheduler, settings: AgentServerConfig) -> None:
        self._agent, self._scheduler, self._settings = agent, scheduler, settings

    async def __call__(self, receive: Receive) -> Response | StreamingResponse:
        limits = self._settings
        body = await read_body(receive, limits.max_body_bytes, limits.body_seconds, "leave out earlier messages")
        try:
            request = read_chat(body, limits, self._agent.sampling)
        except UnknownModel as unknown:
            return json_response(error_body(404, str(unknown), MODEL_NOT_FOUND), 404)
        except BadRequest as bad:
            raise HTTPError(422, str(bad)) from bad
        try:
            queued = self._scheduler.submit(self._agent.question(request.question, request.sampling, request.seed))
        except QueueFull as full:
            raise full.http_error from full
        if request.stream:
            return EventStream(self._stream(request, queued, receive), _STREAM_TYPE, _STREAM_HEADERS)
        return await self._complete(queued, receive)

    async def _complete(self, queued: QueuedRequest, receive: Receive) -> Response:
        completion = Completion(self._settings.model)
        with DisconnectWatch(queued.disconnect, receive):
            async with aclosing(stream_events(self._scheduler, queued, self._settings.answer_seconds)) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        return json_response(completion.response(event.value, event.usage))
        raise AssertionError("a question ends or raises")

    async def _stream(
        self, request: ChatRequest, queued: QueuedRequest, receive: Receive
    ) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events. Errors are events too: the status has already been sent."""
        completion, number = Completion(self._settings.model), 0
        try:
            yield sse_event(completion.first_chunk())
            with DisconnectWatch(queued.disconnect, receive):
                async with aclosing(stream_events(self._scheduler, queued, self._settings.answer_seconds)) as events:
                    async for event in events:
                        if isinstance(event, Finished):
                            yield sse_event(completion.answer_chunk(event.value))
                            yield sse_event(completion.last_chunk(event.value))
                            if request.with_usage:
                                yield sse_event(completion.usage_chunk(event.usage))
                            continue
                        for step in event:
                            number += 1
                            yield sse_event(completion.step_chunk(step, number))
                        if not event:
                            yield HEARTBEAT
        except HTTPError as error:
            yield sse_event(error_body(error.status, error.detail))
        except asyncio.CancelledError:  # the drain time is over
            yield sse_event(error_body(503, "the server is shutting down: try another one, or later"))
        except Exception:
            log.exception("an answer could not be sent")
            yield sse_event(error_body(500, "internal server error; see the server's log"))
        finally:
            self._scheduler.cancel(queued)
        yield DONE
