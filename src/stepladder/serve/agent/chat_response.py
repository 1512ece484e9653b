"""OpenAI's chat completion responses, complete or in chunks, as pure functions.

In: a finished trajectory, or steps as they come. Out: plain data in OpenAI's format. Messages and deltas have an
additional field `stepladder` with the episode or the step; chunks also have `reasoning_content`, the step as text,
which many chat clients show. Citations are OpenAI's annotations, with a field `stepladder`.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Self
from urllib.parse import quote

from pydantic import BaseModel

from stepladder.core.trace import Step, StopReason, Trajectory, Usage
from stepladder.serve.agent.episode_json import answer_text, episode_data, step_data, step_text
from stepladder.serve.http.api import ErrorReply
from stepladder.serve.http.http_errors import HTTPError

#: Ends a stream.
DONE = b"data: [DONE]\n\n"
#: An SSE comment that keeps an idle connection open; clients ignore it.
HEARTBEAT = b": still running\n\n"

#: OpenAI's type and code of an error, by status.
_ERRORS = {
    401: ("authentication_error", "invalid_api_key"),
    404: ("not_found_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    408: ("timeout_error", "request_timeout"),
    413: ("invalid_request_error", "request_too_large"),
    422: ("invalid_request_error", "invalid_request"),
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


class OpenAIError(ErrorReply):
    """An error, in OpenAI's format.

    >>> OpenAIError.of(HTTPError(422, "the question is empty")).error.type
    'invalid_request_error'
    """

    error: ErrorDetails

    @classmethod
    def of(cls, error: HTTPError) -> Self:
        """The reply for an error."""
        other = ("invalid_request_error" if error.status_code < 500 else "server_error", "failed")
        kind, code = _ERRORS.get(error.status_code, other)
        return cls(error=ErrorDetails(message=error.detail, type=kind, code=error.code or code))


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion: the fields that its response or all of its chunks share."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def response(self, trajectory: Trajectory, tokens: Usage) -> dict[str, Any]:
        """The complete response."""
        message = {"role": "assistant", "refusal": None, **answer_fields(trajectory)}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(trajectory)}
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage(tokens)}

    def chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        """A chunk of a stream, as a server-sent event."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return sse_event({**self._head("chat.completion.chunk"), "choices": [choice]})

    def usage_chunk(self, tokens: Usage) -> bytes:
        """The chunk with the token counts, for clients that requested it."""
        return sse_event({**self._head("chat.completion.chunk"), "choices": [], "usage": usage(tokens)})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def answer_fields(trajectory: Trajectory) -> dict[str, Any]:
    """The answer, its citations and the whole episode: fields of a message or a delta."""
    text, episode = answer_text(trajectory), episode_data(trajectory)
    return {"content": text, "annotations": annotations(episode["citations"], text), "stepladder": episode}


def step_fields(step: Step, number: int) -> dict[str, Any]:
    """A step, as fields of a delta; `number` counts from 1."""
    return {"reasoning_content": step_text(step), "stepladder": {"step": step_data(step, number)}}


def finish_reason(trajectory: Trajectory) -> str:
    """`length` if a limit ended the episode, `stop` if the agent did."""
    stop = trajectory.stop or StopReason.FAILED
    return "length" if stop.is_truncation else "stop"


def usage(tokens: Usage) -> dict[str, int]:
    """Tokens over all steps. Each step reads its own context."""
    read, written = tokens.read, tokens.written
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def annotations(citations: Sequence[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Citations as OpenAI's annotations of the whole answer. Passage ids that are no URL get the scheme `passage:`."""
    return [
        {
            "type": "url_citation",
            "url_citation": {
                "start_index": 0,
                "end_index": len(text),
                "title": each["title"],
                "url": _url(each["passage_id"]),
            },
            "stepladder": each,
        }
        for each in citations
    ]


def sse_event(content: object) -> bytes:
    """Plain data as a server-sent event. JSON escapes line breaks, so nothing in it ends the event."""
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def _url(passage_id: str) -> str:
    is_url = passage_id.startswith(("http://", "https://"))
    return passage_id if is_url else f"passage:{quote(passage_id, errors='replace')}"
