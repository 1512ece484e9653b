"""The agent server: a trained agent for OpenAI clients (as a chat model) and MCP clients (as a tool).

In: an agent and limits. Out: an application (`make_agent_app`), or a server that runs until it is stopped
(`serve_agent`).

    POST /v1/chat/completions   a question, see chat_request.py; the answer, see chat.py
    GET  /v1/models             the served model; also /v1/models/NAME
    GET  /                      the playground, a web page to ask the agent (serve/studio/playground)
    POST /mcp                   the Model Context Protocol, if the extra `mcp` is installed
    GET  /health                {"status": "ok"}, or 503 when the engine is down or all answers fail; needs no token
    GET  /info                  the agent, the rules, the limits, the version
    GET  /metrics               for Prometheus
    GET  /openapi.json          the OpenAPI schema

Errors are JSON in OpenAI's format, {"error": {"message": ..., "type": ..., "code": ...}}: 400 for what is not HTTP, 401
without the token, 404 for another model, 408 for headers or a body that are not received, 413, 422 and 431 for invalid
requests, 429 with Retry-After when the queue is full, 500 when the agent failed, 503 when the engine is down or the
server is shutting down, 504 when the answer takes too long. On SIGTERM or Ctrl-C, running requests are finished first.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from importlib.util import find_spec
from typing import Unpack

from fastapi import FastAPI, Request, Response
from openai.types.chat import ChatCompletion
from starlette.routing import Route

from stepladder.serve.agent.chat import Chat, OpenAIError, check_model, openai_error
from stepladder.serve.agent.chat_request import ChatRequest
from stepladder.serve.agent.scheduler import AgentMetrics, Scheduler
from stepladder.serve.agent.served_agent import ServedAgent
from stepladder.serve.http.api import POST_ERRORS, ServerAPI
from stepladder.serve.http.gate import Gate
from stepladder.serve.http.http_errors import HTTPError
from stepladder.serve.http.run_server import ListenOptions, run
from stepladder.serve.server_configs import AgentServerConfig
from stepladder.serve.studio.pages.playground_page import add_playground_page
from stepladder.serve.studio.playground.asked_policy import FixedPolicy
from stepladder.serve.studio.site import Site

#: How a chat becomes a question, for `/info`.
RULES = {
    "question": "the text of the last message of role user; earlier messages are ignored",
    "max_tokens": "maximum tokens per step, at most the server's own limit",
    "seed": "drawn by the server if the request has none; the trace contains it",
    "citations": "retrieved passages whose title or text contains the answer, then those that contain a sub-answer",
}
#: The answer to MCP clients of a server without MCP.
MCP_OFF = (
    "MCP is off: this server runs without its library. To turn it on, run `pip install 'stepladder[mcp]'` on the "
    "server (`stepladder doctor` prints the command for its installation) and start it again"
)


def make_agent_app(agent: ServedAgent, config: AgentServerConfig, *, local: bool = True) -> Gate:
    """The server as an ASGI application. `local`: only this machine can connect."""
    metrics = AgentMetrics()
    scheduler = Scheduler(agent.driver, max_waiting=config.max_waiting, metrics=metrics, live=agent.live)
    model = {"id": config.model, "object": "model", "created": int(time.time()), "owned_by": "stepladder"}
    has_mcp = find_spec("mcp") is not None
    limits = {**config.model_dump(exclude={"token", "model"}), "max_tokens": agent.sampling.max_tokens}
    background: Callable[[], AbstractAsyncContextManager[None]] = nullcontext

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with background():
            scheduler.start()
            yield
            scheduler.close()

    async def models() -> dict[str, object]:
        """The served models."""
        return {"object": "list", "data": [model]}

    async def model_by_name(name: str) -> dict[str, object]:
        """One model."""
        check_model(name, config)
        return model

    async def mcp_is_off(_: Request) -> Response:
        raise HTTPError(404, MCP_OFF, code="mcp_not_installed")

    api = ServerAPI(
        "Stepladder agent",
        config,
        metrics,
        {**agent.info, "model": config.model, "rules": RULES, "limits": limits, "mcp": has_mcp},
        lifespan=lifespan,
        error_model=OpenAIError,
        error_fields=openai_error,
        check_health=scheduler.check_health,
    )
    declared = {
        "response_model": ChatCompletion,
        "description": f"The question is {RULES['question']}. It has at most {config.max_characters:,} characters.",
        **api.declared(*POST_ERRORS, 404, 504, text="text/event-stream"),
    }
    api.add_main("/v1/chat/completions", Chat(agent, scheduler, config).chat, ChatRequest, declared)
    api.get("/v1/models", **api.declared())(models)
    api.get("/v1/models/{name:path}", **api.declared(404))(model_by_name)
    if has_mcp:
        from stepladder.serve.agent.mcp_server import mcp_over_http

        manager = mcp_over_http(agent, scheduler, config)
        background = manager.run
        api.router.routes.append(Route("/mcp", manager.asgi_app, methods=["POST"]))
    else:
        api.add_route("/mcp", mcp_is_off, ["POST", "GET"], include_in_schema=False)
    site = Site(api, config.model)
    site.own_paths = ("/playground/", site.public_prefix)
    add_playground_page(site, FixedPolicy(agent, scheduler, config), "/")
    gate = Gate(api, config, metrics, local=local)
    site.is_draining = lambda: gate.draining
    return gate


def serve_agent(agent: ServedAgent, config: AgentServerConfig, **options: Unpack[ListenOptions]) -> None:
    """Serve until SIGTERM or Ctrl-C, on port 8001 if the options name no other."""
    options.setdefault("port", 8001)
    run(lambda local: make_agent_app(agent, config, local=local), config, may="ask", **options)
