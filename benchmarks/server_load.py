"""How many requests do the servers answer under load? Ours against a plain server, and against another version of ours.

    python benchmarks/server_load.py [--clients 500] [--seconds 60] [--passages 100000] [--kind bm25] [--rounds 1]
    python benchmarks/server_load.py --before ../other-checkout --rounds 5     another version, taking turns with ours
    python benchmarks/server_load.py --agent                                   the agent server, an oracle answers

The plain server is of the reference design: FastAPI, a pydantic body, a `def` endpoint that searches once a request,
uvicorn's defaults (its log of every request is off, in its favour). Ours is `stepladder serve`; the agent server plays
whole episodes over the same index with the oracle engine. Every server runs in a process of its own, and so does the
load: clients that each keep one connection and ask one query after the other, as Search-R1's roll-outs do, without a
pause. The corpus is an Atlas world, the queries are sub-questions about its facts. Workloads:

    distinct   no query is asked twice: merging helps, keeping results does not
    group      every query is asked by 8 clients, as the 8 roll-outs of a GRPO group do when they agree
    chat       questions of Atlas to the agent server, several searches each

`--servers N` adds a line for N servers of ours on N ports, the clients spread over them as `RemoteRetriever` would.

Answers are checked: the status of all, and of every 101st that it is what the retriever finds in this process, or the
gold answer. A 429 with Retry-After is orderly, and its client comes back when it is told to; anything else is a
failure, and one of ours makes the exit status 1. "CPU" is the processor time of the server an answer, which depends
less than answers a second on what else the machine does. The load itself takes 20 to 250 microseconds of a core an
answer (printed below the table); without a core to itself it slows down the servers, the faster the more.
"""

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from rich import box
from rich.console import Console
from rich.table import Table

from stepladder import Question, Trajectory
from stepladder.agents import make_agent
from stepladder.core.requests import Algorithm, Sampling
from stepladder.data import load_dataset
from stepladder.data.atlas.articles import write_library
from stepladder.data.atlas.catalogue import RELATIONS, TYPES
from stepladder.data.atlas.world import World
from stepladder.driver import Driver
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.oracle.engine import OracleEngine
from stepladder.retrieval.index.build import build_index, open_index
from stepladder.serve.agent.agent_server import serve_agent
from stepladder.serve.agent.served_agent import ServedAgent
from stepladder.serve.http.run_server import listen
from stepladder.serve.server_configs import AgentServerConfig

ROOT = Path(__file__).parents[1]
SECONDS, CLIENTS, PASSAGES, K = 60.0, 500, 100_000, 3
#: Clients that ask the same queries, by workload.
WORKLOADS = {"distinct": 1, "group": 8}
CHAT = "chat"
#: Seconds that answers may take when the load has ended.
PATIENCE = 60.0
SAMPLE_EVERY = 101

_processes = get_context("spawn")


# --- The servers, each in a process of its own --------------------------------------------------------------


class QueryRequest(BaseModel):
    """The body of a request, as the plain server reads it."""

    queries: list[str]
    topk: int | None = None
    return_scores: bool = False


def plain_server(folder: Path) -> None:
    """One request, one search."""
    retriever = open_index(folder)
    turn = threading.Semaphore(retriever.concurrency)
    app = FastAPI()

    @app.post("/retrieve")
    def retrieve(request: QueryRequest) -> dict[str, Any]:
        with turn:
            results = retriever.search(request.queries, request.topk or K)
        documents = [
            [({"id": each.id, "contents": f'"{each.title}"\n{each.text}'}, each.score) for each in found]
            for found in results
        ]
        if request.return_scores:
            return {"result": [[{"document": item, "score": score} for item, score in found] for found in documents]}
        return {"result": [[item for item, _ in found] for found in documents]}

    listener = listen("127.0.0.1", 0)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


