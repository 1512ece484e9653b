"""The agent as tools for other agents: a server of the Model Context Protocol.

In: calls of `answer_question` and `search`. Out: results with structured content. It speaks over standard input and
output (`serve_stdio`), as desktop clients start it, or within an HTTP server (`McpEndpoint`). Needs the extra `mcp`.
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

from stepladder import __version__
from stepladder.agents.base import render_passages
from stepladder.core.io.json_body import BadRequest, json_type
from stepladder.core.trace import Trajectory
from stepladder.serve.agent.chat_request import read_question
from stepladder.serve.agent.citations import cite
from stepladder.serve.agent.client_wait import followed
from stepladder.serve.agent.episode_json import answer_text, citations_data, episode_data, passages_data, step_text
from stepladder.serve.agent.scheduler import Ended, Scheduler
from stepladder.serve.agent.served_agent import ServedAgent
from stepladder.serve.agent.server_config import AgentServerConfig
from stepladder.serve.agent.tools import ANSWER, SEARCH, listed_tools
from stepladder.serve.http.app import Receive, HTTPError, Response, Scope, Send, StreamingResponse
from stepladder.serve.http.timeouts import QueueFull

_LOCAL_HOSTS = ["127.0.0.1:*", "localhost:*", "[::1]:*"]

Context = ServerRequestContext[Any]


def make_mcp(agent: ServedAgent, player: Scheduler, settings: AgentServerConfig) -> "Server[Any]":
    """A server of the protocol with the agent's tools."""

    async def list_tools(_: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool.model_validate(each) for each in listed_tools(agent, settings)])

    async def call_tool(context: Context, asked: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = asked.arguments or {}
        try:
            if asked.name == ANSWER:
                return await answer(context, arguments)
            if asked.name == SEARCH and agent.searches:
                return await search(context, arguments)
        except (BadRequest, QueueFull) as error:
            return _failed(str(error))
        except HTTPError as refused:
            return _failed(refused.detail)
        raise MCPError(types.INVALID_PARAMS, f"there is no tool {asked.name[:200]!r} here")

    async def answer(context: Context, arguments: dict[str, Any]) -> types.CallToolResult:
        question = read_question(arguments.get("question"), settings.max_characters)
        trajectory: Trajectory = await play(context, agent.question(question))
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
            raise BadRequest(f"k must be a whole number, found {json_type(k)}")
        if not 1 <= k <= settings.max_topk:
            raise BadRequest(f"k must be from 1 to {settings.max_topk}")
        found = await play(context, agent.search(query, k))
        return _result(render_passages(found), {"passages": passages_data(found)})

    async def play(context: Context, algorithm: Any) -> Any:
        """What an algorithm returns; its steps are reported as progress. A call that is cancelled ends it."""
        made = 0
        async with aclosing(followed(player, player.ask(algorithm), settings.answer_seconds)) as news:
            async for each in news:
                if isinstance(each, Ended):
                    return each.value
                for step in each:
                    made += 1
                    await context.session.report_progress(made, message=step_text(step).strip())
        raise AssertionError("a question ends, or is refused")

    return Server("stepladder", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


def _result(text: str, data: dict[str, Any]) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], structured_content=data)


def _failed(reason: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=reason)], is_error=True)


async def serve_stdio(agent: ServedAgent, player: Scheduler, settings: AgentServerConfig) -> None:
    """Serve one client over standard input and output until it closes them. All else that is printed goes to stderr."""
    server = make_mcp(agent, player, settings)
    player.start()
    try:
        async with stdio_server() as (heard, said):
            await server.run(heard, said, server.create_initialization_options())
    finally:
        player.close()


@dataclass(frozen=True, slots=True)
class _HandedOn:
    """A request that the protocol's own library answers."""

    manager: StreamableHTTPSessionManager

    async def speak(self, scope: Scope, receive: Receive, send: Send) -> int:
        status = 0

        async def noticed(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        await self.manager.asgi_app(scope, receive, noticed)
        return status


class McpEndpoint:
    """The protocol's streamable HTTP. Every request stands alone: there are no sessions to keep."""

    def __init__(self, agent: ServedAgent, player: Scheduler, settings: AgentServerConfig, *, local: bool) -> None:
        """`local`: reached from this machine alone. No web page can then reach it by a name of its own."""
        security = TransportSecuritySettings(
            enable_dns_rebinding_protection=local,
            allowed_hosts=_LOCAL_HOSTS,
            allowed_origins=[f"http://{host}" for host in _LOCAL_HOSTS],
        )
        self._manager = StreamableHTTPSessionManager(
            make_mcp(agent, player, settings),
            stateless=True,
            security_settings=security,
            max_request_body_size=settings.max_body_bytes,
        )

    @asynccontextmanager
    async def life(self) -> AsyncIterator[None]:
        """Enter it as long as requests may come."""
        async with self._manager.run():
            yield

    async def __call__(self, _: Receive) -> Response | StreamingResponse:
        return _HandedOn(self._manager)
