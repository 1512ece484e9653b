"""The stage `explore`: grow search trees with a policy. The work is done by explore/.

In: a policy. Out: `trees.jsonl.gz`, a tree a question.
"""

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.driver import Driver, Scorer
from stepladder.errors import StepladderError
from stepladder.explore.runner import Meter, explore
from stepladder.explore.settings import ExploreSettings
from stepladder.explore.store import read_trees
from stepladder.explore.values import monte_carlo
from stepladder.judge.gold import GoldScorer
from stepladder.judge.scorer import LLMScorer
from stepladder.judge.settings import COSTS, KEPT
from stepladder.progress import Progress
from stepladder.stages.base import StageKind, StageResult, Task
from stepladder.train.transcripts import pick
from stepladder.workshop import Workshop

if TYPE_CHECKING:
    from stepladder.judge.estimate import Estimate
    from stepladder.judge.local import LocalEngine
    from stepladder.judge.paid import PaidEngine

#: What is made.
TREES = "trees"
FILE = "trees.jsonl.gz"
#: Generations that are remembered: those of a few waves of all trees that grow at once.
_REMEMBERED = 16_384


def run_explore(settings: ExploreSettings, workshop: Workshop, task: Task) -> StageResult:
    """Grow the trees; those that an attempt before has finished are kept."""
    split = workshop.split(settings.split)
    questions = pick(split, settings.questions or len(split), task.seed, balance=settings.balance)
    path = task.folder / FILE
    with ExitStack() as stack:
        engine = stack.enter_context(workshop.engine(task.inputs["policy"]))
        scorer: Scorer | None = GoldScorer() if settings.evaluate == "gold" else None
        paid: PaidEngine | LocalEngine | None = None
        if settings.llm is not None:
            paid = stack.enter_context(settings.llm.engine(task.folder, workshop.settings.device))
            scorer = LLMScorer(paid, settings.llm.judge("score"))
        driver = Driver(
            engine,
            workshop.retriever,
            scorer,
            in_flight=settings.trees_at_once,
            generation_cache=_REMEMBERED,
        )
        meter = Meter(driver.counts, None if paid is None else lambda: paid.spend().line())
        watch = stack.enter_context(Progress(task.name, len(questions), note=meter))
        rules = settings.search(workshop.episode())
        explored = explore(driver, workshop.agent, questions, rules, path, seed=task.seed, watch=watch)
        judged: dict[str, Any] = {}
        if paid is not None and isinstance(scorer, LLMScorer):
            judged = {**scorer.judge.summary(), "spend": asdict(paid.spend())}
    if explored.failures.total() == len(questions):
        path.unlink()  # there is nothing in it to go on from
        raise StepladderError(f"{task.name}: every tree failed: {next(iter(explored.failures))}")
    summary = {
        "trees": explored.made + explored.known,
        **tree_numbers(path),
        "failed": explored.failures.total(),
        "failures": dict(explored.failures.most_common(3)),
        # Of an attempt that was cut nobody knows.
        "tokens_written": driver.counts.usage.written if explored.known == 0 else None,
        "shared": round(meter.shared, 3),
        **judged,
    }
    return StageResult(summary, {TREES: path})


def tree_numbers(path: Path) -> dict[str, float]:
    """What the trees of a file are like on average; `broken` counts the simulations of all of them that failed."""
    trees = nodes = simulations = broken = 0
    solved = mean = 0.0
    for tree in read_trees(path):
        trees += 1
        nodes += len(tree.nodes)
        simulations += tree.nodes[0].visits
        broken += tree.failures
        outcomes = [node.reward for node in tree.nodes if node.reward is not None]
        outcomes += [rollout.reward for node in tree.nodes for rollout in node.rollouts]
        solved += max(outcomes, default=0.0) >= 1.0
        mean += monte_carlo(tree)[0] or 0.0
    return {
        "nodes": nodes / trees,
        "simulations": simulations / trees,
        "mean_f1": mean / trees,
        "solved": solved / trees,
        "broken": broken,
    }


def dry_run(settings: ExploreSettings, workshop: Workshop) -> "Estimate":
    """What the judge of these settings would cost at most."""
    if settings.llm is None:
        raise StepladderError(f"leaves valued by '{settings.evaluate}' cost nothing: there is nothing to estimate")
    from stepladder.judge.estimate import estimate_growth  # brings the client of OpenAI

    questions = len(workshop.split(settings.split)[: settings.questions])
    return estimate_growth(settings.llm.judge("score"), questions, settings.simulations, settings.llm.price())


def check_explore(settings: ExploreSettings, workshop: Workshop) -> None:
    """There must be questions with answers, an index if the agent searches, and a model that can be paid for."""
    split = workshop.split(settings.split)
    if not any(question.answers for question in split):
        raise StepladderError(f"no question of the split '{settings.split}' has an answer: nothing could be valued")
    workshop.check_index()
    if settings.llm is not None:
        settings.llm.check()


KIND = StageKind(
    ExploreSettings,
    run_explore,
    makes=(TREES,),
    check=check_explore,
    plays_gold=True,
    keeps=KEPT,
    free=frozenset({"trees_at_once", *(f"llm.{name}" for name in COSTS)}),
)
