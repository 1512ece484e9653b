"""The OpenAPI schema of the search server, with its limits.

In: the server's settings. Out: plain data. It declares the requests and replies of `remote/protocol.py` and the errors
of `http/app.py`. The server does not validate requests with it, because the length of a body is checked before it is
parsed; the tests check that both agree.
"""

from typing import Any

from stepladder.core.version import __version__
from stepladder.retrieval.remote.limits import ServerConfig

_TEXT = {"type": "string"}
_NON_NEGATIVE = {"type": "integer", "minimum": 0}


def openapi_schema(settings: ServerConfig) -> dict[str, Any]:
    """The schema of a server with these settings, including authentication if a token is set."""
    common = {"503": _error("The server is shutting down: retry, or use another.", {"Retry-After": _NON_NEGATIVE})}
    if settings.token is not None:
        common["401"] = _error("The token is missing or wrong.", {"WWW-Authenticate": _TEXT})
    public = {status: reply for status, reply in common.items() if status != "401"}
    search = {
        "200": _json("One list of passages per query, in the order of the queries, best first.", _REPLY),
        "408": _error("The body was not received in time."),
        "413": _error(f"The body is longer than {settings.max_body_bytes} bytes."),
        "422": _error("The request is invalid; see the detail."),
        "429": _error("The queue is full.", {"Retry-After": _NON_NEGATIVE}),
        "500": _error("The search failed."),
        **common,
    }
    body = {"required": True, "content": {"application/json": {"schema": _request(settings)}}}
    health = _json("The server is up.", _object(status={"const": "ok"}))
    schema: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Stepladder search", "version": __version__},
        "paths": {
            "/retrieve": {
                "post": {
                    "operationId": "retrieve",
                    "summary": "Search, in Search-R1's protocol.",
                    "requestBody": body,
                    "responses": search,
                }
            },
            "/health": {"get": _get("health", "Health check.", {"200": health, **public}, security=[])},
            "/info": {"get": _get("info", "Index, limits and version.", {"200": _json("The info.", _INFO), **common})},
            "/metrics": {"get": _get("metrics", "Prometheus metrics.", {"200": _METRICS, **common})},
            "/openapi.json": {
                "get": _get("openapi", "This schema.", {"200": _json("The schema.", {"type": "object"}), **common})
            },
        },
    }
    if settings.token is not None:
        schema["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        schema["security"] = [{"token": []}]
    return schema


def _request(settings: ServerConfig) -> dict[str, Any]:
    """The body of POST /retrieve. Unknown keys are ignored, as by Search-R1."""
    query = {"type": "string", "maxLength": settings.max_characters}
    return {
        "type": "object",
        "properties": {
            "queries": {"type": "array", "items": query, "maxItems": settings.max_queries},
            "topk": {
                "type": ["integer", "null"],
                "minimum": 1,
                "maximum": settings.max_topk,
                "description": f"Passages per query; the default is {settings.topk}.",
            },
            "return_scores": {
                "type": "boolean",
                "default": False,
                "description": "Whether to return documents with scores, or documents alone.",
            },
        },
        "required": ["queries"],
    }


def _object(**properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _lists(item: dict[str, Any]) -> dict[str, Any]:
    """One list of such passages per query."""
    return _object(result={"type": "array", "items": {"type": "array", "items": item}})


_DOCUMENT = _object(
    id=_TEXT, contents={"type": "string", "description": "The title in quotes, a line break, the text."}
)
_REPLY = {"anyOf": [_lists(_DOCUMENT), _lists(_object(document=_DOCUMENT, score={"type": ["number", "null"]}))]}
_INFO = _object(index={"type": "object"}, limits={"type": "object"}, version=_TEXT)
_PROBLEM = {"type": "object", "properties": {"detail": _TEXT}, "required": ["detail"]}
_METRICS = {"description": "Prometheus' text format.", "content": {"text/plain": {"schema": _TEXT}}}


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _error(description: str, headers: dict[str, dict[str, Any]] | None = None) -> dict[str, Any]:
    declared = {name: {"schema": schema, "required": True} for name, schema in (headers or {}).items()}
    return {**_json(description, _PROBLEM), "headers": declared}


def _get(operation: str, summary: str, responses: dict[str, Any], **others: object) -> dict[str, Any]:
    return {"operationId": operation, "summary": summary, "responses": responses, **others}
