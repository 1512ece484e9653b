"""A search server: any retriever behind Search-R1's protocol, made for many clients at once.

In: a retriever, limits, and what `/info` shall tell about the index. Out: an application (`make_app`), or a server that
runs until it is asked to end (`serve`).

    POST /retrieve       the search, see wire.py
    GET  /health         {"status": "ok"}, for load balancers; needs no token
    GET  /info           the index, the limits, the version
    GET  /metrics        for Prometheus
    GET  /openapi.json   all of this as a schema, with the limits of this server

Every error is JSON, {"detail": "..."}: 401 without the token, 408 for a body that does not come, 413 and 422 for what
cannot be answered, 429 with Retry-After when the queue is full, 503 while the server ends. SIGTERM or Ctrl-C lets it
answer what is under way first.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from stepladder import __version__
from stepladder.core.io.auth_token import validate_token
from stepladder.core.io.json_body import BadRequest
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.remote.limits import ServerConfig
from stepladder.retrieval.remote.protocol import read_request, write_reply
from stepladder.serve.http.app import CLIENT_GONE, Endpoint, Gate, Receive, Refused, Reply, told
from stepladder.serve.http.run_server import check_host, is_loopback, run
from stepladder.serve.http.server_metrics import CONTENT_TYPE
from stepladder.serve.http.timeouts import QueueFull, Watch, read_body
from stepladder.serve.search.search_batcher import SearchBatcher, SearchMetrics
from stepladder.serve.search.search_openapi import openapi_schema


def make_app(retriever: Retriever, settings: ServerConfig, info: Mapping[str, object], *, local: bool = False) -> Gate:
    """The server as an ASGI application; `info` describes the index. `local`: web pages are kept out."""
    metrics = SearchMetrics()
    queue = SearchBatcher(
        retriever,
        max_waiting=settings.max_waiting,
        cache_entries=settings.cache_entries,
        cache_bytes=settings.cache_bytes,
        metrics=metrics,
    )
    token = validate_token(settings.token.get_secret_value()) if settings.token else None
    about = told({"index": dict(info), "limits": settings.model_dump(exclude={"token"}), "version": __version__})
    schema = told(openapi_schema(settings))

    async def retrieve(receive: Receive) -> Reply:
        body = await read_body(receive, settings.max_body_bytes, settings.body_seconds, "send fewer queries a request")
        try:
            asked = read_request(body, settings)
            ticket = queue.ask(asked.queries, asked.k)
        except BadRequest as error:
            raise Refused(422, str(error)) from error
        except QueueFull as error:
            raise error.refusal from error
        if ticket.missing:
            try:
                with Watch(ticket.leave, receive):
                    if not await ticket.ready:
                        return CLIENT_GONE
            finally:
                queue.drop(ticket)
        results = ticket.results
        if results is None:
            raise Refused(500, "the search failed; the server's log says why")
        return Reply(200, write_reply(results, asked.with_scores))

    async def health(_: Receive) -> Reply:
        return told({"status": "ok"})

    async def tell(_: Receive) -> Reply:
        return about

    async def count(_: Receive) -> Reply:
        return Reply(200, metrics.page(), content_type=CONTENT_TYPE)

    async def describe(_: Receive) -> Reply:
        return schema

    @asynccontextmanager
    async def searching() -> AsyncIterator[None]:
        queue.start()
        yield
        queue.close()

    endpoints = {
        "/retrieve": Endpoint("POST", retrieve),
        "/health": Endpoint("GET", health, public=True),
        "/info": Endpoint("GET", tell),
        "/metrics": Endpoint("GET", count),
        "/openapi.json": Endpoint("GET", describe),
    }
    return Gate(endpoints, metrics, life=searching, timed="/retrieve", token=token, local=local)


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

    Other addresses than this machine's own need a token, unless `insecure` says that everyone may search. Port 0
    takes a free one.
    """
    check_host(host, has_token=settings.token is not None, insecure=insecure, may="search")
    app = make_app(retriever, settings, info, local=is_loopback(host) and not insecure)
    run(app, settings.drain_seconds, host=host, port=port, access_log=access_log, announce=announce)
