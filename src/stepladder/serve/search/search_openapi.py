"""The search server's interface as an OpenAPI schema, with the limits of the server that shows it.

In: the server's settings. Out: plain data. It declares what `wire.py` reads and writes and what `gate.py` refuses; the
server does not read requests by it, because the length of a body is checked before it is parsed. The tests hold the
server to it.
"""

from typing import Any

from stepladder import __version__
from stepladder.retrieval.remote.limits import ServerConfig

_TEXT = {"type": "string"}
_WHOLE = {"type": "integer", "minimum": 0}


def openapi_schema(settings: ServerConfig) -> dict[str, Any]:
    """The schema of a server with these settings; a token is part of it where one is set."""
    everywhere = {"503": _error("The server is ending: ask another, or try again.", {"Retry-After": _WHOLE})}
    if settings.token is not None:
        everywhere["401"] = _error("The token is missing or wrong.", {"WWW-Authenticate": _TEXT})
    free = {status: reply for status, reply in everywhere.items() if status != "401"}
    search = {
        "200": _json("What was found, a list a query in the order of the queries, best first.", _REPLY),
        "408": _error("The body did not come in time."),
        "413": _error(f"The body is longer than {settings.max_body_bytes} bytes."),
        "422": _error("The request cannot be answered; the detail says why."),
        "429": _error("Too many queries wait.", {"Retry-After": _WHOLE}),
        "500": _error("The search failed."),
        **everywhere,
    }
    body = {"required": True, "content": {"application/json": {"schema": _request(settings)}}}
    health = _json("The server answers.", _object(status={"const": "ok"}))
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
            "/health": {"get": _get("health", "Whether the server answers.", {"200": health, **free}, security=[])},
            "/info": {
                "get": _get(
                    "info", "The index, the limits, the version.", {"200": _json("All of it.", _INFO), **everywhere}
                )
            },
            "/metrics": {
                "get": _get("metrics", "Figures for Prometheus.", {"200": _METRICS, **everywhere}),
            },
            "/openapi.json": {
                "get": _get("openapi", "This schema.", {"200": _json("It.", {"type": "object"}), **everywhere})
            },
        },
    }
    if settings.token is not None:
        schema["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        schema["security"] = [{"token": []}]
    return schema


def _request(settings: ServerConfig) -> dict[str, Any]:
    """The body of POST /retrieve. Other keys are passed over, as Search-R1 does."""
    query = {"type": "string", "maxLength": settings.max_characters}
    return {
        "type": "object",
        "properties": {
            "queries": {"type": "array", "items": query, "maxItems": settings.max_queries},
            "topk": {
                "type": ["integer", "null"],
                "minimum": 1,
                "maximum": settings.max_topk,
                "description": f"Passages a query; {settings.topk} where it is null or not given.",
            },
            "return_scores": {
                "type": "boolean",
                "default": False,
                "description": "Whether a passage comes as its document with its score, or as its document alone.",
            },
        },
        "required": ["queries"],
    }


def _object(**properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _lists(item: dict[str, Any]) -> dict[str, Any]:
    """For each query a list of such passages."""
    return _object(result={"type": "array", "items": {"type": "array", "items": item}})


_DOCUMENT = _object(
    id=_TEXT, contents={"type": "string", "description": "The title in quotation marks, a line break, the text."}
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
