"""Trees over an OpenAI-compatible server: sibling groups per second, calls per group, against a plain asyncio search.

    python benchmarks/tree_concurrency.py

Both grow trees of the same questions over the same scripted server, which answers every call after 20 ms or 200 ms,
with the same numbers of simulations, children and calls in flight:

- plain: the design of ProRAG's script, written anew. One coroutine per tree; a simulation selects a leaf by PUCT,
  expands it with one call (n = 5), rolls one of the new children out greedily, and backpropagates. Samples with the
  same text are one child.
- Stepladder: `explore` with the preset `server`.

A group counts if two of its siblings have values that differ by 0.05 or more: those are the groups that preference
pairs and reward models learn from. The value of a state is the mean of the simulations through it; that of a terminal
state is its reward, visited or not, for both.

The server is a process of its own. Its policy works on questions with two or three hops: every step has four variants
of which some are wrong, an answer lacks one word for every wrong step, and thoughts vary freely. It depends on the text
of the call alone.
"""

import argparse
import asyncio
import json
import math
import multiprocessing
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import openai

from stepladder.agents import make_agent
from stepladder.core.answer_metrics import score_answer
from stepladder.core.trace import Passage, Question, Tree
from stepladder.driver import Driver
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

# --- the scripted policy ------------------------------------------------------------------------------------------

_QUESTION = re.compile(r"What is behind door (\d+)\?")
_STEP = re.compile(r"<sub(?:query|answer)>(.*?)</sub(?:query|answer)>")


def questions(count: int) -> list[Question]:
    return [Question(f"door-{number}", f"What is behind door {number}?", (GOLD,)) for number in range(count)]


def write(prompt: str, temperature: float, seed: int, sample: int) -> str:
    """The next step: a query and its sub-answer for each hop, then the answer."""
    number = int(_QUESTION.findall(prompt)[-1])
    steps = _STEP.findall(prompt)
    draw = random.Random(f"{prompt}|{seed}|{sample}")
    variant = draw.choices(range(4), (55, 20, 15, 10))[0] if temperature else 0
    thought = draw.choice(["First this.", "Now that.", "So.", "Let me see."]) if temperature else "So."
    wrong = sum(not _is_right(number, steps[:index], step) for index, step in enumerate(steps))
    if len(steps) < 2 * (2 + number % 2):
        tag = "subanswer" if len(steps) % 2 else "subquery"
        return f"<step>{thought}</step><{tag}>{tag} {len(steps)} of door {number}, variant {variant}</{tag}>"
    wrong += not _is_right(number, steps, f"answer, variant {variant}")
    answer = " ".join(GOLD.split()[: max(4 - wrong, 0)]) or "nothing"
    return f"<step>{thought}</step><answer>{answer}</answer>"


def _is_right(number: int, before: Sequence[str], step: str) -> bool:
    likely = 0.8 if step.endswith("variant 0") else 0.6
    return random.Random(f"{number}|{'|'.join(before)}|{step}").random() < likely


async def _serve(connection: Any, delay: float) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
                body = json.loads(await reader.readexactly(length))
                await asyncio.sleep(delay)
                texts = [
                    write(body["prompt"], body["temperature"], body.get("seed") or random.getrandbits(30), sample)
                    for sample in range(body.get("n") or 1)
                ]
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


class Doors(Retriever):
    """Finds one passage for every query."""

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:  # noqa: ARG002
        return [(Passage(query, "Door", f"What is known about {query}.", 1.0),) for query in queries]


# --- the plain search ---------------------------------------------------------------------------------------------


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

    def __init__(self, client: openai.AsyncOpenAI, question: Question, simulations: int, seed: int) -> None:
        self.client, self.question, self.simulations = client, question, simulations
        self.random = random.Random(seed)
        self.root = PlainNode(f"{question.text}\n")
        self.calls = 0

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

    async def _call(self, prompt: str, n: int, temperature: float) -> list[str]:
        self.calls += 1
        reply = await self.client.completions.create(
            model="scripted", prompt=prompt, n=n, temperature=temperature, top_p=0.95, max_tokens=256, stop=list(STOPS)
        )
        return [choice.text for choice in reply.choices]

    async def _expand(self, leaf: PlainNode) -> None:
        actions = list(dict.fromkeys(await self._call(leaf.state, WIDTH, 0.9)))
        leaf.children = [
            PlainNode(self._after(leaf.state, each), each, leaf.depth + 1, leaf, 1 / len(actions)) for each in actions
        ]

    async def _roll_out(self, node: PlainNode) -> float:
        state, action, depth = node.state, node.action, node.depth
        while not action.endswith("</answer>") and depth < DEPTH:
            (action,) = await self._call(state, 1, 0.0)
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

    def groups(self) -> int:
        """Groups of siblings with different values."""

        def value(node: PlainNode) -> float | None:
            if node.visits:
                return node.total / node.visits
            return self._reward(node.action) if node.is_terminal else None

        found, nodes = 0, [self.root]
        while nodes:
            node = nodes.pop()
            found += differ([value(child) for child in node.children])
            nodes += node.children
        return found


