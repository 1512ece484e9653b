"""Agent servers on loopback, with engines that know the gold steps."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx2
import openai

from stepladder import Question, Trajectory
from stepladder.agents import make_agent
from stepladder.core.errors import BackendDown, BackendError
from stepladder.core.requests import Algorithm, Generate, Generation, Sampling
from stepladder.driver import Driver
from stepladder.engines.base import Engine
from stepladder.engines.scripted import ScriptedEngine
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.oracle.engine import gold_action
from stepladder.retrieval.base import Retriever
from stepladder.serve.agent.agent_server import make_agent_app
from stepladder.serve.agent.served_agent import ServedAgent
from stepladder.serve.server_configs import AgentServerConfig
from tests.support.http_servers import RunningServer, serving
from tests.support.samples import QUESTION, WordRetriever

AGENT = make_agent("prorag")
LIMITS = EpisodeConfig(sampling=Sampling(max_tokens=500))


class Oracle(ScriptedEngine):
    """Plays the gold decomposition; remembers what it was asked, and holds the questions it is told to hold."""

    def __init__(self) -> None:
        super().__init__(self._gold)
        self.asked: list[Generate] = []
        #: Words in a question that keep it waiting after its first step, until `go`.
        self.held = ""
        self.go, self.begun = threading.Event(), threading.Event()

    def _gold(self, request: Generate) -> str:
        self.asked.append(request)
        trajectory = request.trajectory
        assert trajectory is not None
        if self.held and self.held in trajectory.question.id and trajectory.steps:
            self.begun.set()
            assert self.go.wait(20)
        return AGENT.write(gold_action(trajectory, AGENT.kinds), trajectory)

    def steps_of(self, word: str) -> int:
        return sum(1 for request in self.asked if request.trajectory and word in request.trajectory.question.id)


class WideOracle(Oracle):
    """Answers from several threads, one request a call, so that a question that is held holds up no other."""

    def __init__(self) -> None:
        super().__init__()
        self.max_batch, self.concurrency = 1, 8


def gold_play(question: Question, sampling: Sampling, seed: int) -> Algorithm[Trajectory]:
    """Whatever is asked, it is the question that the oracle knows; what was asked is its id."""
    return episode(AGENT, replace(QUESTION, id=question.text), replace(LIMITS, sampling=sampling), seed)


class Running(RunningServer):
    """An agent server."""

    def openai(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, **options})

    def post(self, question: Any = QUESTION.text, timeout: float = 20, **others: Any) -> httpx2.Response:
        body = {"messages": [{"role": "user", "content": question}], **others}
        return self.client.post("/v1/chat/completions", content=json.dumps(body).encode(), timeout=timeout)


@contextmanager
def running(
    engine: Engine, retriever: Retriever | None = None, play: Any = gold_play, live: bool = True, **settings: Any
) -> Iterator[Running]:
    chosen = AgentServerConfig.read({"drain_seconds": 5, **settings})
    driver = Driver(engine, retriever or WordRetriever(), in_flight=chosen.max_running)
    agent = ServedAgent(driver, play, LIMITS.sampling, info={"agent": AGENT.name}, live=live)
    with serving(make_agent_app(agent, chosen), chosen.drain_seconds, Running) as here:
        yield here


class Fragile(Oracle):
    """Fails at some questions, and cannot work at all while it is down."""

    down = False

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        if self.down:
            raise BackendDown("the key is secret-123")
        if any("bad" in request.trajectory.question.id for request in requests if request.trajectory):
            raise RuntimeError("out of memory at /secret/place")
        return super().generate(requests)


COMMAND = "import typer; from stepladder.cli.serve import serve_agent_command; typer.run(serve_agent_command)"
