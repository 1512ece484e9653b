"""The interface of a server of an agent as an OpenAPI schema, with the limits of the server that shows it.

In: the server's settings. Out: plain data. It declares what `wire.py` reads, what `completion.py` writes, and what is
refused. The server does not read requests by it.
"""

from typing import Any

from stepladder import __version__
from stepladder.serve.agent.chat_request import HOTTEST
from stepladder.serve.agent.server_config import AgentServerConfig

_TEXT = {"type": "string"}
_WHOLE = {"type": "integer"}
_ERROR = {
    "type": "object",
    "properties": {"error": {"type": "object", "properties": {"message": _TEXT, "type": _TEXT, "code": _TEXT}}},
    "required": ["error"],
}


def openapi_schema(settings: AgentServerConfig) -> dict[str, Any]:
    """The schema of a server with these settings; a token is part of it where one is set."""
    everywhere = {"503": _error("The server is ending, or the engine cannot work: try again.")}
    if settings.token is not None:
        everywhere["401"] = _error("The token is missing or wrong.")
    asked = {"required": True, "content": {"application/json": {"schema": _request(settings)}}}
    answers = {
        "200": {
            "description": "The answer; as server-sent events where `stream` is true.",
            "content": {"application/json": {"schema": _COMPLETION}, "text/event-stream": {"schema": _TEXT}},
        },
        "404": _error("Another model was asked for."),
        "408": _error("The body did not come in time."),
        "413": _error(f"The body is longer than {settings.max_body_bytes} bytes."),
        "422": _error("The request cannot be answered; the message says why."),
        "429": _error("Too many questions wait: come back after Retry-After seconds."),
        "500": _error("The agent failed at this question."),
        "504": _error(f"No answer within {settings.answer_seconds:g} s."),
        **everywhere,
    }
    chat = {"operationId": "chat", "summary": "Ask the agent.", "requestBody": asked, "responses": answers}
    model = {"name": "model", "in": "path", "required": True, "schema": {"const": settings.model}}
    schema: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Stepladder agent", "version": __version__},
        "paths": {
            "/v1/chat/completions": {"post": chat},
            "/v1/models": {"get": _get("models", "What is served.", everywhere)},
            "/v1/models/{model}": {"get": _get("model", "The one of this name.", everywhere), "parameters": [model]},
            "/health": {"get": {**_get("health", "Whether the server answers.", everywhere), "security": []}},
            "/info": {"get": _get("info", "The agent, the rules, the limits.", everywhere)},
            "/metrics": {"get": _get("metrics", "Figures for Prometheus.", everywhere, "text/plain")},
            "/openapi.json": {"get": _get("openapi", "This schema.", everywhere)},
        },
    }
    if settings.token is not None:
        schema["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        schema["security"] = [{"token": []}]
    return schema


def _request(settings: AgentServerConfig) -> dict[str, Any]:
    part = {"type": "object", "properties": {"type": {"const": "text"}, "text": _TEXT}, "required": ["type", "text"]}
    content = {"anyOf": [_TEXT, {"type": "array", "items": part}, {"type": "null"}]}
    message = {"type": "object", "properties": {"role": _TEXT, "content": content}, "required": ["role"]}
    last = f"The last of role user is the question, at most {settings.max_characters} characters; others are not read."
    return {
        "type": "object",
        "properties": {
            "model": {"type": ["string", "null"], "enum": [settings.model, None]},
            "messages": {"type": "array", "items": message, "description": last},
            "stream": {"type": ["boolean", "null"]},
            "stream_options": {"type": ["object", "null"], "properties": {"include_usage": {"type": "boolean"}}},
            "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": HOTTEST},
            "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
            "max_tokens": {"type": ["integer", "null"], "minimum": 1, "description": "Most tokens a step."},
            "max_completion_tokens": {"type": ["integer", "null"], "minimum": 1, "description": "The same."},
            "seed": {"type": ["integer", "null"]},
            "n": {"enum": [1, None]},
        },
        "required": ["messages"],
    }


_COMPLETION = {
    "type": "object",
    "properties": {
        "id": _TEXT,
        "object": {"const": "chat.completion"},
        "created": _WHOLE,
        "model": _TEXT,
        "choices": {"type": "array", "items": {"type": "object"}},
        "usage": {
            "type": "object",
            "properties": {"prompt_tokens": _WHOLE, "completion_tokens": _WHOLE, "total_tokens": _WHOLE},
        },
    },
    "required": ["id", "object", "created", "model", "choices", "usage"],
}


def _error(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _ERROR}}}


def _get(operation: str, summary: str, others: dict[str, Any], kind: str = "application/json") -> dict[str, Any]:
    good = {"description": "It.", "content": {kind: {"schema": _TEXT if kind == "text/plain" else {"type": "object"}}}}
    return {"operationId": operation, "summary": summary, "responses": {"200": good, **others}}
