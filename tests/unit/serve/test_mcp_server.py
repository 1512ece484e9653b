"""The agent as tools of the Model Context Protocol, asked by its own client: over stdio, over HTTP, in process."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters

from stepladder.core.errors import StepladderError
from stepladder.driver import Driver
from stepladder.engines.base import Engine
from stepladder.retrieval.base import Retriever
from stepladder.serve.agent.mcp_server import make_mcp
from stepladder.serve.agent.scheduler import AgentMetrics, Scheduler
from stepladder.serve.agent.served_agent import ServedAgent
from stepladder.serve.server_configs import AgentServerConfig
from tests.support import ROOT
from tests.support.agent_servers import Fragile, Oracle, WideOracle, gold_play, running
from tests.support.samples import PASSAGES, QUESTION, WordRetriever
from tests.support.search_servers import spoken, until


@asynccontextmanager
async def connected(
    engine: Engine, retriever: Retriever | None = None, **settings: Any
) -> AsyncIterator[tuple[Client, AgentMetrics]]:
    """A client of a server in this process."""
    chosen, metrics = AgentServerConfig.read(settings), AgentMetrics()
    driver = Driver(engine, WordRetriever() if retriever is None else retriever, in_flight=chosen.max_running)
    scheduler = Scheduler(driver, max_waiting=chosen.max_waiting, metrics=metrics)
    scheduler.start()
    try:
        async with Client(make_mcp(ServedAgent(driver, gold_play), scheduler, chosen)) as client:
            yield client, metrics
    finally:
        scheduler.close()


def said(result: Any) -> str:
    (content,) = result.content
    return str(content.text)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))  # type: ignore[arg-type]


async def check_tools(client: Client) -> None:
    """What every way to reach the server must give."""
    answer, search = (await client.list_tools()).tools
    assert (answer.name, search.name) == ("answer_question", "search")
    steps: list[str | None] = []

    async def note(_: float, __: float | None, message: str | None) -> None:
        steps.append(message)

    result = await client.call_tool("answer_question", {"question": QUESTION.text}, progress_callback=note)
    data: Any = result.structured_content
    assert not result.is_error
    assert (said(result), data["answer"], data["stop"]) == ("Velm", "Velm", "answered")
    assert [step["action"] for step in data["steps"]] == ["query", "sub_answer", "query", "sub_answer", "answer"]
    assert [each["passage_id"] for each in data["citations"]] == ["p2", "p3", "p1"]
    assert (len(steps), steps[1]) == (5, "[1] tells it.\nFound: Ada Tarn"), "steps are reported as they are made"

    found = await client.call_tool("search", {"query": "Where was Ada Tarn born?", "k": 1})
    passage = PASSAGES[1]
    expected = {"id": "p2", "title": passage.title, "text": passage.text, "score": None}
    assert found.structured_content == {"passages": [expected]}
    assert said(found) == f"[1] {passage.title}: {passage.text}"


def test_tools_in_process() -> None:
    async def test() -> None:
        async with connected(Oracle()) as (client, _):
            await check_tools(client)

    run(test)


def test_tools_over_http() -> None:
    with running(Oracle()) as server:

        async def test() -> None:
            async with Client(f"{server.url}/mcp") as client:
                await check_tools(client)
            async with Client(f"{server.url}/mcp", mode="legacy") as client:
                await check_tools(client)

        run(test)
        elsewhere = server.client.post("/mcp", json={}, headers={"host": "evil.example"})
        assert elsewhere.status_code == 421, "a web page that points a name of its own at this machine is sent away"
        assert server.client.get("/mcp").status_code == 405


def test_limits_hold_for_mcp_too() -> None:
    with running(Oracle(), max_body_bytes=1000, body_seconds=0.3) as server:
        long = server.client.post("/mcp", content=b"x" * 1001)
        assert (long.status_code, long.json()["error"]["code"]) == (413, "request_too_large")
        late = spoken(server, b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
        assert (late.status_code, late.json()["error"]["code"]) == (408, "request_timeout")


SERVER = """
import asyncio
from stepladder.driver import Driver
from stepladder.serve.agent.served_agent import ServedAgent
from stepladder.serve.agent.mcp_server import serve_stdio
from stepladder.serve.agent.scheduler import Scheduler, AgentMetrics
from stepladder.serve.server_configs import AgentServerConfig
from tests.support.samples import WordRetriever
from tests.support.agent_servers import Oracle, gold_play

class Noisy(Oracle):
    def generate(self, requests):
        print("a library that prints what nobody asked for")
        return super().generate(requests)

