"""`POST /v1/chat/completions`: answers a question in OpenAI's format, as one response or as a stream of events.

In: a request. Out: a response, or an `HTTPError`. When the client disconnects, its question ends. Messages and deltas
have an additional field `stepladder` with the episode or the step; chunks also have `reasoning_content`, the step as
text, which many chat clients show. Citations are OpenAI's annotations, with a field `stepladder`.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any
from urllib.parse import quote

from fastapi.responses import Response
from pydantic import BaseModel

from stepladder.core.trace import StopReason, Trajectory, Usage
from stepladder.serve.agent.chat_request import ChatRequest
from stepladder.serve.agent.episode_json import answer_text, episode_data, step_data, step_text
from stepladder.serve.agent.scheduler import Finished, QueuedRequest, Scheduler
from stepladder.serve.agent.served_agent import ServedAgent
from stepladder.serve.http.api import JSONBytes
from stepladder.serve.http.http_errors import HTTPError, crashed, shutting_down
from stepladder.serve.http.server_sent_events import HEARTBEAT, EventStream, sse_event
from stepladder.serve.server_configs import AgentServerConfig

log = logging.getLogger(__name__)

#: Ends a stream.
DONE = b"data: [DONE]\n\n"

#: OpenAI's type and code of an error, by status.
_ERRORS = {
    400: ("invalid_request_error", "bad_request"),
    401: ("authentication_error", "invalid_api_key"),
    404: ("not_found_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    408: ("timeout_error", "request_timeout"),
    413: ("invalid_request_error", "request_too_large"),
    422: ("invalid_request_error", "invalid_request"),
    431: ("invalid_request_error", "headers_too_large"),
    429: ("rate_limit_error", "too_many_requests"),
    503: ("server_error", "unavailable"),
    504: ("timeout_error", "answer_timeout"),
}


class ErrorDetails(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: None = None
    code: str


class OpenAIError(BaseModel):
    """An error, in OpenAI's format."""

    error: ErrorDetails


def openai_error(error: HTTPError) -> dict[str, Any]:
    """The fields of an `OpenAIError`.

    >>> openai_error(HTTPError(422, "the question is empty"))["error"]["type"]
    'invalid_request_error'
    """
    other = ("invalid_request_error" if error.status_code < 500 else "server_error", "failed")
    kind, code = _ERRORS.get(error.status_code, other)
    return {"error": {"message": error.detail, "type": kind, "param": None, "code": error.code or code}}


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion: the fields that its response or all of its chunks share."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def response(self, trajectory: Trajectory, tokens: Usage) -> dict[str, Any]:
        """The complete response."""
        message = {"role": "assistant", "refusal": None, **_answer_fields(trajectory)}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(trajectory)}
        return {**self._head("chat.completion"), "choices": [choice], "usage": _usage(tokens)}

    def chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        """A chunk of a stream, as a server-sent event."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return sse_event({**self._head("chat.completion.chunk"), "choices": [choice]})

    def usage_chunk(self, tokens: Usage) -> bytes:
        """The chunk with the token counts, for clients that requested it."""
        return sse_event({**self._head("chat.completion.chunk"), "choices": [], "usage": _usage(tokens)})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _answer_fields(trajectory: Trajectory) -> dict[str, Any]:
    """The answer, its citations and the whole episode: fields of a message or a delta."""
    text, episode = answer_text(trajectory), episode_data(trajectory)
    return {"content": text, "annotations": _annotations(episode["citations"], text), "stepladder": episode}


def _finish_reason(trajectory: Trajectory) -> str:
    """`length` if a limit ended the episode, `stop` if the agent did."""
    stop = trajectory.stop or StopReason.FAILED
    return "length" if stop.is_truncation else "stop"


def _usage(tokens: Usage) -> dict[str, int]:
    """Tokens over all steps. Each step reads its own context."""
    read, written = tokens.read, tokens.written
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _annotations(citations: Sequence[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Citations as OpenAI's annotations of the whole answer. Passage ids that are no URL get the scheme `passage:`."""
    found = []
    for each in citations:
        key = each["passage_id"]
        url = key if key.startswith(("http://", "https://")) else f"passage:{quote(key, errors='replace')}"
        cited = {"start_index": 0, "end_index": len(text), "title": each["title"], "url": url}
        found.append({"type": "url_citation", "url_citation": cited, "stepladder": each})
    return found


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
                        yield completion.chunk(_answer_fields(event.value))
                        yield completion.chunk({}, _finish_reason(event.value))
                        if body.stream_options and body.stream_options.include_usage:
                            yield completion.usage_chunk(event.usage)
                        continue
                    for step in event:
                        number += 1
                        fields = {"reasoning_content": step_text(step), "stepladder": {"step": step_data(step, number)}}
                        yield completion.chunk(fields)
                    if not event:
                        yield HEARTBEAT
        except HTTPError as error:
            yield sse_event(openai_error(error))
        except asyncio.CancelledError:  # the drain time is over, or the client has disconnected and reads nothing
            yield sse_event(openai_error(shutting_down()))
        except Exception:
            log.exception("an answer could not be sent")
            yield sse_event(openai_error(crashed()))
        finally:
            self._scheduler.cancel(queued)
        yield DONE
