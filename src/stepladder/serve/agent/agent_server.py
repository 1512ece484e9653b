"""A server of a trained agent: any OpenAI client can chat with it, any MCP client can use it as a tool.

In: an agent and limits. Out: an application (`make_agent_app`), or a server that runs until it is asked to end
(`serve_agent`).

    POST /v1/chat/completions   a question, see wire.py; the answer, see completion.py
    GET  /v1/models             the one model that is served, and the same under /v1/models/NAME
    POST /mcp                   the Model Context Protocol, where the extra `mcp` is installed
    GET  /health                {"status": "ok"}, or 503 when the engine cannot work; needs no token
    GET  /info                  the agent, the rules, the limits, the version
    GET  /metrics               for Prometheus
    GET  /openapi.json          the interface as a schema, with the limits of this server

Every error is JSON of OpenAI's shape, {"error": {"message": ..., "type": ..., "code": ...}}: 401 without the token, 404
for another model, 408 for a body that does not come, 413 and 422 for what cannot be answered, 429 with Retry-After when
too many wait, 500 when the agent failed at the question, 503 when the engine cannot work or the server ends, 504 when
the answer takes too long. SIGTERM or Ctrl-C lets it answer what is under way first.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec

from stepladder import __version__
from stepladder.core.io.auth_token import validate_token
from stepladder.serve.agent.agent_openapi import openapi_schema
from stepladder.serve.agent.chat import Chat
from stepladder.serve.agent.chat_response import error
from stepladder.serve.agent.scheduler import Scheduler, AgentMetrics
from stepladder.serve.agent.served_agent import ServedAgent
from stepladder.serve.agent.server_config import AgentServerConfig
from stepladder.serve.http.app import Endpoint, HTTPApp, Receive, Response, json_response
from stepladder.serve.http.run_server import check_host, is_loopback, run
from stepladder.serve.http.server_metrics import CONTENT_TYPE

#: How a chat becomes a question; `/info` says it to those who wonder.
RULES = {
    "question": "the text of the last message of role user; earlier messages are not read",
    "max_tokens": "most tokens a step, never more than the server's own limit",
    "seed": "drawn by the server where the request has none; the trace names it",
    "citations": "passages found whose title or text states the answer, then those that state a sub-answer",
}
CHAT = "/v1/chat/completions"


def make_agent_app(agent: ServedAgent, settings: AgentServerConfig, *, local: bool = True) -> HTTPApp:
    """The server as an ASGI application. `local`: it is reached from this machine alone."""
    metrics = AgentMetrics()
    player = Scheduler(agent.driver, max_waiting=settings.max_waiting, metrics=metrics, live=agent.live)
    token = validate_token(settings.token.get_secret_value()) if settings.token else None
    model = {"id": settings.model, "object": "model", "created": int(time.time()), "owned_by": "stepladder"}
    has_mcp = find_spec("mcp") is not None
    about = {
        **agent.info,
        "model": settings.model,
        "rules": RULES,
        "limits": {**settings.model_dump(exclude={"token", "model"}), "max_tokens": agent.sampling.max_tokens},
        "mcp": has_mcp,
        "version": __version__,
    }

    async def health(_: Receive) -> Response:
        if player.down:
            return json_response({"status": "down", **error(503, "the engine cannot work; the server's log says why")}, 503)
        return json_response({"status": "ok"})

    async def count(_: Receive) -> Response:
        return Response(200, metrics.page(), content_type=CONTENT_TYPE)

    endpoints = {
        CHAT: Endpoint("POST", Chat(agent, player, settings)),
        "/v1/models": _always({"object": "list", "data": [model]}),
        f"/v1/models/{settings.model}": _always(model),
        "/health": Endpoint("GET", health, public=True),
        "/info": _always(about),
        "/metrics": Endpoint("GET", count),
        "/openapi.json": _always(openapi_schema(settings)),
    }
    lives = []
    if has_mcp:
        from stepladder.serve.agent.mcp_server import McpEndpoint

        mcp = McpEndpoint(agent, player, settings, local=local)
        endpoints["/mcp"] = Endpoint("POST", mcp)
        lives.append(mcp.life)

    @asynccontextmanager
    async def playing() -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for life in lives:
                await stack.enter_async_context(life())
            player.start()
            stack.callback(player.close)
            yield

    return HTTPApp(endpoints, metrics, life=playing, timed=CHAT, token=token, local=local, shape=error)


def _always(content: object) -> Endpoint:
    reply = json_response(content)

    async def tell(_: Receive) -> Response:
        return reply

    return Endpoint("GET", tell)


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

    Other addresses than this machine's own need a token, unless `insecure` says that everyone may ask. Port 0 takes a
    free one.
    """
    check_host(host, has_token=settings.token is not None, insecure=insecure, may="ask")
    app = make_agent_app(agent, settings, local=is_loopback(host) and not insecure)
    run(app, settings.drain_seconds, host=host, port=port, access_log=access_log, announce=announce)
