"""OpenAPI schema of the agent server, with the limits of the server that shows it.

In: the server's config. Out: plain data. It describes what `chat_request.py` parses, what `chat_response.py` produces,
and the errors. The server does not validate requests with it.
"""

from typing import Any

from stepladder.core.version import __version__
from stepladder.serve.agent.chat_request import MAX_TEMPERATURE
from stepladder.serve.agent.server_config import AgentServerConfig

_TEXT = {"type": "string"}
_INTEGER = {"type": "integer"}
_ERROR = {
    "type": "object",
    "properties": {"error": {"type": "object", "properties": {"message": _TEXT, "type": _TEXT, "code": _TEXT}}},
    "required": ["error"],
}


def openapi_schema(settings: AgentServerConfig) -> dict[str, Any]:
    """The schema of a server with this config; includes the token if one is set."""
    common = {"503": _error("The server is shutting down, or the engine is down: try again.")}
    if settings.token is not None:
        common["401"] = _error("Missing or invalid token.")
    request_body = {"required": True, "content": {"application/json": {"schema": _request(settings)}}}
    answers = {
        "200": {
            "description": "The answer; as server-sent events if `stream` is true.",
            "content": {"application/json": {"schema": _COMPLETION}, "text/event-stream": {"schema": _TEXT}},
        },
        "404": _error("Unknown model."),
        "408": _error("The body was not received in time."),
        "413": _error(f"The body is longer than {settings.max_body_bytes} bytes."),
        "422": _error("Invalid request; the message has the reason."),
        "429": _error("The queue is full: try again after Retry-After seconds."),
        "500": _error("The agent failed at this question."),
        "504": _error(f"No answer within {settings.answer_seconds:g} s."),
        **common,
    }
    chat = {"operationId": "chat", "summary": "Ask the agent.", "requestBody": request_body, "responses": answers}
    model = {"name": "model", "in": "path", "required": True, "schema": {"const": settings.model}}
    schema: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Stepladder agent", "version": __version__},
        "paths": {
            "/v1/chat/completions": {"post": chat},
            "/v1/models": {"get": _get("models", "The served models.", common)},
            "/v1/models/{model}": {"get": _get("model", "One model by name.", common), "parameters": [model]},
            "/health": {"get": {**_get("health", "Whether the server is healthy.", common), "security": []}},
            "/info": {"get": _get("info", "The agent, the rules, the limits.", common)},
            "/metrics": {"get": _get("metrics", "Metrics for Prometheus.", common, "text/plain")},
            "/openapi.json": {"get": _get("openapi", "This schema.", common)},
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
    last = f"The last of role user is the question, at most {settings.max_characters} characters; others are ignored."
    return {
        "type": "object",
        "properties": {
            "model": {"type": ["string", "null"], "enum": [settings.model, None]},
            "messages": {"type": "array", "items": message, "description": last},
            "stream": {"type": ["boolean", "null"]},
            "stream_options": {"type": ["object", "null"], "properties": {"include_usage": {"type": "boolean"}}},
            "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": MAX_TEMPERATURE},
            "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
            "max_tokens": {"type": ["integer", "null"], "minimum": 1, "description": "Maximum tokens per step."},
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
        "created": _INTEGER,
        "model": _TEXT,
        "choices": {"type": "array", "items": {"type": "object"}},
        "usage": {
            "type": "object",
            "properties": {"prompt_tokens": _INTEGER, "completion_tokens": _INTEGER, "total_tokens": _INTEGER},
        },
    },
    "required": ["id", "object", "created", "model", "choices", "usage"],
}


def _error(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _ERROR}}}


def _get(operation: str, summary: str, others: dict[str, Any], kind: str = "application/json") -> dict[str, Any]:
    ok = {"description": "It.", "content": {kind: {"schema": _TEXT if kind == "text/plain" else {"type": "object"}}}}
    return {"operationId": operation, "summary": summary, "responses": {"200": ok, **others}}
