"""A search server: any retriever behind Search-R1's protocol, for many concurrent clients.

In: a retriever, limits, and the index information for `/info`. Out: an ASGI application (`make_app`), or a running
server (`serve`).

    POST /retrieve       the search, see remote/protocol.py
    GET  /health         {"status": "ok"}, or 503 while all searches fail; for load balancers, needs no token
    GET  /info           index, limits and version
    GET  /metrics        Prometheus metrics
    GET  /openapi.json   the OpenAPI schema, with the limits of this server

Requests are read as Search-R1's server reads them, so that its clients work unchanged: `topk` may be 3, 3.0, "3", 0 or
null, and a query that is too long is truncated instead of failing its whole batch. Search-R1's client does not look at
the status of a reply; refused requests are therefore logged as well.

Errors are JSON, {"detail": "..."}: 400 for what is not HTTP, 401 without the token, 408 if headers or body are late,
413, 422 and 431 for invalid requests, 429 with Retry-After when the queue is full, 500 when the search failed, 503
during shutdown. SIGTERM and Ctrl-C finish requests in progress first.
"""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Unpack

from fastapi import FastAPI, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, create_model

from stepladder.retrieval.base import Retriever
from stepladder.retrieval.remote.protocol import write_reply
from stepladder.serve.http.answer_health import AnswerHealth
from stepladder.serve.http.api import POST_ERRORS, JSONBytes, RequestBody, ServerAPI
from stepladder.serve.http.gate import Gate
from stepladder.serve.http.http_errors import HTTPError
from stepladder.serve.http.run_server import ListenOptions, run
from stepladder.serve.search.search_batcher import SearchBatcher, SearchMetrics
from stepladder.serve.server_configs import ServerConfig


def _number(value: object) -> object:
    """The forms that Search-R1's server takes: 3, 3.0, "3"; 0 and null are the default."""
    if isinstance(value, str) and re.fullmatch(r"0|[1-9][0-9]{0,8}", value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if value == 0 and not isinstance(value, bool) else value


def _truth(value: object) -> object:
    """true, 1 or "true"; null is false."""
    truths: dict[object, bool] = {None: False, 0: False, 1: True, "false": False, "true": True}
    return truths.get(value, value) if isinstance(value, str | int | float | None) else value


_TRUTHS = {"enum": [True, False, 0, 1, "true", "false", None]}


class SearchRequest(RequestBody):
    """A search, in Search-R1's protocol."""

    queries: list[str]
    topk: int | None = None
    topk_rerank: int | None = None
    return_scores: Annotated[bool, BeforeValidator(_truth), WithJsonSchema(_TRUTHS)] = Field(
        default=False, description="Whether to return documents with scores, or alone."
    )

    @classmethod
    def within(cls, limits: ServerConfig) -> "type[SearchRequest]":
        """The request of a server with these limits."""
        forms = [
            {"type": "integer", "minimum": 0, "maximum": limits.max_topk},
            {"type": "string", "enum": [str(number) for number in range(limits.max_topk + 1)]},
            {"type": "null"},
        ]
        number = Annotated[int, Field(ge=1, le=limits.max_topk)] | None
        topk = Annotated[number, BeforeValidator(_number), WithJsonSchema({"anyOf": forms})]
        about = f"Passages per query; without it, null or 0 {limits.topk}."
        reranked = "The name of topk in requests to Search-R1's server with a reranker."
        return create_model(
            "SearchRequest",
            __base__=cls,
            queries=Annotated[list[str], Field(max_length=limits.max_queries, fail_fast=True)],
            topk=(topk, Field(default=None, description=about)),
            topk_rerank=(topk, Field(default=None, description=reranked)),
        )


class _Reply(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Document(_Reply):
    """A passage."""

    id: str
    contents: str = Field(description="The title in quotes, a line break, the text.")


class Hit(_Reply):
    """A passage with its score."""

    document: Document
    score: float | None


class SearchReply(_Reply):
    """One list of passages per query, in the order of the queries, best first."""

    result: list[list[Document]] | list[list[Hit]]


class Problem(BaseModel):
    """An error, in FastAPI's format."""

    detail: str


def make_app(retriever: Retriever, config: ServerConfig, info: Mapping[str, object], *, local: bool = False) -> Gate:
    """The server as an ASGI application; `info` describes the index. `local`: reject requests from web pages."""
    metrics = SearchMetrics()
    batcher, health = SearchBatcher(retriever, config, metrics), AnswerHealth()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        yield
        batcher.close()

    async def retrieve(body: SearchRequest) -> Response:
        """Search, in Search-R1's protocol."""
        queries = [query[: config.max_characters] for query in body.queries]
        if longer := sum(len(query) > config.max_characters for query in body.queries):
            metrics.truncated.inc(longer)
        pending = batcher.submit(queries, body.topk or body.topk_rerank or config.topk)
        if pending.remaining:
            try:
                await pending.ready
            finally:
                batcher.cancel(pending)
            health.count(failed=pending.results is None)
        results = pending.results
        if results is None:
            raise HTTPError(500, "the search failed; see the server's log")
        return JSONBytes(write_reply(results, body.return_scores))

    api = ServerAPI(
        "Stepladder search",
        config,
        metrics,
        {"index": dict(info), "limits": config.model_dump(exclude={"token"})},
        lifespan=lifespan,
        error_model=Problem,
        error_fields=lambda error: {"detail": error.detail},
        check_health=health.check,
    )
    declared = {"response_model": SearchReply, **api.declared(*POST_ERRORS)}
    api.add_main("/retrieve", retrieve, SearchRequest.within(config), declared)
    return Gate(api, config, metrics, local=local)


def serve(
    retriever: Retriever, config: ServerConfig, info: Mapping[str, object], **options: Unpack[ListenOptions]
) -> None:
    """Serve until SIGTERM or Ctrl-C, on port 8000 if the options name no other."""
    options.setdefault("port", 8000)
    run(lambda local: make_app(retriever, config, info, local=local), config, may="search", **options)