def differ(values: Sequence[float | None]) -> bool:
    known = [value for value in values if value is not None]
    return len(known) > 1 and max(known) - min(known) >= DIFFERENT


DOORS = Doors()


async def plain(url: str, asked: Sequence[Question], simulations: int, in_flight: int) -> tuple[int, int]:
    """Groups and calls."""
    slots = asyncio.Semaphore(in_flight)
    searches = []
    async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:

        async def grow(number: int, question: Question) -> None:
            search = PlainSearch(client, question, simulations, number)
            searches.append(search)
            async with slots:
                await search.run()

        await asyncio.gather(*[grow(number, question) for number, question in enumerate(asked)])
    return sum(search.groups() for search in searches), sum(search.calls for search in searches)


# --- ours ---------------------------------------------------------------------------------------------------------


def ours(url: str, asked: Sequence[Question], simulations: int, in_flight: int, preset: str) -> tuple[int, int]:
    """Groups and calls."""
    agent = make_agent("prorag-brief")
    search = ExploreConfig.read({"preset": preset, "simulations": simulations, "width": WIDTH, "depth": DEPTH})
    rules = search.search(EpisodeConfig(max_steps=DEPTH, k=1))
    engine = OpenAIEngine("scripted", url, api="completions", concurrency=in_flight)
    with TemporaryDirectory() as folder, closing(engine):
        driver = Driver(engine, DOORS, in_flight=search.max_concurrent_trees, generation_cache=16_384)
        path = Path(folder) / "trees.jsonl.gz"
        explore(driver, asked, lambda question, seed: mcts_search(agent, question, rules, seed), path, seed=0)
        return sum(map(tree_groups, read_trees(path))), driver.counts.calls["Generate"]


def tree_groups(tree: Tree) -> int:
    def values(siblings: Sequence[Any]) -> list[float | None]:
        return [node.value if node.visits else node.reward for node in siblings]

    return sum(differ(values(siblings)) for siblings in tree.children_by_node())


# --- the comparison -----------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=int, nargs="*", default=[20, 200])
    parser.add_argument("--in-flight", type=int, nargs="*", default=[16, 32, 128])
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--simulations", type=int, default=32)
    parser.add_argument("--presets", nargs="*", default=["server"])
    given = parser.parse_args()
    columns = ("ms per call", "in flight", "search", "seconds", "groups", "groups/s", "calls/s", "calls/group", "times")
    print(" ".join(f"{name:>12}" for name in columns), flush=True)
    asked = questions(given.questions)
    for delay in given.milliseconds:
        ours_end, theirs_end = multiprocessing.Pipe()
        server = multiprocessing.get_context("spawn").Process(target=_run_server, args=(theirs_end, delay / 1000))
        server.start()
        url = f"http://127.0.0.1:{ours_end.recv()}/v1"
        try:
            for in_flight in given.in_flight:
                searches: dict[str, Callable[[], tuple[int, int]]] = {
                    "plain": lambda: asyncio.run(plain(url, asked, given.simulations, in_flight)),  # noqa: B023
                    **{
                        preset: lambda preset=preset: ours(url, asked, given.simulations, in_flight, preset)  # type: ignore[misc] # noqa: B023
                        for preset in given.presets
                    },
                }
                first = 0.0
                for name, search in searches.items():
                    started = time.perf_counter()
                    groups, calls = search()
                    seconds = time.perf_counter() - started
                    speed = groups / seconds
                    first = first or speed
                    numbers = (seconds, groups, speed, calls / seconds, calls / groups, speed / first)
                    shown = [f"{number:12,.2f}" for number in numbers]
                    print(f"{delay:12} {in_flight:12} {name:>12}", *shown, flush=True)
        finally:
            server.terminate()
            server.join()


if __name__ == "__main__":
    sys.exit(main())