driver = Driver(Noisy(), WordRetriever())
scheduler = Scheduler(driver, max_waiting=10, metrics=AgentMetrics())
asyncio.run(serve_stdio(ServedAgent(driver, gold_play), scheduler, AgentServerConfig()))
"""


def test_tools_over_stdio_whatever_else_is_printed() -> None:
    async def test() -> None:
        parameters = StdioServerParameters(command=sys.executable, args=["-c", SERVER], cwd=ROOT, env=dict(os.environ))
        async with Client(parameters) as client:
            await check_tools(client)

    run(test)


# --- Calls that cannot be answered --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("answer_question", {}, "the question must be a string, found None"),
        ("answer_question", {"question": 7}, "the question must be a string, found 7"),
        ("answer_question", {"question": " "}, "the question is empty"),
        ("answer_question", {"question": "x" * 4001}, "the question has 4,001 characters; the limit is 4,000"),
        ("search", {"query": ["x"]}, "the query must be a string, found ['x']"),
        ("search", {"query": "x", "k": 0}, "k must be an integer from 1 to 100, found 0"),
        ("search", {"query": "x", "k": 10**9}, "k must be an integer from 1 to 100, found 1000000000"),
        ("search", {"query": "x", "k": True}, "k must be an integer from 1 to 100, found True"),
    ],
)
def test_bad_arguments_are_said_to_the_caller(tool: str, arguments: Any, message: str) -> None:
    async def test() -> None:
        async with connected(Oracle()) as (client, _):
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert said(result) == message

    run(test)


def test_failures_are_said_without_their_insides() -> None:
    engine = Fragile()

    async def test() -> None:
        async with connected(engine) as (client, _):
            bad = await client.call_tool("answer_question", {"question": "bad"})
            assert (bad.is_error, said(bad)) == (True, "the agent failed at this question; see the server's log")
            engine.down = True
            down = await client.call_tool("answer_question", {"question": "x"})
            assert "is down; see the server's log" in said(down)
            with pytest.raises(MCPError, match="unknown tool 'rm'"):
                await client.call_tool("rm", {})

    run(test)


def test_a_call_that_is_given_up_ends_its_question() -> None:
    engine = WideOracle()
    engine.held = "held"

    async def test() -> None:
        async with connected(engine) as (client, metrics):
            call = asyncio.create_task(client.call_tool("answer_question", {"question": "held"}))
            await asyncio.to_thread(engine.begun.wait, 15)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await asyncio.to_thread(
                until, lambda: metrics.registry.get_sample_value("stepladder_disconnected_total") == 1
            )
            engine.go.set()
            await asyncio.to_thread(until, lambda: metrics.registry.get_sample_value("stepladder_running") == 0)
            assert engine.steps_of("held") == 2

    run(test)


# --- Without the library ------------------------------------------------------------------------------------


@pytest.fixture
def no_mcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is not installed, wherever it is looked for."""
    hidden = lambda name, *rest: None if name == "mcp" else find_spec(name, *rest)  # noqa: E731
    monkeypatch.setattr("stepladder.serve.agent.agent_server.find_spec", hidden)
    monkeypatch.setattr("stepladder.cli.serve.find_spec", hidden)


def test_the_command_says_what_to_install(no_mcp: None) -> None:
    from stepladder.cli.serve import serve_agent_command

    with pytest.raises(StepladderError, match=r"^--mcp: its library is not installed. Type: .*pip install .*\[mcp\]'$"):
        serve_agent_command(model="nano", mcp=True)


def test_the_command_says_at_the_start_that_mcp_is_off(
    no_mcp: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stepladder.cli.serve import serve_agent_command

    monkeypatch.setattr("stepladder.serve.agent.agent_server.serve_agent", lambda *_, **__: None)
    with running(Oracle()) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        serve_agent_command(model="stepladder", base_url=f"{server.url}/v1", agent="direct")
    told = " ".join(capsys.readouterr().err.split())
    assert "MCP is off: its library is not installed. Type:" in told
    assert "[mcp]'" in told


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_server_without_the_library_says_how_to_get_it(no_mcp: None, method: str) -> None:
    with running(Oracle()) as server:
        assert server.client.get("/info").json()["mcp"] is False
        reply = server.client.request(method, "/mcp")
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "mcp_not_installed")
        assert "pip install 'stepladder[mcp]'" in reply.json()["error"]["message"]
        assert "stepladder doctor" in reply.json()["error"]["message"]
        assert server.post().status_code == 200
