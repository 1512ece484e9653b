"""Trees over an OpenAI-compatible server: groups of siblings per second and calls per group, against a plain search.

    python benchmarks/tree_concurrency.py                       # the times; about 40 minutes
    python benchmarks/tree_concurrency.py --counts              # calls per group for 16, 64 and 200 simulations
    python benchmarks/tree_concurrency.py --record FILE         # resumes where it was interrupted

All searches grow trees of the same questions over the same scripted server, which answers every call after 20 ms or
200 ms, with the same simulations, children per state (5), depth (10) and calls in flight:

- script: the design of ProRAG's script, written anew with the `openai` client. One coroutine per tree, as many trees at
  once as calls in flight. A simulation selects a leaf by PUCT (c = 2.5), expands it with one call (n = 5), rolls one of
  the new children out greedily, and backpropagates (gamma = 0.99). Samples with the same text are one child.
- plain: the same search as a careful engineer would write it: the quick HTTP client of Stepladder, all trees open with
  a limit on calls instead of trees, and no greedy call made twice.
- server: `stepladder explore --preset server`.

A group counts if two of its siblings have values that differ by 0.05 or more: preference pairs and reward models learn
from those. The value of a state is the mean of the simulations through it; that of a terminal state is its reward,
visited or not, for all searches. `distinct` counts states that differ by the wording of thoughts alone as one: siblings
of the plain search may be rewordings of one action, which Stepladder merges.

The server is a process of its own. Every step of its policy has four variants, some of them wrong, and thoughts vary
freely. It depends on the text of the call alone. Three tasks, because the answer depends on the task:

- multi-hop: two or three hops (4 or 6 steps and the answer); an answer lacks one word for every wrong step.
- all-or-nothing: the same questions; one wrong step gives a wrong answer. Most states below it have equal values.
- one-hop: 2 steps and the answer. The trees are small: with 32 simulations both searches expand almost every state.
"""

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import random
import re
import statistics
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import openai

from stepladder.agents import make_agent
from stepladder.core.answer_metrics import score_answer
from stepladder.core.trace import Passage, Question, Tree
from stepladder.driver import Driver
from stepladder.engines.openai.http_client import HTTPClient
from stepladder.engines.openai.openai_engine import OpenAIEngine
from stepladder.explore.episode import EpisodeConfig
from stepladder.explore.mcts import mcts_search
from stepladder.explore.tree_store import explore, read_trees
from stepladder.pipeline.search_config import ExploreConfig
from stepladder.retrieval.base import Retriever

WIDTH, DEPTH, C, GAMMA = 5, 10, 2.5, 0.99
DIFFERENT = 0.05
GOLD = "red green blue grey"
STOPS = ("</subquery>", "</subanswer>", "</answer>")
TASKS = ("multi-hop", "all-or-nothing", "one-hop")
SEARCHES = ("script", "plain", "server")

# --- the scripted policy ------------------------------------------------------------------------------------------

_QUESTION = re.compile(r"([a-z-]+): what is behind door (\d+)\?")
_STEP = re.compile(r"<sub(?:query|answer)>(.*?)</sub(?:query|answer)>")
_THOUGHTS = ("So.", "First this.", "Now that.", "Let me see.")


def questions(task: str, count: int) -> list[Question]:
    return [Question(f"door-{number}", f"{task}: what is behind door {number}?", (GOLD,)) for number in range(count)]


