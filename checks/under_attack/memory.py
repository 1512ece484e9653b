"""What grows: the caches of the agent server, under a limit on the addresses of its process."""

import json
import resource
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path

from memory_ceiling import memory_of

from under_attack.clients import MCP, agent, answers, ask, call, chat
from under_attack.fake import answering
from under_attack.version import NotRun, Version, attack

#: Questions before the limit, half of the questions under it, and the MB that they may take.
WARM_UP, QUESTIONS, ROOM = 8, 64, 96
PASSAGES, PASSAGE_BYTES, SEARCHES = 40, 260_000, 120


def limit(pid: int, room: int) -> None:
    """Allow a process so many MB more than it has."""
    most = memory_of(pid, "VmSize") + room * 2**20
    resource.prlimit(pid, resource.RLIMIT_AS, (most, most))


@attack("server memory")
def server_memory(version: Version, _: Path) -> str | None:
    """Distinct, long questions to a local model, with little room."""
    words = ["serve-agent", "--model", "nano", "--name", "m", "--data", "atlas-small"]
    with version.serving(*words, "--max-steps", 3, "--max-tokens", 16) as (process, *address):
        where = (address[0], address[1])

        def question(number: int) -> int:
            known = " ".join(f"company {number} of {1000 * each + number}" for each in range(80))
            try:
                return chat(where, f"Which river flows through the birthplace of their founder: {known}?")
            except (OSError, HTTPException):
                return 0

        with ThreadPoolExecutor(8) as pool:
            if set(pool.map(question, range(-WARM_UP, 0))) != {200}:
                raise NotRun("the server did not answer")
            limit(process.pid, ROOM)
            codes = Counter(pool.map(question, range(QUESTIONS)))
            half = memory_of(process.pid, "VmRSS") if process.poll() is None else 0
            codes += Counter(pool.map(question, range(QUESTIONS, 2 * QUESTIONS)))
        health = ask(where, "GET", "/health")
        grown = 0 if process.poll() is not None else (memory_of(process.pid, "VmRSS") - half) // 2**20
    if failed := 2 * QUESTIONS - codes[200]:
        return f"{failed} of {2 * QUESTIONS} questions failed, /health: {health[0]} {health[2].strip()}"
    return f"{QUESTIONS} more questions took {grown} MB and kept them" if grown > ROOM else None


@attack("long passages")
def long_passages(version: Version, folder: Path) -> str | None:
    """Distinct searches that find passages of 260 kB."""
    corpus, index = folder / "corpus.jsonl", folder / "index"
    with corpus.open("w", encoding="utf-8") as file:
        for number in range(PASSAGES):
            text = f"word{number} ".ljust(40) * (PASSAGE_BYTES // 40)
            file.write(json.dumps({"id": str(number), "title": f"title{number}", "text": text}) + "\n")
    version.cli("index", "build", corpus, "--out", index, folder=folder).done()
    with answering(answers) as model:
        words = agent(version, model)
        words[words.index("--index") + 1], words[words.index("--agent") + 1] = index, "rag"
        with version.serving(*words) as (process, *address):
            where = (address[0], address[1])

            def search(number: int) -> tuple[int, str]:
                names = " ".join(f"word{(number + each) % PASSAGES}" for each in range(20))
                body = call("search", **{"query": f"{names} {number}", version.say("topk"): 20})
                try:
                    status, _, said = ask(where, "POST", "/mcp", body, headers=MCP)
                except (OSError, HTTPException) as error:
                    return 0, repr(error)
                failed = status == 200 and ("word" not in said or '"isError":true' in said)
                return (0 if failed else status), said[:200]

            for number in range(1, 4):
                status, said = search(-number)
                if status != 200:
                    raise NotRun(f"the search tool does not work: {status} {said}")
            limit(process.pid, 2 * ROOM)
            before = memory_of(process.pid, "VmRSS")
            codes = Counter(search(number)[0] for number in range(SEARCHES))
            died = process.poll() is not None
            grown = 0 if died else (memory_of(process.pid, "VmRSS") - before) // 10**6
    failed, how = SEARCHES - codes[200], "the server died" if died else f"{grown} MB more"
    return f"{failed} of {SEARCHES} searches failed, {how}" if failed else None
