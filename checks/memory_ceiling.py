"""Does the agent server stay within its memory? Asks thousands of distinct questions under a limit of the process.

    python checks/memory_ceiling.py [--questions 5000] [--searches 2000] [--room 700]

In: nothing. Out: the memory of the server while it works, and the number of answers by status; exit status 1 if an
answer failed or the memory still grew in the second half.

chat     `serve-agent` with nano. When it is warm, the address space of its process is limited to what it has plus
         --room MB. Then come the questions, 16 at a time.
search   MCP's search tool, over passages of 260 kB, with another query each time.
"""

import argparse
import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

CLIENTS, WARM_UP = 16, 32
PASSAGES, PASSAGE_BYTES = 200, 260_000
#: The second half may take this much more than the first half took at most.
GROWTH = 1.05


def memory_of(pid: int, name: str) -> int:
    """A size in /proc/PID/status, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


@contextmanager
def serving(*options: str) -> Iterator[tuple[str, int]]:
    """A running `serve-agent`: its address and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "stepladder", "serve-agent", "--port", str(port), *options]
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as server:
        address = f"http://127.0.0.1:{port}"
        try:
            deadline = time.monotonic() + 120
            while True:
                try:
                    httpx2.get(f"{address}/health", timeout=5)
                    break
                except httpx2.TransportError:
                    if server.poll() is not None or time.monotonic() > deadline:
                        raise
                    time.sleep(0.2)
            yield address, server.pid
        finally:
            server.terminate()


async def load(address: str, path: str, bodies: Sequence[Any], pid: int) -> tuple[Counter[str], list[int]]:
    """Send all bodies, some at a time; the answers by status, and the memory after every one."""
    answers: Counter[str] = Counter()
    sizes: list[int] = []
    waiting = iter(bodies)
    headers = {"Accept": "application/json, text/event-stream"}

    async def client(session: httpx2.AsyncClient) -> None:
        for body in waiting:
            try:
                reply = await session.post(f"{address}{path}", json=body, headers=headers)
                failed = reply.status_code == 200 and path == "/mcp" and '"isError":true' in reply.text
                answers["failed tool call" if failed else str(reply.status_code)] += 1
            except httpx2.TransportError as error:
                answers[type(error).__name__] += 1
            sizes.append(memory_of(pid, "VmRSS"))

    async with httpx2.AsyncClient(timeout=600) as session:
        await asyncio.gather(*(client(session) for _ in range(CLIENTS)))
    return answers, sizes


def check(name: str, answers: Counter[str], sizes: list[int]) -> bool:
    """Print what happened; whether all is well."""
    tenth = max(len(sizes) // 10, 1)
    shown = " ".join(f"{max(sizes[start : start + tenth]) / 1e6:,.0f}" for start in range(0, len(sizes), tenth))
    flat = max(sizes[len(sizes) // 2 :]) <= GROWTH * max(sizes[: len(sizes) // 2])
    print(f"{name}: {dict(answers)}; MB by tenths of the load: {shown}; {'flat' if flat else 'GREW'}", flush=True)
    return flat and set(answers) == {"200"}


def chat(questions: int, room: int) -> bool:
    """Distinct questions under a limit."""

    def body(number: int) -> dict[str, Any]:
        text = f"Which river flows through the birthplace of the founder of company {number}?"
        return {"model": "stepladder", "messages": [{"role": "user", "content": text}]}

    small = ("--max-steps", "4", "--max-tokens", "48")
    with serving("--model", "nano", "--name", "stepladder", *small) as (address, pid):
        path = "/v1/chat/completions"
        asyncio.run(load(address, path, [body(-number) for number in range(1, WARM_UP)], pid))
        size = memory_of(pid, "VmSize")
        resource.prlimit(pid, resource.RLIMIT_AS, (size + room * 2**20, size + room * 2**20))
        print(f"chat: {size / 1e6:,.0f} MB of addresses, {room} MB more are allowed", flush=True)
        return check("chat", *asyncio.run(load(address, path, [body(number) for number in range(questions)], pid)))


def search(searches: int) -> bool:
    """Searches for long passages."""
    call = {"jsonrpc": "2.0", "method": "tools/call"}
    with tempfile.TemporaryDirectory() as folder:
        corpus, index = Path(folder) / "corpus.jsonl", Path(folder) / "index"
        with corpus.open("w", encoding="utf-8") as file:
            for number in range(PASSAGES):
                text = f"word{number} ".ljust(40) * (PASSAGE_BYTES // 40)
                file.write(json.dumps({"id": str(number), "title": f"title{number}", "text": text}) + "\n")
        subprocess.run([sys.executable, "-m", "stepladder", "index", "build", corpus, "--out", index], check=True)
        with serving("--model", "tiny", "--index", str(index)) as (address, pid):
            bodies = [
                {**call, "id": number, "params": {"name": "search", "arguments": {"query": query(number), "topk": 3}}}
                for number in range(searches)
            ]
            return check("search", *asyncio.run(load(address, "/mcp", bodies, pid)))


def query(number: int) -> str:
    """A query of its own for every search."""
    return f"word{number % PASSAGES} word{number // PASSAGES} title{number % 7} {number}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=5000)
    parser.add_argument("--searches", type=int, default=2000)
    parser.add_argument("--room", type=int, default=700, help="MB that the server may take beyond its start")
    options = parser.parse_args()
    results = [chat(options.questions, options.room), search(options.searches)]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