def write(prompt: str, temperature: float, seed: int, sample: int) -> str:
    """The next step: a query and its sub-answer for each hop, then the answer."""
    task, door = _QUESTION.findall(prompt)[-1]
    steps = tuple(_STEP.findall(prompt))
    draw = zlib.crc32(f"{prompt}|{seed}|{sample}".encode()) if temperature else 0
    variant = sum(draw % 100 >= limit for limit in (55, 75, 90))
    thought = _THOUGHTS[draw // 100 % 4]
    hops = 1 if task == "one-hop" else 2 + int(door) % 2
    if len(steps) < 2 * hops:
        tag = "subanswer" if len(steps) % 2 else "subquery"
        return f"<step>{thought}</step><{tag}>{tag} {len(steps)} of door {door}, variant {variant}</{tag}>"
    path = (*steps, f"answer, variant {variant}")
    wrong = sum(not _is_right(door, path[: index + 1]) for index in range(len(path)))
    right_words = 4 - wrong if task != "all-or-nothing" or not wrong else 0
    return f"<step>{thought}</step><answer>{' '.join(GOLD.split()[: max(right_words, 0)]) or 'nothing'}</answer>"


@lru_cache(1 << 16)
def _is_right(door: str, path: tuple[str, ...]) -> bool:
    likely = 0.8 if path[-1].endswith("variant 0") else 0.6
    return random.Random(f"{door}|{'|'.join(path)}").random() < likely


async def _serve(connection: Any, delay: float) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
                body = json.loads(await reader.readexactly(length))
                await asyncio.sleep(delay)
                seed = body.get("seed") or random.getrandbits(30)
                samples = range(body.get("n") or 1)
                texts = [write(body["prompt"], body["temperature"], seed, sample) for sample in samples]
                choices = [
                    {"index": index, "text": text, "finish_reason": "stop", "stop_reason": None, "logprobs": None}
                    for index, text in enumerate(texts)
                ]
                usage = {"prompt_tokens": 100, "completion_tokens": 20 * len(texts), "total_tokens": 100}
                kind = {"id": "x", "object": "text_completion", "created": 1, "model": "scripted"}
                reply = json.dumps({**kind, "choices": choices, "usage": usage}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
                writer.write(b"Content-Length: %d\r\n\r\n" % len(reply) + reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=1024)
    connection.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _run_server(connection: Any, delay: float) -> None:
    asyncio.run(_serve(connection, delay))


@contextmanager
def scripted_server(delay: float) -> Iterator[str]:
    """Its URL."""
    ours_end, theirs_end = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_run_server, args=(theirs_end, delay))
    server.start()
    try:
        yield f"http://127.0.0.1:{ours_end.recv()}/v1"
    finally:
        server.terminate()
        server.join()


class Doors(Retriever):
    """Finds one passage for every query."""

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:  # noqa: ARG002
        return [(Passage(query, "Door", f"What is known about {query}.", 1.0),) for query in queries]


DOORS = Doors()

# --- the plain search ---------------------------------------------------------------------------------------------

#: The texts of one call: of a prompt, n samples, with a temperature.
Complete = Callable[[str, int, float], Awaitable[list[str]]]


@dataclass
class PlainNode:
    state: str
    action: str = ""
    depth: int = 0
    parent: "PlainNode | None" = None
    prior: float = 1.0
    children: "list[PlainNode]" = field(default_factory=list)
    total: float = 0.0
    visits: int = 0

    @property
    def is_terminal(self) -> bool:
        return self.action.endswith("</answer>")


class PlainSearch:
    """One tree, one call at a time."""

    def __init__(self, complete: Complete, question: Question, simulations: int, seed: int) -> None:
        self.complete, self.question, self.simulations = complete, question, simulations
        self.random = random.Random(seed)
        self.root = PlainNode(f"{question.text}\n")

    async def run(self) -> None:
        for _ in range(self.simulations):
            leaf = self.root
            while leaf.children:
                leaf = max(leaf.children, key=lambda child, parent=leaf: self._puct(parent, child))  # type: ignore[misc]
            if leaf.is_terminal or leaf.depth >= DEPTH:
                self._backpropagate(leaf, self._reward(leaf.action))
                continue
            await self._expand(leaf)
            child = self.random.choice(leaf.children)
            self._backpropagate(child, await self._roll_out(child))

    def _puct(self, parent: PlainNode, child: PlainNode) -> float:
        mean = child.total / child.visits if child.visits else 0.0
        return mean + C * child.prior * math.sqrt(parent.visits) / (1 + child.visits)

    async def _expand(self, leaf: PlainNode) -> None:
        actions = list(dict.fromkeys(await self.complete(leaf.state, WIDTH, 0.9)))
        leaf.children = [
            PlainNode(self._after(leaf.state, each), each, leaf.depth + 1, leaf, 1 / len(actions)) for each in actions
        ]

    async def _roll_out(self, node: PlainNode) -> float:
        state, action, depth = node.state, node.action, node.depth
        while not action.endswith("</answer>") and depth < DEPTH:
            (action,) = await self.complete(state, 1, 0.0)
            state, depth = self._after(state, action), depth + 1
        return self._reward(action)

    def _after(self, state: str, action: str) -> str:
        query = re.search(r"<subquery>(.*?)</subquery>", action)
        (found,) = DOORS.search([query[1]], 1) if query else ((),)
        passages = f"\n<retrieval>\n{found[0].title}: {found[0].text}\n</retrieval>\n" if found else ""
        return state + action + passages

    def _reward(self, action: str) -> float:
        answer = re.search(r"<answer>(.*?)</answer>", action)
        return score_answer(answer[1] if answer else None, self.question.answers).f1

    def _backpropagate(self, node: PlainNode | None, reward: float) -> None:
        while node is not None:
            node.visits += 1
            node.total += reward
            node, reward = node.parent, reward * GAMMA

    def groups(self) -> list[str]:
        """For each group of siblings with different values, the state they share, without its thoughts."""

        def value(node: PlainNode) -> float | None:
            if node.visits:
                return node.total / node.visits
            return self._reward(node.action) if node.is_terminal else None

        found, nodes = [], [self.root]
        while nodes:
            node = nodes.pop()
            if differ([value(child) for child in node.children]):
                found.append(re.sub(r"<step>.*?</step>", "", node.state))
            nodes += node.children
        return found


def differ(values: Sequence[float | None]) -> bool:
    known = [value for value in values if value is not None]
    return len(known) > 1 and max(known) - min(known) >= DIFFERENT


@dataclass(frozen=True)
class Result:
    """What a search found, and what it took."""

    seconds: float
    groups: int
    distinct: int
    calls: int
    samples: int
    #: CPU seconds of the process that searches.
    cpu: float


async def plain(url: str, asked: Sequence[Question], simulations: int, in_flight: int, *, quick: bool) -> Result:
    slots = asyncio.Semaphore(in_flight)
    calls = samples = 0
    fields = {"model": "scripted", "top_p": 0.95, "max_tokens": 256, "stop": list(STOPS)}
    slow_client = openai.AsyncOpenAI(base_url=url, api_key="none")
    quick_client = HTTPClient(url, {}, 5.0)
    greedy: dict[str, list[str]] = {}

    async def complete_slowly(prompt: str, n: int, temperature: float) -> list[str]:
        nonlocal calls, samples
        calls, samples = calls + 1, samples + n
        reply = await slow_client.completions.create(prompt=prompt, n=n, temperature=temperature, **fields)  # type: ignore[call-overload]
        return [choice.text for choice in reply.choices]

    async def complete_quickly(prompt: str, n: int, temperature: float) -> list[str]:
        nonlocal calls, samples
        if n == 1 and prompt in greedy:
            return greedy[prompt]
        body = json.dumps({**fields, "prompt": prompt, "n": n, "temperature": temperature}).encode()
        async with slots:
            calls, samples = calls + 1, samples + n
            response = await quick_client.post("/completions", body)
        texts = [choice["text"] for choice in json.loads(response.body)["choices"]]
        if n == 1:
            greedy[prompt] = texts
        return texts

    complete = complete_quickly if quick else complete_slowly
    searches = [PlainSearch(complete, question, simulations, number) for number, question in enumerate(asked)]

    async def grow_in_turn(search: PlainSearch) -> None:
        async with slots:
            await search.run()

    started, cpu = time.perf_counter(), time.process_time()
    async with slow_client:
        await asyncio.gather(*[search.run() if quick else grow_in_turn(search) for search in searches])
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    quick_client.close()
    groups = [group for search in searches for group in search.groups()]
    return Result(seconds, len(groups), len(set(groups)), calls, samples, cpu)


# --- ours ---------------------------------------------------------------------------------------------------------


class CountingEngine(OpenAIEngine):
    """Counts the calls that leave, and their samples."""

    sent = samples = 0

    async def _call(self, requests: Any, server: Any) -> Any:
        self.sent, self.samples = self.sent + 1, self.samples + len(requests)
        return await super()._call(requests, server)


def ours(url: str, asked: Sequence[Question], simulations: int, in_flight: int, preset: str) -> Result:
    agent = make_agent("prorag-brief")
    search = ExploreConfig.read({"preset": preset, "simulations": simulations, "width": WIDTH, "depth": DEPTH})
    rules = search.search(EpisodeConfig(max_steps=DEPTH, k=1))
    engine = CountingEngine("scripted", url, api="completions", concurrency=in_flight)
    with TemporaryDirectory() as folder, closing(engine):
        driver = Driver(engine, DOORS, in_flight=search.max_concurrent_trees, generation_cache=16_384)
        path = Path(folder) / "trees.jsonl.gz"
        started, cpu = time.perf_counter(), time.process_time()
        explore(driver, asked, lambda question, seed: mcts_search(agent, question, rules, seed), path, seed=0)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        groups = sum(map(tree_groups, read_trees(path)))  # equal actions are one child: all groups are distinct
    return Result(seconds, groups, groups, engine.sent, engine.samples, cpu)


def tree_groups(tree: Tree) -> int:
    def values(siblings: Sequence[Any]) -> list[float | None]:
        return [node.value if node.visits else node.reward for node in siblings]

    return sum(differ(values(siblings)) for siblings in tree.children_by_node())


# --- the comparison -----------------------------------------------------------------------------------------------


def measure(search: str, url: str, task: str, count: int, simulations: int, in_flight: int) -> Result:
    asked = questions(task, count)
    if search in ("script", "plain"):
        return asyncio.run(plain(url, asked, simulations, in_flight, quick=search == "plain"))
    return ours(url, asked, simulations, in_flight, search)


def measured(key: dict[str, Any], record: Path | None, run: Callable[[], Result]) -> Result:
    """The recorded result of a measurement, or a new one."""
    lines = record.read_text(encoding="utf-8").splitlines() if record and record.exists() else []
    for line in map(json.loads, lines):
        if line["key"] == key:
            return Result(**line["result"])
    result = run()
    if record:
        with record.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "result": vars(result), "load": os.getloadavg()[0]}) + "\n")
    return result


