"""OpenAI's chat completion requests, as pure functions.

    POST /v1/chat/completions {"model": "...", "messages": [{"role": "user", "content": "Who ...?"}], "stream": false}

The question is the text of the last message of role `user`. The agent has no memory: earlier messages are accepted, so
that any chat client works, and ignored. `temperature`, `top_p` and `seed` apply to the agent's steps; `max_tokens` can
lower the server's limit on the tokens per step. Parameters that would change the meaning of an answer and are not
supported (`n` above 1, `tools`, a `response_format`, `logprobs`) are rejected; others are ignored.
"""

from dataclasses import dataclass
from typing import Any

from stepladder.core.io.json_body import BadRequest, json_object, json_type
from stepladder.core.requests import Sampling
from stepladder.core.unicode import replace_surrogates
from stepladder.serve.agent.server_config import AgentServerConfig

EXAMPLE = '{"messages": [{"role": "user", "content": "Who designed Orm Tower?"}]}'
#: Upper limit of the temperature, as in OpenAI's API.
MAX_TEMPERATURE = 2.0
_MAX_INT = 2**63 - 1


class UnknownModel(BadRequest):
    """A model that is not served here."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A validated request."""

    question: str
    sampling: Sampling
    #: None: drawn by the server.
    seed: int | None = None
    stream: bool = False
    #: Whether the stream ends with token counts.
    with_usage: bool = False


def read_chat(raw: bytes, limits: AgentServerConfig, defaults: Sampling) -> ChatRequest:
    """Parse a request body; raises `BadRequest`. `defaults` apply where the request has no value.

    >>> read_chat(EXAMPLE.encode(), AgentServerConfig(), Sampling()).question
    'Who designed Orm Tower?'
    """
    body = json_object(raw, EXAMPLE)
    _check_model(body.get("model"), limits.model)
    _reject_unsupported(body)
    options = _typed(body, "stream_options", dict, "an object", {})
    return ChatRequest(
        read_question(_question(body.get("messages")), limits.max_characters),
        _sampling(body, defaults),
        _integer(body, "seed", -_MAX_INT, _MAX_INT),
        _typed(body, "stream", bool, "true or false", False),
        _typed(options, "include_usage", bool, "true or false", False),
    )


def read_question(text: object, max_chars: int, name: str = "the question") -> str:
    """Validate a question or a query; lone surrogates, which UTF-8 cannot encode, become U+FFFD."""
    if not isinstance(text, str):
        raise BadRequest(f"{name} must be a string, found {json_type(text)}")
    if len(text) > max_chars:
        raise BadRequest(f"{name} has {len(text):,} characters; the limit is {max_chars:,}")
    if not text.strip():
        raise BadRequest(f"{name} is empty")
    return replace_surrogates(text.strip())


def _check_model(name: object, served: str) -> None:
    if name is not None and not isinstance(name, str):
        raise BadRequest(f'"model" must be a string, found {json_type(name)}')
    if name not in (None, served):
        raise UnknownModel(f"unknown model {name[:200]!r}; this server has {served!r}")


def _question(messages: object) -> object:
    """The content of the last message of the user, with text parts joined."""
    if not isinstance(messages, list):
        raise BadRequest(f'"messages" must be a list such as {EXAMPLE}, found {json_type(messages)}')
    last: Any = None
    for position, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRequest(f'"messages"[{position}] must be an object with a "role", found {json_type(message)}')
        if message["role"] == "user":
            last = message
    if last is None:
        raise BadRequest('"messages" has no message of role "user": the last of them is the question')
    content = last.get("content")
    if not isinstance(content, list):
        return content
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) != len(content) or not all(isinstance(text, str) for text in texts):
        raise BadRequest('the question has a part that is not {"type": "text", "text": "..."}: only text is supported')
    return "\n".join(str(text) for text in texts)


def _reject_unsupported(body: dict[str, Any]) -> None:
    if _integer(body, "n", 1, _MAX_INT) not in (None, 1):
        raise BadRequest('"n" must be 1: this agent gives one answer per request')
    response_format = body.get("response_format")
    if response_format is not None and response_format != {"type": "text"}:
        raise BadRequest('"response_format" must be {"type": "text"}: this agent answers in plain text')
    for name in ("tools", "functions", "logprobs"):
        if body.get(name):
            raise BadRequest(f'"{name}" is not supported: this agent searches by itself and answers in plain text')


def _sampling(body: dict[str, Any], defaults: Sampling) -> Sampling:
    temperature = _number(body, "temperature", defaults.temperature)
    if not 0 <= temperature <= MAX_TEMPERATURE:
        raise BadRequest(f'"temperature" must be from 0 to {MAX_TEMPERATURE:g}')
    top_p = _number(body, "top_p", defaults.top_p)
    if not 0 < top_p <= 1:
        raise BadRequest('"top_p" must be above 0 and at most 1')
    tokens = [_integer(body, name, 1, _MAX_INT) for name in ("max_tokens", "max_completion_tokens")]
    return Sampling(temperature, top_p, min([defaults.max_tokens, *(each for each in tokens if each is not None)]))


def _number(body: dict[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f'"{name}" must be a number, found {json_type(value)}')
    # An integer may be too large for a float; it is out of every range then.
    return float(value) if abs(value) < _MAX_INT else float("inf")


def _integer(body: dict[str, Any], name: str, least: int, most: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # in JSON, 3.0 and 3 are the same number
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(f'"{name}" must be an integer, found {json_type(value)}')
    if not least <= value <= most:
        raise BadRequest(f'"{name}" must be from {least} to {most}')
    return value


def _typed(body: dict[str, Any], name: str, kind: type[Any], expected: str, default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise BadRequest(f'"{name}" must be {expected}, found {json_type(value)}')
    return value
