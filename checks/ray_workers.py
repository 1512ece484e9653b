"""Do Ray workers give what one process gives, what do they cost, and how much faster are they?

    python checks/ray_workers.py same --policy nano --questions 200 --workers 3
    python checks/ray_workers.py speed --questions 300 --workers 3

`same` plays an evaluation and an exploration three times: in one process, on a local cluster, and on a local cluster of
which one worker is killed with SIGKILL after a tenth of the questions. Trees and scores must be equal; log-probs may
differ by rounding, because batches have other sizes. `speed` uses an engine that takes 2 ms per generation: the time of
one worker beside that of one process is the overhead of Ray, and the time of all workers gives the speed-up. The start
of the cluster is not counted. Exit status 1 on a difference, or an overhead of 5% or more.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])  # for the workers
sys.path.insert(0, str(ROOT))

from stepladder.core.errors import BackendError  # noqa: E402
from stepladder.core.requests import Generate, Generation  # noqa: E402
from stepladder.core.seeding import seed_of  # noqa: E402
from stepladder.core.trace import Segment, Trajectory, Tree  # noqa: E402
from stepladder.data.sampling import sample_questions  # noqa: E402
from stepladder.driver import Driver, Outcome  # noqa: E402
from stepladder.driver.cluster import RayConfig  # noqa: E402
from stepladder.driver.cluster.pool import WorkerPool  # noqa: E402
from stepladder.driver.cluster.ray_cluster import RayCluster  # noqa: E402
from stepladder.driver.cluster.remote_driver import RemoteDriver  # noqa: E402
from stepladder.evaluation.evaluator import Evaluation, evaluate  # noqa: E402
from stepladder.explore.episode import EpisodeConfig, episode  # noqa: E402
from stepladder.explore.tree_store import explore, read_trees  # noqa: E402
from stepladder.oracle.engine import OracleEngine  # noqa: E402
from stepladder.pipeline.resources import ORACLE, RunContext, SharedConfig  # noqa: E402
from stepladder.pipeline.search_config import ExploreConfig  # noqa: E402
from stepladder.pipeline.spread.player import Player, PlayPlan, open_driver  # noqa: E402
from stepladder.pipeline.stages.explore import mcts_tree  # noqa: E402

CALL_SECONDS = 0.002
LARGEST_OVERHEAD = 0.05


# --- the same results ---------------------------------------------------------------------------------------------


def kill_one(driver: Driver, after: int) -> Callable[[Outcome[Any]], None]:
    """Kill a worker after so many outcomes."""
    seen = []

    def watch(outcome: Outcome[Any]) -> None:
        seen.append(outcome.index)
        if len(seen) == after and isinstance(driver, RemoteDriver):
            os.kill(driver.pool.workers[0].process, signal.SIGKILL)  # type: ignore[attr-defined]

    return watch


def play(
    context: RunContext, options: argparse.Namespace, folder: Path, kill: bool
) -> tuple[Evaluation, list[Tree], dict[str, float], int]:
    """An evaluation, trees, the seconds of both without the start, and the number of workers that died."""
    seconds, deaths = {}, 0
    test = context.split("test")[: options.questions]
    with open_driver(context, options.policy) as driver:
        started = time.perf_counter()
        watch = kill_one(driver, len(test) // 10) if kill else None
        result = evaluate(driver, context.agent, test, context.episode(), seed=0, watch=watch)
        seconds["eval"] = time.perf_counter() - started
        deaths += driver.pool.deaths if isinstance(driver, RemoteDriver) else 0
    train = sample_questions(context.split("train"), options.questions, 0, balance=True)
    rules = ExploreConfig(simulations=options.simulations, width=3).search(context.episode())
    with open_driver(context, options.policy, in_flight=64, generation_cache=16_384) as driver:
        started = time.perf_counter()
        watch = kill_one(driver, len(train) // 10) if kill else None
        path = folder / f"{time.time()}.jsonl.gz"
        explore(driver, train, partial(mcts_tree, context.agent, rules), path, seed=0, watch=watch)
        seconds["explore"] = time.perf_counter() - started
        deaths += driver.pool.deaths if isinstance(driver, RemoteDriver) else 0
    return result, list(read_trees(path)), seconds, deaths


def rounded(value: Any) -> Any:
    """A record without its log-probs and with rounded priors."""
    if isinstance(value, Segment):
        return replace(value, logprobs=())
    if isinstance(value, tuple):
        return tuple(map(rounded, value))
    if isinstance(value, Trajectory):
        steps = tuple(replace(s, read=rounded(s.read), written=rounded(s.written)) for s in value.steps)
        return replace(value, steps=steps)
    if isinstance(value, Tree):
        return replace(value, nodes=tuple(_without(node) for node in value.nodes))
    return value


def _without(node: Any) -> Any:
    if node.step is None:
        return node
    step = replace(node.step, read=rounded(node.step.read), written=rounded(node.step.written))
    return replace(node, step=step, prior=None if node.prior is None else round(node.prior, 3))


def differing(name: str, expected: Sequence[Any], found: Sequence[Any]) -> int:
    """Print and count how many records differ beyond rounding."""
    count = sum(rounded(one) != rounded(other) for one, other in zip(expected, found, strict=True))
    exact = sum(one == other for one, other in zip(expected, found, strict=True))
    print(f"  {name}: {len(expected) - count} of {len(expected)} equal ({exact} to the last bit)", flush=True)
    return count


def same(options: argparse.Namespace) -> int:
    plain = {"policy": options.policy if options.policy != ORACLE else "nano", "device": "cpu"}
    expected, trees, alone, _ = play_with(plain, None, options, kill=False)
    print(f"one process: eval {alone['eval']:.1f} s, explore {alone['explore']:.1f} s", flush=True)
    problems = 0
    for kill in (False, True):
        found, grown, seconds, deaths = play_with(plain, {"workers": options.workers}, options, kill=kill)
        speed = {name: alone[name] / seconds[name] for name in alone}
        print(
            f"{options.workers} workers{f', {deaths} killed' if kill else ''}: eval {seconds['eval']:.1f} s "
            f"({speed['eval']:.2f}x), explore {seconds['explore']:.1f} s ({speed['explore']:.2f}x)"
        )
        problems += differing("scores", expected.scores, found.scores)
        problems += differing("episodes", expected.trajectories, found.trajectories)
        problems += differing("trees", trees, grown)
        problems += kill and deaths != 2
    return problems


def play_with(plain: dict[str, Any], ray: dict[str, Any] | None, options: argparse.Namespace, *, kill: bool) -> Any:
    with TemporaryDirectory() as folder, closing(RunContext(SharedConfig.read({**plain, "ray": ray}))) as context:
        return play(context, options, Path(folder), kill)


# --- the overhead -------------------------------------------------------------------------------------------------


class SlowEngine(OracleEngine):
    """Takes 2 ms per generation."""

    max_batch = 1

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        time.sleep(CALL_SECONDS)
        return super().generate(requests)


class SlowPlayer(Player):
    """A worker with the slow engine."""

    def __init__(self, plan: PlayPlan) -> None:
        super().__init__(plan)
        self.driver = Driver(SlowEngine(self.agent), self.driver.retriever, in_flight=64)


def timed(driver: Driver, context: RunContext, count: int) -> float:
    """Seconds to play the questions."""
    limits = EpisodeConfig()
    questions = context.split("train")[:count]
    jobs = [partial(episode, context.agent, each, limits, seed_of(0, each.id)) for each in questions]
    started = time.perf_counter()
    outcomes = driver.run(jobs)
    assert all(outcome.failure is None for outcome in outcomes)
    return time.perf_counter() - started


def speed(options: argparse.Namespace) -> int:
    context = RunContext(SharedConfig.read({"policy": "nano"}))
    plan = PlayPlan(context.settings.model_dump(mode="json"), (False, None), ORACLE, None, None, {}, ())
    with closing(RayCluster(RayConfig(workers=options.workers))) as cluster:
        overheads = []
        with closing(WorkerPool(cluster.workers("checks.ray_workers:SlowPlayer", plan))) as pool:
            remote, most = RemoteDriver(pool, in_flight=64), pool._slots
            local = Driver(SlowEngine(context.agent), context.retriever, in_flight=64)
            for _ in range(options.rounds):  # alternating: the machine may be busy with something else
                one = timed(local, context, options.questions)
                pool._slots = most[:1]
                single = timed(remote, context, options.questions)
                pool._slots = most
                many = timed(remote, context, options.questions)
                overheads.append(single / one - 1)
                print(
                    f"{options.questions} questions: one process {1e3 * one / options.questions:.2f} ms per question, "
                    f"one worker {1e3 * single / options.questions:.2f} ms ({overheads[-1]:+.1%}), {options.workers} "
                    f"workers {1e3 * many / options.questions:.2f} ms ({one / many:.2f}x)",
                    flush=True,
                )
    median = sorted(overheads)[len(overheads) // 2]
    print(f"overhead per question: {median:+.1%} (median of {len(overheads)}; below {LARGEST_OVERHEAD:.0%} is right)")
    return int(median >= LARGEST_OVERHEAD)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["same", "speed"])
    parser.add_argument("--policy", default="nano", help="a model, or oracle")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--simulations", type=int, default=4, help="per tree")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3, help="of speed")
    options = parser.parse_args()
    problems = same(options) if options.what == "same" else speed(options)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
