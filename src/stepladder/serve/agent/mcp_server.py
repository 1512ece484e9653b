"""MCP server: the agent as tools for other agents.

In: calls of `answer_question` and `search`. Out: results with structured content. Over standard input and output
(`serve_stdio`), as desktop clients start it, or inside an HTTP server (`McpEndpoint`). Needs the extra `mcp`.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from stepladder.agents.base import render_passages
from stepladder.core.io.json_body import BadRequest, json_type
from stepladder.core.trace import Trajectory
from stepladder.core.version import __version__
from stepladder.serve.agent.chat_request import read_question
from stepladder.serve.agent.citations import cite
from stepladder.serve.agent.client_wait import stream_events
from stepladder.serve.agent.episode_json import answer_text, citations_data, episode_data, passages_data, step_text
from stepladder.serve.agent.scheduler import Finished, Scheduler
from stepladder.serve.agent.served_agent import ServedAgent
from stepladder.serve.agent.server_config import AgentServerConfig
from stepladder.serve.agent.tools import ANSWER, SEARCH, tool_definitions
from stepladder.serve.http.app import HTTPError, Receive, Response, Scope, Send, StreamingResponse
from stepladder.serve.http.timeouts import QueueFull

_LOCAL_HOSTS = ["127.0.0.1:*", "localhost:*", "[::1]:*"]

Context = ServerRequestContext[Any]


def make_mcp(agent: ServedAgent, scheduler: Scheduler, settings: AgentServerConfig) -> "Server[Any]":
    """An MCP server with the agent's tools."""

    async def list_tools(_: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        tools = [types.Tool.model_validate(each) for each in tool_definitions(agent, settings)]
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = params.arguments or {}
        try:
            if params.name == ANSWER:
                return await answer(context, arguments)
            if params.name == SEARCH and agent.can_search:
                return await search(context, arguments)
        except (BadRequest, QueueFull) as error:
            return _error(str(error))
        except HTTPError as error:
            return _error(error.detail)
        raise MCPError(types.INVALID_PARAMS, f"unknown tool {params.name[:200]!r}")

    async def answer(context: Context, arguments: dict[str, Any]) -> types.CallToolResult:
        question = read_question(arguments.get("question"), settings.max_characters)
        trajectory: Trajectory = await run(context, agent.question(question))
        data = {
            "answer": trajectory.answer,
            **episode_data(trajectory),
            "citations": citations_data(cite(trajectory)),
        }
        return _result(answer_text(trajectory), data)

    async def search(context: Context, arguments: dict[str, Any]) -> types.CallToolResult:
        query = read_question(arguments.get("query"), settings.max_characters, "the query")
        k = arguments.get("k", min(agent.k, settings.max_topk))
        if isinstance(k, bool) or not isinstance(k, int):
            raise BadRequest(f"k must be an integer, found {json_type(k)}")
        if not 1 <= k <= settings.max_topk:
            raise BadRequest(f"k must be from 1 to {settings.max_topk}")
        passages = await run(context, agent.search(query, k))
        return _result(render_passages(passages), {"passages": passages_data(passages)})

    async def run(context: Context, algorithm: Any) -> Any:
        """Run an algorithm to its result and report its steps as progress. Cancelling the call cancels it."""
        steps = 0
        async with aclosing(stream_events(scheduler, scheduler.submit(algorithm), settings.answer_seconds)) as events:
            async for each in events:
                if isinstance(each, Finished):
                    return each.value
                for step in each:
                    steps += 1
                    await context.session.report_progress(steps, message=step_text(step).strip())
        raise AssertionError("a question ends or raises")

    return Server("stepladder", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


def _result(text: str, data: dict[str, Any]) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], structured_content=data)


def _error(reason: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=reason)], is_error=True)


async def serve_stdio(agent: ServedAgent, scheduler: Scheduler, settings: AgentServerConfig) -> None:
    """Serve one client over standard input and output until it closes them. Other output must go to stderr."""
    server = make_mcp(agent, scheduler, settings)
    scheduler.start()
    try:
        async with stdio_server() as (reader, writer):
            await server.run(reader, writer, server.create_initialization_options())
    finally:
        scheduler.close()


@dataclass(frozen=True, slots=True)
class _DelegatedResponse:
    """A request that is answered by the MCP library."""

    manager: StreamableHTTPSessionManager

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> int:
        status = 0

        async def record_status(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        await self.manager.asgi_app(scope, receive, record_status)
        return status


class McpEndpoint:
    """MCP over streamable HTTP, stateless: there are no sessions."""

    def __init__(self, agent: ServedAgent, scheduler: Scheduler, settings: AgentServerConfig, *, local: bool) -> None:
        """`local`: only this machine can connect; protects against DNS rebinding by web pages."""
        security = TransportSecuritySettings(
            enable_dns_rebinding_protection=local,
            allowed_hosts=_LOCAL_HOSTS,
            allowed_origins=[f"http://{host}" for host in _LOCAL_HOSTS],
        )
        self._manager = StreamableHTTPSessionManager(
            make_mcp(agent, scheduler, settings),
            stateless=True,
            security_settings=security,
            max_request_body_size=settings.max_body_bytes,
        )

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Enter it while requests are served."""
        async with self._manager.run():
            yield

    async def __call__(self, _: Receive) -> Response | StreamingResponse:
        return _DelegatedResponse(self._manager)
