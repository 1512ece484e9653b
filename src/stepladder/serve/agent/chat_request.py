"""OpenAI's chat completions as data: what a server of an agent is asked. Pure functions.

    POST /v1/chat/completions {"model": "...", "messages": [{"role": "user", "content": "Who ...?"}], "stream": false}

The question is the text of the last message of role `user`. The agent has no memory: messages before it are allowed, so
that any chat client can ask, and not read. `temperature`, `top_p` and `seed` are those of the agent's own steps;
`max_tokens` lowers the server's limit on the tokens of a step, and cannot raise it.
What would change what an answer means, and an agent cannot do (`n` above 1, `tools`, a `response_format`, `logprobs`),
is refused; other parameters are passed over.
"""

from dataclasses import dataclass
from typing import Any

from stepladder.core.io.json_body import BadRequest, json_object, json_type
from stepladder.core.requests import Sampling
from stepladder.core.unicode import replace_surrogates
from stepladder.serve.agent.server_config import AgentServerConfig

EXAMPLE = '{"messages": [{"role": "user", "content": "Who designed Orm Tower?"}]}'
#: The most that clients may ask for, as OpenAI's.
HOTTEST = 2.0
_LARGEST_SEED = 2**63 - 1


class UnknownModel(BadRequest):
    """A model that is not served here."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request that was read and found sound."""

    question: str
    sampling: Sampling
    #: None where the client leaves it to the server.
    seed: int | None = None
    stream: bool = False
    #: Whether the stream shall end with what the answer cost.
    with_usage: bool = False


def read_chat(body: bytes, limits: AgentServerConfig, usual: Sampling) -> ChatRequest:
    """The request in a body; `BadRequest` says what is wrong with it. `usual` is where the request does not say.

    >>> read_chat(EXAMPLE.encode(), AgentServerConfig(), Sampling()).question
    'Who designed Orm Tower?'
    """
    asked = json_object(body, EXAMPLE)
    _check_model(asked.get("model"), limits.model)
    _refuse_what_is_not_done(asked)
    options = _typed(asked, "stream_options", dict, "an object", {})
    return ChatRequest(
        read_question(_question(asked.get("messages")), limits.max_characters),
        _sampling(asked, usual),
        _whole(asked, "seed", -_LARGEST_SEED, _LARGEST_SEED),
        _typed(asked, "stream", bool, "true or false", False),
        _typed(options, "include_usage", bool, "true or false", False),
    )


def read_question(text: object, longest: int, name: str = "the question") -> str:
    """A question, or a query, as it is played; lone surrogates, which UTF-8 cannot write, become U+FFFD."""
    if not isinstance(text, str):
        raise BadRequest(f"{name} must be a string, found {json_type(text)}")
    if len(text) > longest:
        raise BadRequest(f"{name} has {len(text):,} characters; this server takes {longest:,}")
    if not text.strip():
        raise BadRequest(f"{name} is empty")
    return replace_surrogates(text.strip())


def _check_model(name: object, served: str) -> None:
    if name is not None and not isinstance(name, str):
        raise BadRequest(f'"model" must be a string, found {json_type(name)}')
    if name not in (None, served):
        raise UnknownModel(f"there is no model {name[:200]!r} here; this server has {served!r}")


def _question(messages: object) -> object:
    """The content of the last message of the user, parts of text put together."""
    if not isinstance(messages, list):
        raise BadRequest(f'"messages" must be a list such as {EXAMPLE}, found {json_type(messages)}')
    asked: Any = None
    for position, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRequest(f'"messages"[{position}] must be an object with a "role", found {json_type(message)}')
        if message["role"] == "user":
            asked = message
    if asked is None:
        raise BadRequest('"messages" has none of role "user": the last of them is the question')
    content = asked.get("content")
    if not isinstance(content, list):
        return content
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) != len(content) or not all(isinstance(text, str) for text in texts):
        raise BadRequest('the question has a part that is not {"type": "text", "text": "..."}: this agent reads text')
    return "\n".join(str(text) for text in texts)


def _refuse_what_is_not_done(asked: dict[str, Any]) -> None:
    if _whole(asked, "n", 1, _LARGEST_SEED) not in (None, 1):
        raise BadRequest('"n" must be 1: this agent gives one answer a request')
    wanted = asked.get("response_format")
    if wanted is not None and wanted != {"type": "text"}:
        raise BadRequest('"response_format" must be {"type": "text"}: this agent answers in plain text')
    for name in ("tools", "functions", "logprobs"):
        if asked.get(name):
            raise BadRequest(f'"{name}" cannot be used here: this agent searches by itself and answers in plain text')


def _sampling(asked: dict[str, Any], usual: Sampling) -> Sampling:
    temperature = _number(asked, "temperature", usual.temperature)
    if not 0 <= temperature <= HOTTEST:
        raise BadRequest(f'"temperature" must be from 0 to {HOTTEST:g}')
    top_p = _number(asked, "top_p", usual.top_p)
    if not 0 < top_p <= 1:
        raise BadRequest('"top_p" must be above 0 and at most 1')
    tokens = [_whole(asked, name, 1, _LARGEST_SEED) for name in ("max_tokens", "max_completion_tokens")]
    return Sampling(temperature, top_p, min([usual.max_tokens, *(each for each in tokens if each is not None)]))


def _number(asked: dict[str, Any], name: str, usual: float) -> float:
    value = asked.get(name)
    if value is None:
        return usual
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f'"{name}" must be a number, found {json_type(value)}')
    # An integer may be too long for a float, and is out of every range then.
    return float(value) if abs(value) < _LARGEST_SEED else float("inf")


def _whole(asked: dict[str, Any], name: str, least: int, most: int) -> int | None:
    value = asked.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # to JSON, 3.0 and 3 are the same number
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(f'"{name}" must be a whole number, found {json_type(value)}')
    if not least <= value <= most:
        raise BadRequest(f'"{name}" must be from {least} to {most}')
    return value


def _typed(asked: dict[str, Any], name: str, kind: type[Any], words: str, usual: Any) -> Any:
    value = asked.get(name)
    if value is None:
        return usual
    if not isinstance(value, kind):
        raise BadRequest(f'"{name}" must be {words}, found {json_type(value)}')
    return value
