"""Do Ray workers give what one process gives, what do they cost, and how much faster are they?

    python checks/ray_workers.py same --policy oracle --questions 200 --workers 3
    python checks/ray_workers.py same --policy nano --questions 24 --max-tokens 24 --parts eval,explore,rank,rft
    python checks/ray_workers.py same --policy runs/nano/sft/policy --questions 24 --parts eval,explore,rank,rft
    python checks/ray_workers.py same --parts prm,index
    python checks/ray_workers.py speed --questions 200 --workers 3 --rounds 7

`same` does the work of eval, explore, rank and the sampling of rft three times: in one process, on a local cluster, and
on a local cluster of which one worker is killed with SIGKILL after a tenth of the questions of eval, and another one in
explore. It scores steps with a reward model and encodes passages (both of random weights) in one process and on
workers. Scores, episodes and trees must be equal; log-probs, step scores and vectors may differ by rounding, because
batches have other sizes. `speed` uses an engine that takes 2 ms per generation: the time of one worker beside that of
one process is the overhead of Ray, and the time of all workers gives the speed-up. The start of the cluster is not
counted. Exit status 1 on a difference, or an overhead of 5% or more.
"""

import argparse
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
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
from stepladder.evaluation.evaluator import evaluate  # noqa: E402
from stepladder.explore.episode import EpisodeConfig, episode  # noqa: E402
from stepladder.explore.tree_store import explore, read_trees  # noqa: E402
from stepladder.oracle.engine import OracleEngine  # noqa: E402
from stepladder.pipeline.resources import ORACLE, RunContext, SharedConfig  # noqa: E402
from stepladder.pipeline.search_config import ExploreConfig  # noqa: E402
from stepladder.pipeline.stages.explore import mcts_tree  # noqa: E402
from stepladder.pipeline.stages.rank import ranked_tree  # noqa: E402
from stepladder.pipeline.workers.rollout_workers import RolloutPlan, RolloutWorker, Scoring, open_driver  # noqa: E402
from stepladder.train.transcripts.sampled_episodes import sample_episodes  # noqa: E402

CALL_SECONDS = 0.002
LARGEST_OVERHEAD = 0.05
ROLLOUTS, PARTS = ("eval", "explore", "rank", "rft"), ("eval", "explore", "rank", "rft", "prm", "index")
Watch = Callable[[Outcome[Any]], None]


# --- the same results ---------------------------------------------------------------------------------------------


def kill_one(driver: Driver, after: int) -> Watch:
    """Kill a worker after so many outcomes."""
    seen = []

    def watch(outcome: Outcome[Any]) -> None:
        seen.append(outcome.index)
        if len(seen) == after and isinstance(driver, RemoteDriver):
            os.kill(next(filter(None, processes(driver))), signal.SIGKILL)

    return watch


def processes(driver: RemoteDriver) -> list[int]:
    """The process ids of the workers; 0 of replacements."""
    return [worker.process for worker in driver.pool.workers]  # type: ignore[attr-defined]


