"""The playground over HTTP: what a browser sends, and the events that it reads."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stepladder.driver import Driver
from stepladder.engines.base import Engine
from stepladder.retrieval.base import Retriever
from stepladder.serve.agent.agent_server import make_agent_app
from stepladder.serve.agent.served_agent import ServedAgent
from stepladder.serve.server_configs import AgentServerConfig
from tests.support.agent_servers import AGENT, LIMITS, gold_play
from tests.support.http_servers import RunningServer, serving
from tests.support.samples import QUESTION, WordRetriever

#: An event: its name and its data.
Event = tuple[str, dict[str, Any]]


@contextmanager
def playing_agent(
    engine: Engine, retriever: Retriever | None = None, *, edits: bool = True, scorer: Any = None, **settings: Any
) -> Iterator[RunningServer]:
    """`serve-agent` with the gold engine of the tests, whose page is the playground."""
    config = AgentServerConfig.read({"drain_seconds": 2, **settings})
    driver = Driver(engine, retriever or WordRetriever(), scorer, in_flight=config.max_running)
    agent = ServedAgent(driver, gold_play, LIMITS.sampling, info={"agent": AGENT.name})
    if edits:
        agent = ServedAgent(driver, gold_play, LIMITS.sampling, info=agent.info, agent=AGENT, limits=LIMITS)
    with serving(make_agent_app(agent, config), config.drain_seconds, RunningServer) as server:
        yield server


def events_of(server: RunningServer, path: str, body: dict[str, Any]) -> list[Event]:
    """All events of an answer, without those of loading."""
    response = server.client.post(path, content=json.dumps(body).encode(), timeout=120)
    assert response.status_code == 200, response.text
    found = []
    for block in response.text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields and fields["event"] != "loading":
            found.append((fields["event"], json.loads(fields["data"])))
    return found


def asked(server: RunningServer, question: str = QUESTION.text, policy: Any = None, **more: Any) -> list[Event]:
    """The events of a question. `policy`: a name, or what the form sends."""
    policy = {"policy": policy} if isinstance(policy, str) else policy or {"policy": ""}
    return events_of(server, "/playground/ask", {"policy": policy, "question": question, **more})


def only(events: list[Event], name: str) -> list[dict[str, Any]]:
    """The data of the events of one kind."""
    return [data for each, data in events if each == name]
