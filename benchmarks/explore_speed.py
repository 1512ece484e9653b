"""How fast trees grow: all questions together against the way of the reference systems, and what more questions cost.

The same trees are grown three times in one run, with the same engine, model, settings and seeds:

- one question at a time, one generation a call, nothing shared: how the published scripts explore;
- 16 questions at a time, each with one generation under way, nothing shared: the same scripts in 16 threads before a
  server that batches;
- Stepladder: all trees together, a few simulations of each at once, equal requests answered once.

That it is the same work is checked: the trees of all three must be equal up to rounding, which may turn a step now and
then; the share of equal trees is printed. Growth: 16, 64, 256 and 1,024 questions, with few simulations, each size in a
process of its own with its peak memory. The policy is nano after the warm-up of `recipes/prorag-nano.yaml`; `--policy`
takes another.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from stepladder.core.requests import (
    Algorithm,
    AnyRequest,
    Generate,
    Generation,
    Request,
    Retrieve,
    requests_in,
    send_replies,
)
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question, Tree
from stepladder.data.sampling import sample_questions
from stepladder.driver import Driver
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.explore.mcts import MCTSConfig, mcts_search
from stepladder.explore.tree_store import explore, read_trees
from stepladder.pipeline import run_recipe
from stepladder.pipeline.recipe import load_recipe
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.search_config import ExploreConfig

RECIPE = "prorag-nano"
SIZES = (16, 64, 256, 1024)
GROWTH_SIMULATIONS = 4


@dataclass
class Bench:
    """What all ways share."""

    context: RunContext
    policy: str
    settings: MCTSConfig

    def engine(self, max_batch: int) -> TransformersEngine:
        return TransformersEngine(self.policy, device="cpu", dtype="fp32", max_batch=max_batch)

    def grow(self, question: Question, seed: int) -> Algorithm[Tree]:
        return mcts_search(self.context.agent, question, self.settings, seed)

    def job(self, question: Question) -> Callable[[], Algorithm[Tree]]:
        return lambda: self.grow(question, seed_of(0, question.id))

    def questions(self, count: int) -> list[Question]:
        return sample_questions(self.context.split("train"), count, 0, balance=True)


# --- the way of the reference systems -----------------------------------------------------------------------------


class Slot:
    """A question under way that has one request out at a time."""

    def __init__(self, index: int, algorithm: Algorithm[Tree]) -> None:
        self.index = index
        self.algorithm = algorithm
        self.asking: AnyRequest = next(algorithm)
        self.left: list[Request] = requests_in(self.asking)
        self.replies: list[object] = []

    def take(self, reply: object) -> Tree | None:
        """Hand over the reply to the first request; the tree when that was the last one needed."""
        self.left.pop(0)
        self.replies.append(reply)
        while not self.left:
            try:
                self.asking = send_replies(self.algorithm, self.asking, self.replies)
            except StopIteration as end:
                tree: Tree = end.value
                return tree
            self.left, self.replies = requests_in(self.asking), []
        return None


def one_request_each(bench: Bench, questions: Sequence[Question], at_once: int) -> tuple[list[Tree], int]:
    """Grow trees with `at_once` questions open, one request of each under way, nothing shared. Trees, tokens."""
    engine, retriever = bench.engine(at_once), bench.context.retriever
    assert retriever is not None
    waiting = list(enumerate(questions))[::-1]
    slots: list[Slot] = []
    done: dict[int, Tree] = {}
    written = 0
    while waiting or slots:
        while waiting and len(slots) < at_once:
            index, question = waiting.pop()
            slots.append(Slot(index, bench.job(question)()))
        writing = [slot for slot in slots if isinstance(slot.left[0], Generate)]
        searching = [slot for slot in slots if isinstance(slot.left[0], Retrieve)]
        replies: list[tuple[Slot, object]] = []
        for slot in searching:
            request = slot.left[0]
            assert isinstance(request, Retrieve)
            replies.append((slot, retriever.search([request.query], request.k)[0]))
        if not searching:
            generations = engine.generate([slot.left[0] for slot in writing])  # type: ignore[misc]
            written += sum(each.usage.written for each in generations if isinstance(each, Generation))
            replies = list(zip(writing, generations, strict=True))
        for slot, reply in replies:
            tree = slot.take(reply)
            if tree is not None:
                done[slot.index] = tree
                slots.remove(slot)
    engine.close()
    return [done[index] for index in range(len(questions))], written


# --- ours ---------------------------------------------------------------------------------------------------------


def together(bench: Bench, questions: Sequence[Question], folder: Path) -> tuple[list[Tree], int, float]:
    """Grow all trees together, as `stepladder explore` does. Trees, tokens, share of requests that were shared."""
    engine = bench.engine(128)
    driver = Driver(engine, bench.context.retriever, in_flight=64, generation_cache=16_384)
    path = folder / "trees.jsonl.gz"
    path.unlink(missing_ok=True)
    explore(driver, questions, bench.grow, path, seed=0)
    engine.close()
    trees = {tree.question.id: tree for tree in read_trees(path)}
    counts = driver.counts
    shared = (counts.merged + counts.answered_by_cache) / sum(counts.asked.values())
    return [trees[question.id] for question in questions], counts.usage.written, shared


def same(one: Iterable[Tree], other: Iterable[Tree]) -> float:
    """The share of trees with the same texts in the same places, visited as often."""

    def shape(tree: Tree) -> list[object]:
        return [(node.parent, node.visits, node.step and node.step.written.text) for node in tree.nodes]

    pairs = list(zip(one, other, strict=True))
    return sum(shape(a) == shape(b) for a, b in pairs) / len(pairs)


def compare(bench: Bench, count: int, folder: Path) -> None:
    questions = bench.questions(count)
    print(f"{count} questions, {bench.settings.simulations} simulations, width {bench.settings.width}", flush=True)
    together(bench, questions[:4], folder)  # what is only done once: kernels, caches of the processor
    rows: list[tuple[str, float, int, list[Tree]]] = []

    def measure(name: str, work: Callable[[], tuple[list[Tree], int]]) -> None:
        started = time.perf_counter()
        trees, written = work()
        rows.append((name, time.perf_counter() - started, written, trees))
        _, seconds, _, _ = rows[-1]
        print(f"  {name}: {seconds:,.1f} s", flush=True)

    shares: list[float] = []

    def ours() -> tuple[list[Tree], int]:
        trees, written, shared = together(bench, questions, folder)
        shares.append(shared)
        return trees, written

    measure("one at a time", lambda: one_request_each(bench, questions, 1))
    measure("16 at a time", lambda: one_request_each(bench, questions, 16))
    measure("Stepladder", ours)
    slowest, last = rows[0][1], rows[-1][3]
    print(f"\n{'':16}{'seconds':>10}{'trees/s':>10}{'tokens/s':>10}{'tokens':>10}{'times':>8}{'same trees':>12}")
    for name, seconds, written, trees in rows:
        print(
            f"{name:16}{seconds:10,.1f}{count / seconds:10.2f}{written / seconds:10,.0f}{written:10,}"
            f"{slowest / seconds:7.1f}x{same(trees, last):12.0%}"
        )
    print(f"Stepladder answered {shares[0]:.0%} of all requests without asking anybody.\n")


# --- growth -------------------------------------------------------------------------------------------------------


def grow(bench: Bench, count: int, folder: Path) -> None:
    """One size, in this process; prints a line of JSON."""
    started = time.perf_counter()
    engine = bench.engine(128)
    driver = Driver(engine, bench.context.retriever, in_flight=64, generation_cache=16_384)
    explore(driver, bench.questions(count), bench.grow, folder / "trees.jsonl.gz", seed=0)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = (folder / "trees.jsonl.gz").stat().st_size
    print(json.dumps({"seconds": seconds, "peak": peak, "bytes": size, "tokens": driver.counts.usage.written}))


def growth(sizes: Sequence[int], arguments: Sequence[str]) -> None:
    print(f"{'questions':>10}{'seconds':>10}{'trees/s':>10}{'tokens/s':>10}{'peak MB':>10}{'KB a tree':>11}")
    for count in sizes:
        command = [sys.executable, __file__, *arguments, "--grow", str(count)]
        line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        found = json.loads(line)
        seconds = found["seconds"]
        print(
            f"{count:10,}{seconds:10,.1f}{count / seconds:10.2f}{found['tokens'] / seconds:10,.0f}"
            f"{found['peak'] / 1024:10,.0f}{found['bytes'] / 1024 / count:11.1f}",
            flush=True,
        )


def warmed_up(folder: Path) -> str:
    """The policy of the recipe's first stage."""
    print("warming up nano (once; a minute or two)", flush=True)
    recipe = load_recipe(RECIPE)
    recipe = replace(recipe, stages=tuple(stage for stage in recipe.stages if stage.kind == "sft"))
    policy = run_recipe(recipe, folder).policy
    assert policy is not None
    return str(policy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", help="a warmed-up policy; without one, nano is warmed up first")
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--simulations", type=int, default=8)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="numbers of questions for the growth")
    parser.add_argument("--grow", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    context = RunContext(load_recipe(RECIPE).shared)
    rules = ExploreConfig(simulations=given.simulations, patience=None).search(context.episode())
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        bench = Bench(context, given.policy or warmed_up(folder / "run"), rules)
        if given.grow is not None:
            grow(bench, given.grow, folder)
            return
        compare(bench, given.questions, folder)
        print(f"{GROWTH_SIMULATIONS} simulations")
        growth(given.sizes, ["--policy", bench.policy, "--simulations", str(GROWTH_SIMULATIONS)])


if __name__ == "__main__":
    main()
