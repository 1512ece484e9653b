"""Episodes and trees, generated in this process or by the workers of a Ray cluster.

In: a run context, a policy, and how steps are scored. Out: a driver (`open_driver`). With `ray` in the settings each
worker builds agent, engine, retriever and scorer from the same settings. A server that generates or judges is called by
this process, which keeps its budget and its replies in one place.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.agents import name_agent
from stepladder.agents.agent_trust import named_agents
from stepladder.core.io.masking import revealed
from stepladder.core.trace_printer import printable
from stepladder.driver import Counts, Driver
from stepladder.driver.cluster import RayConfig
from stepladder.driver.cluster.pool import WorkerPool
from stepladder.driver.cluster.remote_driver import RemoteDriver, RemoteJob
from stepladder.pipeline.resources import ORACLE, SERVER, RunContext, SharedConfig

if TYPE_CHECKING:
    from stepladder.driver.cluster.ray_cluster import RayCluster

_TARGET = "stepladder.pipeline.workers.rollout_workers:RolloutWorker"


@dataclass(frozen=True, slots=True)
class Scoring:
    """The step scorer of a driver: its name, the folder of a reward model, and options of `ScorerOptions`."""

    name: str
    reward: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """What a worker opens, as plain data. It is sent to the worker alone, and Ray does not store it."""

    settings: dict[str, Any]
    prompted: tuple[bool | None, bool | None]
    policy: str | None
    engine: str | None
    scoring: Scoring | None
    limits: dict[str, int]
    #: Agent files that the user has named.
    named: tuple[str, ...]


class RolloutWorker:
    """A worker: generates episodes with an engine and a retriever of its own."""

    def __init__(self, plan: RolloutPlan) -> None:
        for path in plan.named:
            name_agent(path)
        prompted, remote = plan.prompted
        context = RunContext(SharedConfig.read(plan.settings), prompted=prompted, remote=remote)
        self.agent = context.agent_of(plan.policy or "")
        self._stack = ExitStack()
        self.driver = self._stack.enter_context(
            _own_driver(context, plan.policy, plan.engine, None, plan.scoring, plan.limits)
        )

    def work(self, items: Iterator[tuple[int, Any] | None]) -> Iterator[tuple[int, Any]]:
        """Outcomes by the numbers of their jobs."""
        numbers: list[int] = []

        def jobs() -> Iterator[Any]:
            for item in items:
                if item is None:
                    yield None
                    continue
                number, job = item
                assert isinstance(job, RemoteJob)
                numbers.append(number)
                yield job.job(self.agent)

        for outcome in self.driver.stream(jobs()):
            yield numbers[outcome.index], outcome

    def report(self) -> Counts:
        """The counts of its driver, copied at once: another thread changes them."""
        now = self.driver.counts
        asked, calls = Counter(dict.copy(now.asked)), Counter(dict.copy(now.calls))
        return Counts(asked, now.answered_by_cache, now.merged, calls, now.usage)


@contextmanager
def open_driver(
    context: RunContext,
    policy: str | None,
    engine: str | None = None,
    *,
    folder: Path | None = None,
    scoring: Scoring | None = None,
    **limits: int,
) -> Iterator[Driver]:
    """A driver that generates with a policy, closed on exit. `limits` are of `Driver`; `folder`: of a paid server."""
    if not uses_workers(context, policy, engine, scoring):
        with _own_driver(context, policy, engine, folder, scoring, limits) as own:
            yield own
        return
    plan = RolloutPlan(
        revealed(context.settings.model_dump(mode="json", exclude={"ray"})),
        context.prompted,
        policy,
        engine,
        scoring,
        limits,
        named_agents(),
    )
    with ExitStack() as stack:
        pool = stack.enter_context(closing(WorkerPool(cluster_of(context).workers(_TARGET, plan))))
        # The oracle and the gold judge cost nothing to open; an evaluation asks for them.
        oracle = ORACLE in (policy, engine)
        oracle_engine = stack.enter_context(context.engine(policy, engine)) if oracle else None
        gold = scoring is not None and scoring.name == "gold"
        judges = context.scorer(scoring.name, scoring.reward, **scoring.options) if scoring and gold else None
        batch = 2 * context.settings.batch_size
        in_flight = min(limits.get("in_flight", batch), batch)
        yield RemoteDriver(pool, in_flight=in_flight, engine=oracle_engine, scorer=judges)
        if pool.deaths:
            note = f"{pool.deaths} workers died; their questions were run again"
            context.console.print(printable(note), highlight=False, soft_wrap=True)


def check_cluster(context: RunContext) -> None:
    """Raise if there is a Ray cluster in the settings that cannot be used. Connects to it, or starts it."""
    if context.settings.ray is not None:
        cluster_of(context)


def cluster_of(context: RunContext) -> "RayCluster":
    """The Ray cluster of the settings, which is started if it has no address."""
    from stepladder.driver.cluster.ray_cluster import RayCluster

    if context.cluster is None:
        context.cluster = RayCluster(context.settings.ray or RayConfig(), _files(context.settings))
    return context.cluster


def _files(settings: SharedConfig) -> list[str]:
    """Files and folders of this machine that the settings name: model, agent, prompt, questions, index."""
    data, prompting = settings.data, settings.prompting
    named = [settings.policy, settings.agent, str(prompting.prompt), str(prompting.hint)]
    named += map(str, data.files.values())
    named += [each for text in (data.name, data.index) if text is not None for each in text.split("+")]
    return [name for name in named if Path(name).is_absolute() and Path(name).exists()]


def uses_workers(context: RunContext, policy: str | None, engine: str | None, scoring: Scoring | None) -> bool:
    """Whether the workers of a cluster generate; a note if a cluster is given and they do not."""
    if context.settings.ray is None:
        return False
    served = policy == SERVER or engine == "openai"
    if served or (scoring is not None and scoring.options.get("llm") is not None):
        what = "a server generates" if served else "a language model judges"
        note = f"{what}: this stage runs in one process, which keeps its budget; Ray is not used"
        context.console.print(note, highlight=False, soft_wrap=True)
        return False
    return True


@contextmanager
def _own_driver(
    context: RunContext,
    policy: str | None,
    engine: str | None,
    folder: Path | None,
    scoring: Scoring | None,
    limits: Mapping[str, int],
) -> Iterator[Driver]:
    """A driver with an engine in this process."""
    with ExitStack() as stack:
        retriever = context.retriever
        scorer = None
        if scoring is not None:
            made = context.scorer(scoring.name, scoring.reward, **scoring.options)
            scorer = stack.enter_context(closing(made))
        opened = stack.enter_context(context.engine(policy, engine, folder=folder))
        yield Driver(opened, retriever, scorer, **limits)
