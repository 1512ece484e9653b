"""OpenAI's chat completion requests.

    POST /v1/chat/completions {"model": "...", "messages": [{"role": "user", "content": "Who ...?"}], "stream": false}

The question is the text of the last message of role `user`. The agent has no memory: earlier messages are accepted, so
that any chat client works, and ignored. `temperature`, `top_p` and `seed` apply to the agent's steps; `max_tokens` can
lower the server's limit on the tokens per step. Parameters that would change the meaning of an answer and are not
supported (`n` above 1, `tools`, a `response_format`, `logprobs`) are rejected; others are ignored.
"""

import reprlib
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from stepladder.core.requests import Sampling
from stepladder.serve.http.api import WHOLE, RequestBody
from stepladder.serve.http.http_errors import HTTPError


def _reject(value: Any) -> Any:
    if value:
        raise ValueError("not supported: this agent searches by itself and answers in plain text")
    return value


EXAMPLE: dict[str, Any] = {"messages": [{"role": "user", "content": "Where was the architect of Orm Tower born?"}]}
_Unsupported = Annotated[Any, AfterValidator(_reject)]
_Tokens = Annotated[int, Field(ge=1, lt=2**63), WHOLE]


class TextPart(RequestBody):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(RequestBody):
    """A message of a chat. Messages that are ignored may contain anything."""

    role: str
    content: str | list[TextPart] | Any = None


class StreamOptions(RequestBody):
    """Options of streams."""

    include_usage: bool | None = Field(default=None, description="Whether the stream ends with token counts.")


class ResponseFormat(RequestBody):
    """The only format."""

    type: Literal["text"]


class ChatRequest(RequestBody):
    """A chat; the last message of role `user` is the question."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE, {**EXAMPLE, "stream": True, "seed": 7}]})

    messages: Annotated[list[Message], Field(fail_fast=True)]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: _Tokens | None = Field(default=None, description="Maximum tokens per step.")
    max_completion_tokens: _Tokens | None = Field(default=None, description="The same.")
    seed: Annotated[int, Field(gt=-(2**63), lt=2**63), WHOLE] | None = None
    n: Annotated[int, Field(ge=1, le=1), WHOLE] | None = None
    response_format: ResponseFormat | None = None
    tools: _Unsupported = None
    functions: _Unsupported = None
    logprobs: _Unsupported = None

    def question(self, max_chars: int) -> str:
        """The question; raises `HTTPError`."""
        questions = [message.content for message in self.messages if message.role == "user"]
        if not questions:
            raise HTTPError(422, 'messages: none has the role "user"; the last of them is the question')
        content = questions[-1]
        if isinstance(content, list):
            if not all(isinstance(part, TextPart) for part in content):
                raise HTTPError(422, 'the question may only have parts of the form {"type": "text", "text": "..."}')
            content = "\n".join(part.text for part in content)
        return read_question(content, max_chars)

    def sampling(self, defaults: Sampling) -> Sampling:
        """How to sample; `defaults` apply where the request has no value, and limit the tokens."""
        limits = [each for each in (self.max_tokens, self.max_completion_tokens) if each is not None]
        return Sampling(
            defaults.temperature if self.temperature is None else self.temperature,
            defaults.top_p if self.top_p is None else self.top_p,
            min([defaults.max_tokens, *limits]),
        )


def read_question(text: object, max_chars: int, name: str = "the question") -> str:
    """Validate a question or a query; raises `HTTPError`."""
    if not isinstance(text, str):
        raise HTTPError(422, f"{name} must be a string, found {reprlib.repr(text)}")
    if len(text) > max_chars:
        raise HTTPError(422, f"{name} has {len(text):,} characters; the limit is {max_chars:,}")
    if not text.strip():
        raise HTTPError(422, f"{name} is empty")
    return text.strip()
