"""A search server: any retriever behind Search-R1's protocol, for many concurrent clients.

In: a retriever, limits, and the index information for `/info`. Out: an ASGI application (`make_app`), or a running
server (`serve`).

    POST /retrieve       the search, see remote/protocol.py
    GET  /health         {"status": "ok"}, for load balancers; needs no token
    GET  /info           index, limits and version
    GET  /metrics        Prometheus metrics
    GET  /openapi.json   the OpenAPI schema, with the limits of this server

Errors are JSON, {"detail": "..."}: 401 without the token, 408 if the body is late, 413 and 422 for invalid requests,
429 with Retry-After when the queue is full, 503 during shutdown. SIGTERM and Ctrl-C finish requests in progress first.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from stepladder.core.io.auth_token import validate_token
from stepladder.core.io.json_body import BadRequest
from stepladder.core.version import __version__
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.remote.limits import ServerConfig
from stepladder.retrieval.remote.protocol import read_request, write_reply
from stepladder.serve.http.app import (
    CLIENT_DISCONNECTED,
    Endpoint,
    HTTPApp,
    HTTPError,
    Receive,
    Response,
    json_response,
)
from stepladder.serve.http.run_server import check_host, is_loopback, run
from stepladder.serve.http.server_metrics import CONTENT_TYPE
from stepladder.serve.http.timeouts import DisconnectWatch, QueueFull, read_body
from stepladder.serve.search.search_batcher import SearchBatcher, SearchMetrics
from stepladder.serve.search.search_openapi import openapi_schema


def make_app(
    retriever: Retriever, settings: ServerConfig, info: Mapping[str, object], *, local: bool = False
) -> HTTPApp:
    """The server as an ASGI application; `info` describes the index. `local`: reject requests from web pages."""
    metrics = SearchMetrics()
    batcher = SearchBatcher(
        retriever,
        max_waiting=settings.max_waiting,
        cache_entries=settings.cache_entries,
        cache_bytes=settings.cache_bytes,
        metrics=metrics,
    )
    token = validate_token(settings.token.get_secret_value()) if settings.token else None
    about = json_response(
        {"index": dict(info), "limits": settings.model_dump(exclude={"token"}), "version": __version__}
    )
    schema = json_response(openapi_schema(settings))

    async def retrieve(receive: Receive) -> Response:
        body = await read_body(
            receive, settings.max_body_bytes, settings.body_seconds, "send fewer queries per request"
        )
        try:
            request = read_request(body, settings)
            pending = batcher.submit(request.queries, request.k)
        except BadRequest as error:
            raise HTTPError(422, str(error)) from error
        except QueueFull as error:
            raise error.http_error from error
        if pending.remaining:
            try:
                with DisconnectWatch(pending.abandon, receive):
                    if not await pending.ready:
                        return CLIENT_DISCONNECTED
            finally:
                batcher.cancel(pending)
        results = pending.results
        if results is None:
            raise HTTPError(500, "the search failed; see the server's log")
        return Response(200, write_reply(results, request.with_scores))

    async def health(_: Receive) -> Response:
        return json_response({"status": "ok"})

    async def show_info(_: Receive) -> Response:
        return about

    async def show_metrics(_: Receive) -> Response:
        return Response(200, metrics.page(), content_type=CONTENT_TYPE)

    async def show_schema(_: Receive) -> Response:
        return schema

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        batcher.start()
        yield
        batcher.close()

    endpoints = {
        "/retrieve": Endpoint("POST", retrieve),
        "/health": Endpoint("GET", health, public=True),
        "/info": Endpoint("GET", show_info),
        "/metrics": Endpoint("GET", show_metrics),
        "/openapi.json": Endpoint("GET", show_schema),
    }
    return HTTPApp(endpoints, metrics, lifespan=lifespan, timed_path="/retrieve", token=token, local=local)


def serve(
    retriever: Retriever,
    settings: ServerConfig,
    info: Mapping[str, object],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    insecure: bool = False,
    access_log: bool = False,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve until SIGTERM or Ctrl-C. `announce` is called with the URL when clients can connect.

    Non-loopback addresses need a token, unless `insecure` is set. Port 0 picks a free port.
    """
    check_host(host, has_token=settings.token is not None, insecure=insecure, may="search")
    app = make_app(retriever, settings, info, local=is_loopback(host) and not insecure)
    run(app, settings.drain_seconds, host=host, port=port, access_log=access_log, announce=announce)
