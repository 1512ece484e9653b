"""OpenAI's chat completions as data: what a server of an agent answers, whole and in chunks. Pure functions.

In: a finished trajectory, or steps as they come. Out: plain data of OpenAI's shape. Beyond it, a message and a chunk's
delta have a field `stepladder`: how the episode went, or the step that was made; chunks also have `reasoning_content`,
the same step for people, which many chat clients show. Citations are OpenAI's annotations, with a field `stepladder`.
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
#: Keeps a connection open on which nothing is said for long; clients pass over it.
BEAT = b": still playing\n\n"

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
#: The code of a model that is not served here, as clients of OpenAI know it.
MODEL_NOT_FOUND = "model_not_found"


def error(status: int, message: str, code: str | None = None) -> dict[str, object]:
    """What is wrong, in OpenAI's shape.

    >>> error(422, "the question is empty")["error"]["type"]
    'invalid_request_error'
    """
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code or _CODES.get(status, "failed")}}


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer on its way to a client: what all that is said of it has in common."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, trajectory: Trajectory, spent: Usage) -> dict[str, Any]:
        """The answer, all at once, and what it took."""
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
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage(spent)}

    def opening(self) -> dict[str, Any]:
        """The first chunk."""
        return self._chunk({"role": "assistant", "content": ""})

    def step(self, step: Step, number: int) -> dict[str, Any]:
        """A chunk for a step that was made; `number` counts from 1."""
        return self._chunk({"reasoning_content": step_text(step), "stepladder": {"step": step_data(step, number)}})

    def answer(self, trajectory: Trajectory) -> dict[str, Any]:
        """The chunk with the answer. How the episode went is told again as a whole: it may be other than the steps."""
        message = self.whole(trajectory, Usage())["choices"][0]["message"]
        return self._chunk({name: message[name] for name in ("content", "annotations", "stepladder")})

    def end(self, trajectory: Trajectory) -> dict[str, Any]:
        """The last chunk with a choice."""
        return self._chunk({}, finish_reason(trajectory))

    def cost(self, spent: Usage) -> dict[str, Any]:
        """The chunk with what the answer cost, for clients that asked for it."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage(spent)}

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def finish_reason(trajectory: Trajectory) -> str:
    """`length` where a limit ended the episode, `stop` where the agent did."""
    stop = trajectory.stop or StopReason.FAILED
    return "length" if stop.is_truncation else "stop"


def usage(spent: Usage) -> dict[str, int]:
    """Tokens over all steps: each reads its own context, so that a long search costs more than its last step."""
    return {"prompt_tokens": spent.read, "completion_tokens": spent.written, "total_tokens": spent.read + spent.written}


def annotations(citations: Sequence[Citation], text: str) -> list[dict[str, Any]]:
    """Citations as OpenAI's, each of the whole answer. A passage without a URL for an id gets one of its own scheme."""
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


def event(content: object) -> bytes:
    """Plain data as a server-sent event. JSON has line breaks in escapes alone: nothing in it ends an event."""
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def _url(passage_id: str) -> str:
    return (
        passage_id
        if passage_id.startswith(("http://", "https://"))
        else f"passage:{quote(passage_id, errors='replace')}"
    )
