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
from typing import Any
from urllib.parse import quote

from stepladder.core.trace import Step, StopReason, Trajectory, Usage
from stepladder.serve.agent.citations import Citation, cite
from stepladder.serve.agent.episode_json import answer_text, citations_data, episode_data, step_data, step_text

#: Ends a stream.
DONE = b"data: [DONE]\n\n"
#: An SSE comment that keeps an idle connection open; clients ignore it.
HEARTBEAT = b": still running\n\n"

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    504: "timeout_error",
}
_CODES = {
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    422: "invalid_request",
    429: "too_many_requests",
    503: "unavailable",
    504: "answer_timeout",
}
#: OpenAI's error code for an unknown model.
MODEL_NOT_FOUND = "model_not_found"


def error_body(status: int, message: str, code: str | None = None) -> dict[str, object]:
    """The JSON of an error, in OpenAI's format.

    >>> error_body(422, "the question is empty")["error"]["type"]
    'invalid_request_error'
    """
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code or _CODES.get(status, "failed")}}


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion: the fields that its response or all of its chunks share."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def response(self, trajectory: Trajectory, tokens: Usage) -> dict[str, Any]:
        """The complete response."""
        text = answer_text(trajectory)
        citations = cite(trajectory)
        message = {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "annotations": annotations(citations, text),
            "stepladder": {**episode_data(trajectory), "citations": citations_data(citations)},
        }
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(trajectory)}
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage(tokens)}

    def first_chunk(self) -> dict[str, Any]:
        """The first chunk."""
        return self._chunk({"role": "assistant", "content": ""})

    def step_chunk(self, step: Step, number: int) -> dict[str, Any]:
        """The chunk of a step; `number` counts from 1."""
        return self._chunk({"reasoning_content": step_text(step), "stepladder": {"step": step_data(step, number)}})

    def answer_chunk(self, trajectory: Trajectory) -> dict[str, Any]:
        """The chunk with the answer and the whole episode, which may differ from the steps sent before."""
        message = self.response(trajectory, Usage())["choices"][0]["message"]
        return self._chunk({name: message[name] for name in ("content", "annotations", "stepladder")})

    def last_chunk(self, trajectory: Trajectory) -> dict[str, Any]:
        """The last chunk with a choice."""
        return self._chunk({}, finish_reason(trajectory))

    def usage_chunk(self, tokens: Usage) -> dict[str, Any]:
        """The chunk with the token counts, for clients that requested it."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage(tokens)}

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def finish_reason(trajectory: Trajectory) -> str:
    """`length` if a limit ended the episode, `stop` if the agent did."""
    stop = trajectory.stop or StopReason.FAILED
    return "length" if stop.is_truncation else "stop"


def usage(tokens: Usage) -> dict[str, int]:
    """Tokens over all steps. Each step reads its own context."""
    read, written = tokens.read, tokens.written
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def annotations(citations: Sequence[Citation], text: str) -> list[dict[str, Any]]:
    """Citations as OpenAI's annotations of the whole answer. Passage ids that are no URL get the scheme `passage:`."""
    return [
        {
            "type": "url_citation",
            "url_citation": {
                "start_index": 0,
                "end_index": len(text),
                "title": each.passage.title,
                "url": _url(each.passage.id),
            },
            "stepladder": data,
        }
        for each, data in zip(citations, citations_data(citations), strict=True)
    ]


def sse_event(content: object) -> bytes:
    """Plain data as a server-sent event. JSON escapes line breaks, so nothing in it ends the event."""
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def _url(passage_id: str) -> str:
    return (
        passage_id
        if passage_id.startswith(("http://", "https://"))
        else f"passage:{quote(passage_id, errors='replace')}"
    )
