"""A search server: any retriever behind Search-R1's protocol, for many concurrent clients.

In: a retriever, limits, and the index information for `/info`. Out: an ASGI application (`make_app`), or a running
server (`serve`).

    POST /retrieve       the search, see remote/protocol.py
    GET  /health         {"status": "ok"}, or 503 while all searches fail; for load balancers, needs no token
    GET  /info           index, limits and version
    GET  /metrics        Prometheus metrics
    GET  /openapi.json   the OpenAPI schema, with the limits of this server

Errors are JSON, {"detail": "..."}: 400 for what is not HTTP, 401 without the token, 408 if headers or body are late,
413, 422 and 431 for invalid requests, 429 with Retry-After when the queue is full, 500 when the search failed, 503
during shutdown. SIGTERM and Ctrl-C finish requests in progress first.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Unpack

from fastapi import FastAPI, Response
from pydantic import BaseModel, ConfigDict, Field, create_model

from stepladder.retrieval.base import Retriever
from stepladder.retrieval.remote.protocol import write_reply
from stepladder.serve.http.answer_health import AnswerHealth
from stepladder.serve.http.api import POST_ERRORS, WHOLE, JSONBytes, RequestBody, ServerAPI
from stepladder.serve.http.gate import Gate
from stepladder.serve.http.http_errors import HTTPError
from stepladder.serve.http.run_server import ListenOptions, run
from stepladder.serve.search.search_batcher import SearchBatcher, SearchMetrics
from stepladder.serve.server_configs import ServerConfig


class SearchRequest(RequestBody):
    """A search, in Search-R1's protocol."""

    queries: list[str]
    topk: int | None = None
    return_scores: bool = Field(default=False, description="Whether to return documents with scores, or alone.")

    @classmethod
    def within(cls, limits: ServerConfig) -> "type[SearchRequest]":
        """The request of a server with these limits."""
        query = Annotated[str, Field(max_length=limits.max_characters)]
        topk = Annotated[int, Field(ge=1, le=limits.max_topk), WHOLE]
        return create_model(
            "SearchRequest",
            __base__=cls,
            queries=Annotated[list[query], Field(max_length=limits.max_queries, fail_fast=True)],
            topk=(topk | None, Field(default=None, description=f"Passages per query; the default is {limits.topk}.")),
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
        pending = batcher.submit(body.queries, body.topk or config.topk)
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
