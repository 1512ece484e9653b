"""What stages that grow trees have in common: who scores, trees on disk as they are done, what is told of them."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Question
from stepladder.driver import Driver
from stepladder.driver.progress import Progress
from stepladder.explore.tree_runner import Grow, ThroughputNote, explore
from stepladder.explore.tree_store import read_trees
from stepladder.explore.values import monte_carlo
from stepladder.judges.base import ScorerOptions
from stepladder.judges.llm.config import LLMJudgeConfig
from stepladder.judges.registry import make_scorer
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import REWARD, TREES, StageResult, Task

#: The file of trees.
FILE = "trees.jsonl.gz"
#: Generations that are remembered: those of a few waves of all trees that grow at once.
_REMEMBERED = 16_384


def grow_trees(
    context: RunContext,
    task: Task,
    questions: Sequence[Question],
    grow: Grow,
    *,
    scorer: str | None,
    llm: LLMJudgeConfig | None,
    at_once: int,
) -> StageResult:
    """Grow the trees; those that an attempt before has finished are kept."""
    path = task.folder / FILE
    with ExitStack() as stack:
        engine = stack.enter_context(context.engine(task.inputs["policy"]))
        scores = None
        if scorer is not None:
            shared = context.settings
            options = ScorerOptions(
                task.inputs.get(REWARD), shared.device, shared.dtype, llm=llm, folder=task.folder
            )
            scores = stack.enter_context(closing(make_scorer(scorer, options)))
        driver = Driver(engine, context.retriever, scores, in_flight=at_once, generation_cache=_REMEMBERED)
        meter = ThroughputNote(driver.counts, scores.cost if scores is not None else None)
        watch = stack.enter_context(Progress(task.name, len(questions), note=meter))
        explored = explore(driver, questions, grow, path, seed=task.seed, watch=watch)
        judged = scores.summary() if scores is not None else {}
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