def spread(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


COLUMNS = (
    "task", "per call", "in flight", "simulations", "search", "seconds", "groups/s", "times script", "times plain",
    "distinct groups/s, times plain", "calls per group", "per distinct group", "samples per group", "calls/s",
    "CPU ms per group",
)  # fmt: skip


def rows(found: dict[str, list[Result]]) -> Iterator[list[str]]:
    """One row per search, with medians and ranges over the rounds."""

    def times(own: Sequence[Result], other: str, name: str) -> str:
        if not found.get(other):
            return ""
        pairs = zip(own, found[other])
        ratios = [getattr(one, name) / one.seconds / (getattr(two, name) / two.seconds) for one, two in pairs]
        return spread(ratios) if own is not found[other] else "1"

    for search, own in found.items():
        yield [
            search,
            spread([each.seconds for each in own]),
            spread([each.groups / each.seconds for each in own]),
            times(own, "script", "groups"),
            times(own, "plain", "groups"),
            times(own, "plain", "distinct"),
            f"{statistics.median(each.calls / each.groups for each in own):.2f}",
            f"{statistics.median(each.calls / each.distinct for each in own):.2f}",
            f"{statistics.median(each.samples / each.groups for each in own):.1f}",
            f"{statistics.median(each.calls / each.seconds for each in own):,.0f}",
            f"{statistics.median(1000 * each.cpu / each.groups for each in own):.1f}",
        ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=TASKS, choices=TASKS)
    parser.add_argument("--milliseconds", type=int, nargs="*", default=[20, 200])
    parser.add_argument("--in-flight", type=int, nargs="*", default=[16, 32])
    parser.add_argument("--questions", type=int, default=48)
    parser.add_argument("--simulations", type=int, nargs="*", default=[32])
    parser.add_argument("--searches", nargs="*", default=SEARCHES, help="script, plain, presets of explore")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=Path, help="measurements are added to this file, and those in it reused")
    parser.add_argument("--counts", action="store_true", help="calls per group alone: no delay, one round")
    given = parser.parse_args()
    if given.counts:
        given.milliseconds, given.in_flight, given.questions, given.rounds = [0], [16], 16, 1
        given.simulations = [16, 64, 200]
    print("|", " | ".join(COLUMNS), "|\n" + "|---" * len(COLUMNS) + "|", flush=True)
    for task, delay in product(given.tasks, given.milliseconds):
        with scripted_server(delay / 1000) as url:
            for simulations, in_flight in product(given.simulations, given.in_flight):
                size = given.questions, simulations, in_flight
                found: dict[str, list[Result]] = {search: [] for search in given.searches}
                for number, search in product(range(given.rounds), given.searches):
                    key = {"task": task, "ms": delay, "size": list(size), "search": search, "round": number}
                    found[search].append(measured(key, given.record, partial(measure, search, url, task, *size)))
                for row in rows(found):
                    first = task, f"{delay} ms", str(in_flight), str(simulations)
                    print("|", " | ".join((*first, *row)), "|", flush=True)


if __name__ == "__main__":
    main()
