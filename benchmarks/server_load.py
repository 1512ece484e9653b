"""How many searches does the server answer under load? `stepladder serve` against a plain server, on the same index.

    python benchmarks/server_load.py [--seconds 60] [--clients 500] [--passages 100000] [--kind bm25] [--servers 1]

The plain server is of the reference design: FastAPI, a pydantic body, a `def` endpoint that searches once a request,
uvicorn's defaults (its log of every request is off, in its favour). Every server runs in a process of its own, and so
does the load: clients that each keep one connection and ask one query after the other, as Search-R1's roll-outs do,
without a pause. The corpus is an Atlas world, the queries are sub-questions about its facts. Two workloads:

    distinct   no query is asked twice: merging helps, keeping results does not
    group      every query is asked by 8 clients, as the 8 roll-outs of a GRPO group do when they agree

`--servers N` adds a line for N servers of ours on N ports, the clients spread over them as `RemoteRetriever` would.

Answers are checked: the status of all, and of every 101st that it is what the retriever finds in this process. A 429
with Retry-After is orderly, and its client comes back when it is told to; anything else is a failure, and one of ours
makes the exit status 1. "CPU" is the processor time of the server an answer, which depends less than answers a second
on what else the machine does. The load itself takes 20 to 190 microseconds of a core an answer (printed below the
table), more where answers come one by one; without a core to itself it slows down the servers, the faster the more.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
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

from stepladder.data.atlas.articles import write_library
from stepladder.data.atlas.catalogue import RELATIONS, TYPES
from stepladder.data.atlas.world import World
from stepladder.retrieval.index.build import build_index, open_index
from stepladder.retrieval.index.manifest import index_info
from stepladder.retrieval.remote.limits import ServerConfig
from stepladder.serve.http.run_server import listen
from stepladder.serve.search.search_server import serve

SECONDS, CLIENTS, PASSAGES, K = 60.0, 500, 100_000, 3
#: Clients that ask the same queries, by workload.
WORKLOADS = {"distinct": 1, "group": 8}
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


def plain_server(folder: Path, started: Callable[[int], None]) -> None:
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
    started(listener.getsockname()[1])
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


def our_server(folder: Path, started: Callable[[int], None]) -> None:
    """Stepladder's, with its defaults."""
    info = asdict(index_info(folder))
    retriever = open_index(folder)
    serve(retriever, ServerConfig(), info, port=0, announce=lambda url: started(int(url.rpartition(":")[2])))


Server = Callable[[Path, Callable[[int], None]], None]


def run_server(server: Server, folder: Path, teller: Connection) -> None:
    """Run a server until SIGTERM; tells its port at the start, and at the end the seconds of a core it took."""
    begun = 0.0

    def started(port: int) -> None:
        nonlocal begun
        begun = time.process_time()
        teller.send(port)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        server(folder, started)
    finally:
        teller.send(time.process_time() - begun)


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


class Client(asyncio.Protocol):
    """Asks one query after the other on one connection, until the time is up."""

    def __init__(self, queries: Iterator[str], deadline: float, load: Load) -> None:
        self._queries, self._deadline, self._load = queries, deadline, load
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
        body = json.dumps({"queries": [self._query], "topk": K, "return_scores": True}).encode()
        self._began = time.perf_counter()
        self._transport.write(
            b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
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
    ports: Sequence[int], queries: Path, clients: int, together: int, seconds: float, result: Connection
) -> None:
    """So many clients for so many seconds, spread over the ports; every `together` of them ask the same queries."""
    lines: list[str] = json.loads(queries.read_bytes())
    groups = -(-clients // together)
    load = Load()

    async def crowd() -> None:
        loop = asyncio.get_running_loop()
        deadline = time.perf_counter() + seconds
        talks = []
        for number in range(clients):
            own, port = iter(lines[number // together :: groups]), ports[number % len(ports)]
            _, client = await loop.create_connection(lambda own=own: Client(own, deadline, load), "127.0.0.1", port)  # type: ignore[misc]
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


def measure(
    server: Server, servers: int, folder: Path, queries: Path, workload: str, options: argparse.Namespace
) -> Load:
    """So many fresh servers under one workload."""
    serving = []
    for _ in range(servers):
        here, there = _processes.Pipe()
        process = _processes.Process(target=run_server, args=(server, folder, there))
        process.start()
        serving.append((process, here))
    ports = [teller.recv() for _, teller in serving]
    here, there = _processes.Pipe()
    arguments = (ports, queries, options.clients, WORKLOADS[workload], options.seconds, there)
    crowd = _processes.Process(target=make_load, args=arguments)
    crowd.start()
    load: Load = here.recv()
    crowd.join()
    for process, teller in serving:
        process.terminate()
        load.server_cpu += teller.recv()
        process.join()
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


def run(options: argparse.Namespace) -> int:
    """Measure and print; 1 when our server failed a request."""
    console = Console()
    columns = ("workload", "server", "per s", "p50 ms", "p99 ms", "429", "failed", "CPU µs", "times")
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    contenders = [("plain", plain_server, 1), ("ours", our_server, 1)]
    if options.servers > 1:
        contenders.append((f"{options.servers} ours", our_server, options.servers))
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder, file = Path(name) / "index", Path(name) / "queries.json"
        world, queries = atlas(options.passages)
        build_index(write_library(world).passages, folder, kind=options.kind)
        file.write_text(json.dumps(queries), encoding="utf-8")
        console.print(
            f"{options.clients} clients for {options.seconds:g} s, {options.passages:,} passages, {options.kind}"
        )
        console.print(f"{os.cpu_count()} cores; the retriever alone: {alone(folder, queries):,.0f} queries/s")
        load_cpu = []
        for workload in WORKLOADS:
            plain = 0.0
            for label, server, servers in contenders:
                load = measure(server, servers, folder, file, workload, options)
                problems = load.failures + wrong_answers(load, folder)
                answers, rate = len(load.times), len(load.times) / load.seconds
                plain = plain or rate
                times = np.percentile(load.times, [50, 99]) * 1000
                load_cpu.append(load.load_cpu / answers * 1e6)
                table.add_row(
                    workload,
                    label,
                    f"{rate:,.0f}",
                    *(f"{each:,.0f}" for each in times),
                    str(load.refused),
                    str(len(problems)),
                    f"{load.server_cpu / answers * 1e6:,.0f}",
                    f"{rate / plain:.1f}",
                )
                if server is our_server:
                    failed += problems
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
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
