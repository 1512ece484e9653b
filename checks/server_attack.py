"""Do the servers hold while clients misbehave? Attacks real `stepladder serve` and `serve-agent` processes.

    python checks/server_attack.py [--megabytes 400] [--connections 300] [--servers serve,serve-agent]

In: sizes. Out: one line per attack: what the attackers got, after how many seconds the last of them was refused, the
slowest of the health checks that ran throughout, and the server's peak memory. Exit status 1 if a health check failed
or took over a second, if an attack was not refused in time, or if memory grew by more than 200 MB. The servers have
their default limits, and the agent server plays the built-in nano model.
"""

import argparse
import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich import box
from rich.console import Console
from rich.table import Table

from stepladder.serve.server_configs import HTTPConfig

SERVERS = {
    "serve": ["serve", "atlas"],
    "serve-agent": ["serve-agent", "--model", "nano", "--agent", "rag", "--data", "atlas"],
}
LIMITS = HTTPConfig()
#: Seconds that a refusal may take on top of its limit, and that a health check may take.
SLACK, HEALTH_SECONDS = 5.0, 1.0
GROWTH_MB = 200
CHUNK = 2**20


def probe(host: str, port: int, stopped: Any, results: Any) -> None:
    """Ask for /health on new connections, ten times per second, until it is stopped: seconds, and what went wrong."""
    seconds, failures = [], []
    while not (seconds and stopped.wait(0.1)):
        started = time.perf_counter()
        try:
            connection = HTTPConnection(host, port, timeout=10)
            connection.request("GET", "/health")
            reply = connection.getresponse()
            if reply.status != 200:
                failures.append(f"{reply.status} {reply.read()[:100]!r}")
            connection.close()
        except OSError as error:
            failures.append(repr(error))
        seconds.append(time.perf_counter() - started)
    results.send((seconds, failures))


