"""`POST /v1/chat/completions`: answers a question, as one response or as a stream of events.

In: a request. Out: a response in OpenAI's format, or an `HTTPError`. When the client disconnects, its question ends.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from stepladder.serve.agent.chat_request import ChatRequest
from stepladder.serve.agent.chat_response import (
    DONE,
    HEARTBEAT,
    Completion,
    OpenAIError,
    answer_fields,
    finish_reason,
    sse_event,
    step_fields,
)
from stepladder.serve.agent.scheduler import Finished, QueuedRequest, Scheduler
from stepladder.serve.agent.served_agent import ServedAgent
from stepladder.serve.agent.server_config import AgentServerConfig
from stepladder.serve.http.api import JSONBytes
from stepladder.serve.http.http_errors import HTTPError, crashed, shutting_down

log = logging.getLogger(__name__)


class EventStream(StreamingResponse):
    """Server-sent events. Their generator is closed at the end, also when the client has disconnected."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        async with aclosing(self._events):
            await self.stream_response(send)


def check_model(name: str, config: AgentServerConfig) -> None:
    """Raise `HTTPError` if another model is asked for."""
    if name != config.model:
        detail = f"unknown model {name[:200]!r}; this server has {config.model!r}"
        raise HTTPError(404, detail, code="model_not_found")


class Chat:
    """Chat completions by one agent."""

    def __init__(self, agent: ServedAgent, scheduler: Scheduler, config: AgentServerConfig) -> None:
        self._agent, self._scheduler, self._config = agent, scheduler, config

    async def chat(self, body: ChatRequest) -> Response:
        """Ask the agent."""
        config, agent = self._config, self._agent
        if body.model is not None:
            check_model(body.model, config)
        question = body.question(config.max_characters)
        queued = self._scheduler.submit(agent.question(question, body.sampling(agent.sampling), body.seed))
        if body.stream:
            return EventStream(self._stream(body, queued))
        async with aclosing(self._scheduler.events(queued, config.answer_seconds)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    completion = Completion(config.model).response(event.value, event.usage)
                    return JSONBytes(json.dumps(completion).encode())
        raise AssertionError("a question ends or raises")

    async def _stream(self, body: ChatRequest, queued: QueuedRequest) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events. Errors are events too: the status has already been sent."""
        completion, number = Completion(self._config.model), 0
        try:
            yield completion.chunk({"role": "assistant", "content": ""})
            async with aclosing(self._scheduler.events(queued, self._config.answer_seconds)) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        # The whole episode: it may differ from the steps sent before.
                        yield completion.chunk(answer_fields(event.value))
                        yield completion.chunk({}, finish_reason(event.value))
                        if body.stream_options and body.stream_options.include_usage:
                            yield completion.usage_chunk(event.usage)
                        continue
                    for step in event:
                        number += 1
                        yield completion.chunk(step_fields(step, number))
                    if not event:
                        yield HEARTBEAT
        except HTTPError as error:
            yield sse_event(OpenAIError.of(error).model_dump())
        except asyncio.CancelledError:  # the drain time is over, or the client has disconnected and reads nothing
            yield sse_event(OpenAIError.of(shutting_down()).model_dump())
        except Exception:
            log.exception("an answer could not be sent")
            yield sse_event(OpenAIError.of(crashed()).model_dump())
        finally:
            self._scheduler.cancel(queued)
        yield DONE