class Parts:
    """What the stages do with a driver. Each returns records by name."""

    def __init__(self, driver: Driver, context: RunContext, options: argparse.Namespace, folder: Path) -> None:
        self.driver, self.context, self.folder, self.simulations = driver, context, folder, options.simulations
        self.test = context.split("test")[: options.questions]
        self.train = sample_questions(context.split("train"), options.questions, 0, balance=True)

    def eval(self, watch: Watch | None) -> dict[str, Sequence[Any]]:
        context = self.context
        found = evaluate(self.driver, context.agent, self.test, context.episode(), seed=0, watch=watch)
        return {"eval scores": found.scores, "eval episodes": found.trajectories}

    def explore(self, watch: Watch | None) -> dict[str, Sequence[Any]]:
        rules = ExploreConfig(simulations=self.simulations, width=3).search(self.context.episode())
        return {"explore trees": self._trees("explored", partial(mcts_tree, self.context.agent, rules), watch)}

    def rank(self, watch: Watch | None) -> dict[str, Sequence[Any]]:
        grow = partial(ranked_tree, self.context.agent, self.context.episode(1.0), 3, False)
        return {"rank trees": self._trees("ranked", grow, watch)}

    def rft(self, watch: Watch | None) -> dict[str, Sequence[Any]]:
        context, sampled = self.context, self.context.episode(0.8)
        found = sample_episodes(
            self.folder / "samples",
            self.driver,
            context.agent,
            self.train[: max(len(self.train) // 2, 1)],
            sampled,
            num_generations=2,
            seed=0,
            watch=watch,
        )
        return {"rft samples": found}

    def _trees(self, name: str, grow: Any, watch: Watch | None) -> list[Tree]:
        path = self.folder / f"{name}.jsonl.gz"
        explore(self.driver, self.train, grow, path, seed=0, watch=watch)
        return list(read_trees(path))


def run_all(
    ray: dict[str, Any] | None, options: argparse.Namespace, *, kill: bool = False
) -> tuple[dict[str, Sequence[Any]], dict[str, float], int]:
    """Records by name, the seconds of every part without the start, and the number of workers that died."""
    policy = "nano" if options.policy == ORACLE else options.policy
    limits = {"max_steps": 10, "max_tokens": options.max_tokens}
    common = {"agent": "prorag-brief", "search": {"k": 1}, "episode": limits, "device": "cpu", "dtype": "fp32"}
    shared = SharedConfig.read({**common, "policy": policy, "ray": ray})
    records: dict[str, Sequence[Any]] = {}
    seconds: dict[str, float] = {}
    with TemporaryDirectory() as folder, closing(RunContext(shared)) as context:
        started = time.perf_counter()
        options_of_driver = {"in_flight": 64, "generation_cache": 16_384}
        with open_driver(context, options.policy, scoring=Scoring("gold"), **options_of_driver) as driver:
            seconds["start"] = time.perf_counter() - started
            parts = Parts(driver, context, options, Path(folder))
            for name in filter(options.parts.__contains__, ROLLOUTS):
                started = time.perf_counter()
                dies = kill and name in ("eval", "explore")
                watch = kill_one(driver, max(options.questions // 10, 1)) if dies else None
                records |= getattr(parts, name)(watch)
                seconds[name] = time.perf_counter() - started
            deaths = driver.pool.deaths if isinstance(driver, RemoteDriver) else 0
    return records, seconds, deaths


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
    problems = 0
    if set(options.parts) & set(ROLLOUTS):
        problems += same_games(options)
    if "prm" in options.parts:
        problems += same_step_scores(options)
    if "index" in options.parts:
        problems += same_vectors(options)
    return problems


def same_games(options: argparse.Namespace) -> int:
    expected, alone, _ = run_all(None, options)
    print(f"{options.policy}, {options.questions} questions")
    print("one process: " + ", ".join(f"{name} {each:.1f} s" for name, each in alone.items()), flush=True)
    problems = 0
    for kill in (False, True):
        found, seconds, deaths = run_all({"workers": options.workers}, options, kill=kill)
        times = (f"{name} {each:.1f} s ({alone[name] / each:.2f}x)" for name, each in seconds.items())
        print(f"{options.workers} workers{f', {deaths} killed' if kill else ''}: " + ", ".join(times))
        problems += sum(differing(name, expected[name], found[name]) for name in expected)
        problems += kill and deaths != len({"eval", "explore"}.intersection(options.parts))
    return problems


def same_step_scores(options: argparse.Namespace) -> int:
    """Compare the step scores of a small reward model, with those of this process."""
    import torch

    from stepladder.judges.prm.reward_model import ProcessRewardModel, with_scalar_head
    from stepladder.models.tiny import tiny_model, tiny_tokenizer
    from stepladder.pipeline.workers.scoring import step_scores

    scalar = with_scalar_head(tiny_model(), tiny_tokenizer(), "tiny")
    torch.nn.init.normal_(scalar.score.weight, std=0.5, generator=torch.Generator().manual_seed(0))
    shared = {"policy": "tiny", "device": "cpu", "dtype": "fp32"}
    several = RunContext(SharedConfig.read({**shared, "ray": {"workers": options.workers}}))
    with TemporaryDirectory() as parent, closing(RunContext(SharedConfig.read(shared))) as one, closing(several):
        folder = Path(parent) / "reward"
        ProcessRewardModel(scalar, tiny_tokenizer()).save(folder)
        with open_driver(one, ORACLE) as driver:
            questions = one.split("test")[: options.questions]
            episodes = evaluate(driver, one.agent, questions, one.episode(), seed=0).trajectories
        model = ProcessRewardModel.load(folder, device="cpu", dtype="fp32", retokenize=True)
        expected = model.score_logits(episodes)
        cut = model.builder.truncated
        with step_scores(several, model, str(folder)) as score:
            found = score(episodes)
        cut_again = model.builder.truncated - cut
    apart = [
        abs(a - b) for ours, theirs in zip(expected, found, strict=True) for a, b in zip(ours, theirs, strict=True)
    ]
    print(
        f"  prm: {len(apart)} step scores of {len(episodes)} episodes, {options.workers} workers: largest difference "
        f"{max(apart):.1e}; truncated histories {cut} and {cut_again}",
        flush=True,
    )
    return sum(each > 1e-4 for each in apart) + (cut != cut_again)


def same_vectors(options: argparse.Namespace) -> int:
    """Compare the vectors of an index with those of one process."""
    import numpy as np

    from stepladder.pipeline.workers.encoding import encoding_on_workers
    from stepladder.retrieval.index.build import build_index
    from tests.support.encoders import save_encoder

    with TemporaryDirectory() as parent:
        encoder, indexes = save_encoder(Path(parent) / "encoder"), (Path(parent) / "one", Path(parent) / "several")
        passages = list(islice(RunContext(SharedConfig()).data.passages or (), 5 * options.questions))
        for index, config in zip(indexes, (None, RayConfig(workers=options.workers)), strict=True):
            with encoding_on_workers(config, [str(encoder)]):
                build_index(passages, index, "flat", encoder=str(encoder), device="cpu", batch=4)
        one, several = (np.load(index / "vectors.npy") for index in indexes)
    equal = int((one == several).all(axis=1).sum())
    print(f"  index: {equal} of {len(one)} vectors equal to the last bit, {options.workers} workers", flush=True)
    return len(one) - equal


# --- the overhead -------------------------------------------------------------------------------------------------


class SlowEngine(OracleEngine):
    """Takes 2 ms per generation."""

    max_batch = 1

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        time.sleep(CALL_SECONDS)
        return super().generate(requests)


class SlowWorker(RolloutWorker):
    """A worker with the slow engine."""

    def __init__(self, plan: RolloutPlan) -> None:
        super().__init__(plan)
        self.driver = Driver(SlowEngine(self.agent), self.driver.retriever, in_flight=64)


def timed(driver: Driver, context: RunContext, count: int) -> float:
    """Seconds to run the questions."""
    limits = EpisodeConfig()
    questions = context.split("train")[:count]
    jobs = [partial(episode, context.agent, each, limits, seed_of(0, each.id)) for each in questions]
    started = time.perf_counter()
    outcomes = driver.run(jobs)
    assert all(outcome.failure is None for outcome in outcomes)
    return time.perf_counter() - started


def speed(options: argparse.Namespace) -> int:
    context = RunContext(SharedConfig.read({"policy": "nano"}))
    plan = RolloutPlan(context.settings.model_dump(mode="json"), (False, None), ORACLE, None, None, {}, ())
    rows: list[tuple[float, float, float]] = []
    # The first cluster has a core for every worker, also for the single one; the others use it.
    with closing(RayCluster(RayConfig(workers=options.workers + 1))):
        pools = [
            WorkerPool(RayCluster(RayConfig(workers=count)).workers("checks.ray_workers:SlowWorker", plan))
            for count in (1, options.workers)
        ]
        drivers = [Driver(SlowEngine(context.agent), context.retriever, in_flight=64)]
        drivers += [RemoteDriver(pool, in_flight=64) for pool in pools]
        for driver in drivers:  # caches fill
            timed(driver, context, min(options.questions, 20))
        for number in range(options.rounds):  # alternating: the machine may be busy with something else
            order = drivers if number % 2 == 0 else drivers[::-1]
            found = {id(driver): timed(driver, context, options.questions) for driver in order}
            one, single, many = (found[id(driver)] for driver in drivers)
            rows.append((one, single, many))
            print(
                f"round {number + 1}: one process {1e3 * one / options.questions:.2f} ms per question, one worker "
                f"{1e3 * single / options.questions:.2f} ms ({single / one - 1:+.1%}), {options.workers} workers "
                f"{1e3 * many / options.questions:.2f} ms ({one / many:.2f}x)",
                flush=True,
            )
        for pool in pools:
            pool.close()
    overhead = statistics.median(single / one - 1 for one, single, _ in rows)
    faster = statistics.median(one / many for one, _, many in rows)
    print(
        f"{options.questions} questions, medians of {len(rows)} rounds: overhead per question {overhead:+.1%} (must be "
        f"below {LARGEST_OVERHEAD:.0%}), {options.workers} workers {faster:.2f}x as fast as one process"
    )
    return int(overhead >= LARGEST_OVERHEAD)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["same", "speed"])
    parser.add_argument("--parts", default=",".join(PARTS), help="of same")
    parser.add_argument("--policy", default=ORACLE, help="a model, or oracle")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--simulations", type=int, default=4, help="per tree")
    parser.add_argument("--max-tokens", type=int, default=160, help="per step of a model")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7, help="of speed")
    options = parser.parse_args()
    options.parts = options.parts.split(",")
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))}; expected some of {', '.join(PARTS)}")
    problems = same(options) if options.what == "same" else speed(options)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