@dataclass
class Health:
    """The health checks of an attack."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@contextmanager
def probing(host: str, port: int) -> Iterator[Health]:
    """Ask for /health during an attack, from a process that has nothing else to do."""
    health, stopped = Health(), get_context("fork").Event()
    ours, theirs = get_context("fork").Pipe()
    process = get_context("fork").Process(target=probe, args=(host, port, stopped, theirs))
    process.start()
    try:
        yield health
    finally:
        stopped.set()
        health.seconds, health.failures = ours.recv()
        process.join()


# --- Attackers: each returns what it got ----------------------------------------------------------------


async def said(reader: asyncio.StreamReader) -> str:
    """The status of the response, or how the connection ended."""
    try:
        line = await reader.readline()
    except ConnectionError:
        return "reset"
    return line.split()[1].decode() if line else "closed"


Attacker = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[str]]


def floods(start: bytes, chunk: bytes, megabytes: int) -> Attacker:
    """Send so many megabytes as fast as possible; come back when it is refused."""

    async def attack(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        host, port = writer.get_extra_info("peername")
        sent, got = 0, ""
        while sent < megabytes:
            answer = asyncio.ensure_future(said(reader))
            with suppress(ConnectionError):
                writer.write(start)
                while sent < megabytes and not answer.done():
                    writer.write(chunk)
                    await writer.drain()
                    sent += len(chunk) // CHUNK
            got = await answer
            writer.close()
            if sent < megabytes:
                reader, writer = await asyncio.open_connection(host, port)
        return got

    return attack


def drips(start: bytes, piece: bytes = b"") -> Attacker:
    """Send a piece per second until there is a response; nothing if it is empty."""

    async def attack(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        writer.write(start)
        answer = asyncio.ensure_future(said(reader))
        with suppress(ConnectionError):
            while not (await asyncio.wait([answer], timeout=1))[0]:
                writer.write(piece)
        return await answer

    return attack


def post(path: str) -> bytes:
    """The head of a request with a long body."""
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n".encode()


def attacks(megabytes: int, connections: int) -> Iterator[tuple[str, int, float, Attacker]]:
    """Name, connections, the seconds after which they must have been refused, and what each does."""
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    patience = LIMITS.header_seconds
    yield f"{megabytes} MB in one header", 1, patience, floods(head + b"x: ", b"y" * CHUNK, megabytes)
    yield (
        f"{megabytes} MB in many headers",
        1,
        patience,
        floods(head, b"name: value\r\n" * (CHUNK // 13 + 1), megabytes),
    )
    each = max(megabytes // 20, 1)
    yield f"20 x {each} MB of headers", 20, patience, floods(head + b"x: ", b"y" * CHUNK, each)
    yield "silent", connections, patience, drips(b"")
    yield "slow headers", connections, patience, drips(head, b"x")
    for path in ("/mcp", "/no/such/route"):
        yield f"slow bodies on {path}", connections, LIMITS.body_seconds, drips(post(path), b"x")
    yield "more than the limit, silent", LIMITS.max_connections + 500, patience, drips(b"")


async def attack(host: str, port: int, connections: int, attacker: Attacker) -> tuple[Counter[str], float]:
    """What the attackers got, and the seconds from the last connection on."""
    opened = []
    for _ in range(connections):
        opened.append(await asyncio.open_connection(host, port))
    started = time.perf_counter()
    found = await asyncio.gather(*(attacker(*each) for each in opened))
    seconds = time.perf_counter() - started
    for _, writer in opened:
        writer.close()
    return Counter(found), seconds


# --- Servers --------------------------------------------------------------------------------------------


@contextmanager
def started(
    command: list[str], env: dict[str, str] | None = None, folder: Path | None = None
) -> Iterator[tuple["subprocess.Popen[str]", str, int]]:
    """A server in a process of its own, and its address."""
    whole = [sys.executable, "-m", "stepladder", *command, "--port", "0"]
    with subprocess.Popen(whole, stderr=subprocess.PIPE, text=True, env=env, cwd=folder) as process:
        try:
            assert process.stderr is not None
            lines = []
            for line in process.stderr:
                lines.append(line)
                if "http://" in line:
                    break
            else:
                raise SystemExit(f"{' '.join(whole)} failed:\n{''.join(lines)}")
            threading.Thread(target=process.stderr.read, daemon=True).start()
            url = urlsplit(line[line.index("http://") :].split()[0])
            assert url.hostname is not None
            assert url.port is not None
            yield process, url.hostname, url.port
        finally:
            process.terminate()


def memory(process: "subprocess.Popen[str]") -> int:
    """Peak resident memory in MB."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def main() -> int:
    """Attack all servers and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--connections", type=int, default=300)
    parser.add_argument("--servers", default=",".join(SERVERS))
    parser.add_argument("--only", default="", help="attacks whose names contain this")
    options = parser.parse_args()
    columns = ("server", "attack", "clients got", "refused within", "health checks", "slowest", "peak memory")
    table, problems = Table(*columns, box=box.SIMPLE), []
    for name in options.servers.split(","):
        with started(SERVERS[name]) as (process, host, port):
            before = memory(process)
            for what, connections, seconds, attacker in attacks(options.megabytes, options.connections):
                if options.only not in what:
                    continue
                with probing(host, port) as probes:
                    found, took = asyncio.run(attack(host, port, connections, attacker))
                slowest, peak = max(probes.seconds, default=0.0), memory(process)
                got = ", ".join(f"{count} x {answer}" for answer, count in found.most_common(3))
                health = f"{len(probes.seconds)}" + (f", {len(probes.failures)} failed" if probes.failures else "")
                table.add_row(name, what, got, f"{took:.1f} s", health, f"{1000 * slowest:.0f} ms", f"{peak} MB")
                print(f"{name}, {what}: {got}; {took:.1f} s; slowest health check {1000 * slowest:.0f} ms", flush=True)
                problems += [f"{name}, {what}: /health: {failure}" for failure in probes.failures[:3]]
                if slowest > HEALTH_SECONDS:
                    problems.append(f"{name}, {what}: /health took {slowest:.2f} s")
                if took > seconds + SLACK:
                    problems.append(f"{name}, {what}: refused after {took:.1f} s, expected {seconds:g} s")
                if peak > before + GROWTH_MB:
                    problems.append(f"{name}, {what}: memory grew from {before} MB to {peak} MB")
    Console(width=160).print(table)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
