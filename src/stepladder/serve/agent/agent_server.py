"""The agent server: a trained agent for OpenAI clients (as a chat model) and MCP clients (as a tool).

In: an agent and limits. Out: an application (`make_agent_app`), or a server that runs until it is stopped
(`serve_agent`).

    POST /v1/chat/completions   a question, see chat_request.py; the answer, see chat_response.py
    GET  /v1/models             the served model; also /v1/models/NAME
    POST /mcp                   the Model Context Protocol, if the extra `mcp` is installed
    GET  /health                {"status": "ok"}, or 503 when the engine is down; needs no token
    GET  /info                  the agent, the rules, the limits, the version
    GET  /metrics               for Prometheus
    GET  /openapi.json          the OpenAPI schema, with the limits of this server

Errors are JSON in OpenAI's format, {"error": {"message": ..., "type": ..., "code": ...}}: 401 without the token, 404
for another model, 408 for a body that is not received, 413 and 422 for invalid requests, 429 with Retry-After when the
queue is full, 500 when the agent failed, 503 when the engine is down or the server is shutting down, 504 when the
answer takes too long. On SIGTERM or Ctrl-C, running requests are finished first.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec

from stepladder.core.io.auth_token import validate_token
from stepladder.core.version import __version__
from stepladder.serve.agent.agent_openapi import openapi_schema
from stepladder.serve.agent.chat import Chat
from stepladder.serve.agent.chat_response import error_body
from stepladder.serve.agent.scheduler import AgentMetrics, Scheduler
from stepladder.serve.agent.served_agent import ServedAgent
from stepladder.serve.agent.server_config import AgentServerConfig
from stepladder.serve.http.app import Endpoint, HTTPApp, Receive, Response, json_response
from stepladder.serve.http.run_server import check_host, is_loopback, run
from stepladder.serve.http.server_metrics import CONTENT_TYPE

#: How a chat becomes a question, for `/info`.
RULES = {
    "question": "the text of the last message of role user; earlier messages are ignored",
    "max_tokens": "maximum tokens per step, at most the server's own limit",
    "seed": "drawn by the server if the request has none; the trace contains it",
    "citations": "retrieved passages whose title or text contains the answer, then those that contain a sub-answer",
}
CHAT = "/v1/chat/completions"


def make_agent_app(agent: ServedAgent, settings: AgentServerConfig, *, local: bool = True) -> HTTPApp:
    """The server as an ASGI application. `local`: only this machine can connect."""
    metrics = AgentMetrics()
    scheduler = Scheduler(agent.driver, max_waiting=settings.max_waiting, metrics=metrics, live=agent.live)
    token = validate_token(settings.token.get_secret_value()) if settings.token else None
    model = {"id": settings.model, "object": "model", "created": int(time.time()), "owned_by": "stepladder"}
    has_mcp = find_spec("mcp") is not None
    info = {
        **agent.info,
        "model": settings.model,
        "rules": RULES,
        "limits": {**settings.model_dump(exclude={"token", "model"}), "max_tokens": agent.sampling.max_tokens},
        "mcp": has_mcp,
        "version": __version__,
    }

    async def health(_: Receive) -> Response:
        if scheduler.down:
            return json_response({"status": "down", **error_body(503, "the engine is down; see the log")}, 503)
        return json_response({"status": "ok"})

    async def show_metrics(_: Receive) -> Response:
        return Response(200, metrics.page(), content_type=CONTENT_TYPE)

    endpoints = {
        CHAT: Endpoint("POST", Chat(agent, scheduler, settings)),
        "/v1/models": _static({"object": "list", "data": [model]}),
        f"/v1/models/{settings.model}": _static(model),
        "/health": Endpoint("GET", health, public=True),
        "/info": _static(info),
        "/metrics": Endpoint("GET", show_metrics),
        "/openapi.json": _static(openapi_schema(settings)),
    }
    lifespans = []
    if has_mcp:
        from stepladder.serve.agent.mcp_server import McpEndpoint

        mcp = McpEndpoint(agent, scheduler, settings, local=local)
        endpoints["/mcp"] = Endpoint("POST", mcp)
        lifespans.append(mcp.lifespan)

    @asynccontextmanager
    async def app_lifespan() -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for lifespan in lifespans:
                await stack.enter_async_context(lifespan())
            scheduler.start()
            stack.callback(scheduler.close)
            yield

    return HTTPApp(
        endpoints, metrics, lifespan=app_lifespan, timed_path=CHAT, token=token, local=local, error_body=error_body
    )


def _static(content: object) -> Endpoint:
    reply = json_response(content)

    async def respond(_: Receive) -> Response:
        return reply

    return Endpoint("GET", respond)


def serve_agent(
    agent: ServedAgent,
    settings: AgentServerConfig,
    *,
    host: str = "127.0.0.1",
    port: int = 8001,
    insecure: bool = False,
    access_log: bool = False,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve until SIGTERM or Ctrl-C. `announce` is called with the URL when clients can connect.

    Addresses that other machines can reach need a token, unless `insecure` allows everyone. Port 0 picks a free one.
    """
    check_host(host, has_token=settings.token is not None, insecure=insecure, may="ask")
    app = make_agent_app(agent, settings, local=is_loopback(host) and not insecure)
    run(app, settings.drain_seconds, host=host, port=port, access_log=access_log, announce=announce)