def agent_server(folder: Path) -> None:
    """Our agent server, with an oracle that knows the questions of Atlas."""
    questions = {question.text: question for question in load_dataset("atlas").split("train")}
    agent = make_agent("prorag")

    def play(question: Question, sampling: Sampling, seed: int) -> Algorithm[Trajectory]:
        return episode(agent, questions[question.text], EpisodeConfig(sampling=sampling), seed)

    config = AgentServerConfig(max_waiting=2 * CLIENTS)
    driver = Driver(OracleEngine(agent), open_index(folder), in_flight=config.max_running)
    serve_agent(ServedAgent(driver, play), config, port=0, announce=lambda url: print(url, flush=True))


@dataclass(frozen=True)
class Contender:
    """A server that is measured."""

    name: str
    #: Its command; the folder of the index is added.
    command: tuple[str, ...]
    source: Path = ROOT / "src"
    servers: int = 1
    ours: bool = True


class Running:
    """A server in a process of its own, until `stop`."""

    def __init__(self, contender: Contender, folder: Path) -> None:
        options = ("--port", "0") if contender.command[-1] == "serve" else ()
        environment = {**os.environ, "PYTHONPATH": str(contender.source)}
        self._process = subprocess.Popen(
            [sys.executable, *contender.command, str(folder), *options],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        output = []
        for line in self._process.stdout:
            output.append(line)
            if told := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.port = int(told[1])
                break
        else:
            sys.exit(f"{contender.name} did not start:\n{''.join(output)}")
        self._begun = self._cpu()

    def _cpu(self) -> float:
        """Seconds of a core that the process has taken."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> float:
        """End it; the seconds of a core that it took since it started."""
        seconds = self._cpu() - self._begun
        self._process.terminate()
        self._process.communicate(timeout=60)
        return seconds


# --- The load, in a process of its own ----------------------------------------------------------------------


@dataclass
class Load:
    """What came of the requests of all clients."""

    seconds: float = 0.0
    #: Seconds of each good answer.
    times: list[float] = field(default_factory=list)
    refused: int = 0
    failures: list[str] = field(default_factory=list)
    #: Some of the queries, with the answers they got.
    sample: list[tuple[str, bytes]] = field(default_factory=list)
    #: Seconds of a core that the load itself took, and the server.
    load_cpu: float = 0.0
    server_cpu: float = 0.0

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.times) / self.seconds


class Client(asyncio.Protocol):
    """Asks one query after the other on one connection, until the time is up."""

    def __init__(self, queries: Iterator[str], chat: bool, deadline: float, load: Load) -> None:
        self._queries, self._chat, self._deadline, self._load = queries, chat, deadline, load
        self._received = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        self._ask()

    def _ask(self) -> None:
        if time.perf_counter() >= self._deadline:
            self.done.set_result(None)
            self._transport.close()
            return
        self._query = next(self._queries)
        if self._chat:
            path, content = b"/v1/chat/completions", {"messages": [{"role": "user", "content": self._query}]}
        else:
            path, content = b"/retrieve", {"queries": [self._query], "topk": K, "return_scores": True}
        body = json.dumps(content).encode()
        self._began = time.perf_counter()
        self._transport.write(
            b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (path, len(body), body)
        )

    def data_received(self, data: bytes) -> None:
        """Wait for the whole answer, keep what is to know about it, and go on."""
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        _, _, after = head.lower().partition(b"content-length:")
        if len(body) < int(after.split(b"\r\n", 1)[0]):
            return
        self._received = b""
        load, status = self._load, head[9:12]
        if status == b"200":
            load.times.append(time.perf_counter() - self._began)
            if len(load.times) % SAMPLE_EVERY == 1:
                load.sample.append((self._query, body))
            self._ask()
        elif status == b"429" and b"retry-after:" in head.lower():
            load.refused += 1
            wait = float(head.lower().partition(b"retry-after:")[2].split(b"\r\n", 1)[0])
            asyncio.get_running_loop().call_later(wait, self._ask)
        else:
            load.failures.append(f"{head.splitlines()[0]!r} {body[:200]!r}")
            self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        """A server that hangs up before the end has failed."""
        if not self.done.done():
            self._load.failures.append(f"the connection broke: {error!r}")
            self.done.set_result(None)


def make_load(
    ports: Sequence[int], queries: Path, clients: int, workload: str, seconds: float, result: Connection
) -> None:
    """So many clients for so many seconds, spread over the ports; some of them ask the same queries."""
    lines: list[str] = json.loads(queries.read_bytes())
    together = WORKLOADS.get(workload, 1)
    groups = -(-clients // together)
    load = Load()

    def questions(group: int) -> Iterator[str]:
        while True:
            yield from lines[group::groups]

    async def crowd() -> None:
        loop = asyncio.get_running_loop()
        deadline = time.perf_counter() + seconds
        talks = []
        for number in range(clients):
            own, port = questions(number // together), ports[number % len(ports)]
            make = lambda own=own: Client(own, workload == CHAT, deadline, load)  # noqa: E731
            _, client = await loop.create_connection(make, "127.0.0.1", port)
            talks.append(client.done)
        _, late = await asyncio.wait(talks, timeout=seconds + PATIENCE)
        load.failures += [f"no answer within {PATIENCE:g} s"] * len(late)

    began, before = time.perf_counter(), time.process_time()
    with asyncio.Runner(loop_factory=uvicorn.Config("").get_loop_factory()) as runner:
        runner.run(crowd())
    load.seconds = time.perf_counter() - began
    load.load_cpu = time.process_time() - before
    result.send(load)


# --- Both together ------------------------------------------------------------------------------------------


def atlas(passages: int) -> tuple[World, list[str]]:
    """A world, and a question about each of its facts in every wording there is, in no order."""
    world = World(passages, seed=0)
    asked = {
        wording.format(S=entity.described, T=TYPES[entity.kind].noun)
        for entity in world.entities
        for relation in world.facts[entity.index]
        for wording in RELATIONS[relation].asks
    }
    queries = sorted(asked)
    random.Random(0).shuffle(queries)
    return world, queries


def measure(contender: Contender, folder: Path, queries: Path, workload: str, options: argparse.Namespace) -> Load:
    """Fresh servers under one workload."""
    servers = [Running(contender, folder) for _ in range(contender.servers)]
    here, there = _processes.Pipe()
    ports = [server.port for server in servers]
    arguments = (ports, queries, options.clients, workload, options.seconds, there)
    crowd = _processes.Process(target=make_load, args=arguments)
    crowd.start()
    load: Load = here.recv()
    crowd.join()
    load.server_cpu = sum(server.stop() for server in servers)
    return load


def wrong_answers(load: Load, folder: Path) -> list[str]:
    """Those of the sample that are not what a search in this process finds."""
    retriever = open_index(folder)
    found = retriever.search([query for query, _ in load.sample], K)
    retriever.close()
    wrong = []
    for (query, body), passages in zip(load.sample, found, strict=True):
        (items,) = json.loads(body)["result"]
        told = [(item["document"]["id"], item["document"]["contents"]) for item in items]
        scores = [item["score"] for item in items]
        same = told == [(each.id, f'"{each.title}"\n{each.text}') for each in passages]
        # Encoders add up in another order when they read several texts at once.
        if not same or not np.allclose(scores, [each.score or 0.0 for each in passages], rtol=1e-4):
            wrong.append(f"the answer to {query!r} is not what the retriever finds")
    return wrong


def incomplete_answers(load: Load, _: Path) -> list[str]:
    """Those of the sample that are no finished episode. The oracle may fail to find something."""
    choices = [(query, json.loads(body)["choices"][0]) for query, body in load.sample]
    return [f"{query!r} got {choice}"[:300] for query, choice in choices if choice["finish_reason"] != "stop"]


def alone(folder: Path, queries: Sequence[str]) -> float:
    """Queries a second that the retriever answers in this process, in full batches."""
    retriever = open_index(folder)
    batches = [queries[start : start + retriever.max_batch] for start in range(0, 2048, retriever.max_batch)]
    retriever.search(batches[0], K)
    began = time.perf_counter()
    for batch in batches:
        retriever.search(batch, K)
    seconds = time.perf_counter() - began
    retriever.close()
    return sum(map(len, batches)) / seconds


def contenders(options: argparse.Namespace) -> list[Contender]:
    """The servers to measure."""
    command = (__file__, "--run-agent") if options.agent else ("-m", "stepladder", "serve")
    chosen = [] if options.agent else [Contender("plain", (__file__, "--run-plain"), ours=False)]
    if options.before is not None:
        chosen.append(Contender("before", command, options.before.absolute() / "src", ours=False))
    chosen.append(Contender("ours", command))
    if options.servers > 1:
        chosen.append(Contender(f"{options.servers} ours", command, servers=options.servers))
    return chosen


def run(options: argparse.Namespace) -> int:
    """Measure and print; 1 when our server failed a request."""
    console = Console(width=140)
    columns = ("workload", "server", "per s", "p50 ms", "p99 ms", "429", "failed", "CPU µs", "times", "each round")
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    failed: list[str] = []
    load_cpu = []
    with tempfile.TemporaryDirectory() as name:
        folder, file = Path(name) / "index", Path(name) / "queries.json"
        if options.agent:
            data = load_dataset("atlas")
            passages, queries = list(data.passages or ()), [question.text for question in data.split("train")]
        else:
            world, queries = atlas(options.passages)
            passages = write_library(world).passages
        build_index(passages, folder, kind=options.kind)
        file.write_text(json.dumps(queries), encoding="utf-8")
        console.print(
            f"{options.clients} clients for {options.seconds:g} s, {len(passages):,} passages, {options.kind}"
        )
        console.print(f"{os.cpu_count()} cores; the retriever alone: {alone(folder, queries):,.0f} queries/s")
        for workload in [CHAT] if options.agent else WORKLOADS:
            loads: dict[Contender, list[Load]] = {each: [] for each in contenders(options)}
            for number in range(options.rounds):
                turns = list(loads.items())
                for contender, measured in turns[:: -1 if number % 2 else 1]:  # neither always comes first
                    measured.append(measure(contender, folder, file, workload, options))
            first = statistics.median(each.rate for each in next(iter(loads.values())))
            for contender, measured in loads.items():
                check = incomplete_answers if options.agent else wrong_answers
                problems = [problem for load in measured for problem in (*load.failures, *check(load, folder))]
                times = [seconds for load in measured for seconds in load.times]
                rate = statistics.median(load.rate for load in measured)
                load_cpu += [load.load_cpu / len(load.times) * 1e6 for load in measured]
                table.add_row(
                    workload,
                    contender.name,
                    f"{rate:,.0f}",
                    *(f"{each:,.0f}" for each in np.percentile(times, [50, 99]) * 1000),
                    str(sum(load.refused for load in measured)),
                    str(len(problems)),
                    f"{sum(load.server_cpu for load in measured) / len(times) * 1e6:,.0f}",
                    f"{rate / first:.2f}",
                    " ".join(f"{load.rate:,.0f}" for load in measured),
                )
                failed += problems if contender.ours else []
    console.print(table)
    console.print(f"the load took {min(load_cpu):.0f} to {max(load_cpu):.0f} µs of a core an answer")
    for problem in failed[:10]:
        console.print(problem, markup=False)
    return 1 if failed else 0


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--passages", type=int, default=PASSAGES)
    parser.add_argument("--kind", default="bm25")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1, help="how often each server is measured, taking turns")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another version of Stepladder")
    parser.add_argument("--agent", action="store_true", help="the agent server in place of the search server")
    parser.add_argument("--run-plain", type=Path, metavar="INDEX", help=argparse.SUPPRESS)
    parser.add_argument("--run-agent", type=Path, metavar="INDEX", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run_plain or options.run_agent:
        plain_server(options.run_plain) if options.run_plain else agent_server(options.run_agent)
        return 0
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
