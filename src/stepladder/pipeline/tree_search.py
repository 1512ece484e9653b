"""What stages that grow trees have in common: who scores, trees on disk as they are done, what is told of them."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.core.errors import StepladderError
from stepladder.core.step_scorer import StepScorer
from stepladder.core.trace import Question
from stepladder.driver import Driver
from stepladder.driver.progress import Progress
from stepladder.explore.tree_runner import Grow, ThroughputNote, explore
from stepladder.explore.tree_store import read_trees
from stepladder.explore.values import monte_carlo
from stepladder.judges.llm.config import LLMJudgeConfig
from stepladder.judges.llm.llm_scorer import LLMScorer
from stepladder.oracle.step_judge import GoldScorer
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import REWARD, TREES, StageResult, Task

if TYPE_CHECKING:
    from stepladder.judges.llm.local_engine import LocalEngine
    from stepladder.judges.llm.spend.paid import PaidEngine

#: The file of trees.
FILE = "trees.jsonl.gz"
#: Generations that are remembered: those of a few waves of all trees that grow at once.
_REMEMBERED = 16_384


class Grader:
    """Who scores while trees grow: nobody, the gold judge, a reward model, or a language model that may cost."""

    def __init__(self, scorer: StepScorer | None, paid: "PaidEngine | LocalEngine | None" = None) -> None:
        self.scorer = scorer
        self.paid = paid

    @classmethod
    def open(
        cls, name: str | None, llm: LLMJudgeConfig | None, context: RunContext, task: Task, stack: ExitStack
    ) -> "Grader":
        """The grader of that name: gold, prm, llm, or None."""
        shared = context.settings
        if llm is not None:
            paid = stack.enter_context(llm.engine(task.folder, shared.device))
            return cls(LLMScorer(paid, llm.judge("score")), paid)
        if name == "prm":
            from stepladder.judges.prm.reward_model import ProcessRewardModel  # brings torch and transformers

            reward = task.inputs[REWARD]
            loaded = ProcessRewardModel.load(reward, device=shared.device, dtype=shared.dtype, retokenize=True)
            return cls(loaded)
        return cls(GoldScorer() if name == "gold" else None)

    @property
    def note(self) -> Callable[[], str] | None:
        """What it has cost so far, for a progress bar."""
        paid = self.paid
        return None if paid is None else lambda: paid.spend().line()

    def summary(self) -> dict[str, Any]:
        """What became of what it was asked, and what that cost."""
        if self.paid is None or not isinstance(self.scorer, LLMScorer):
            return {}
        return {**self.scorer.judge.summary(), "spend": asdict(self.paid.spend())}


def grow_trees(
    context: RunContext,
    task: Task,
    questions: Sequence[Question],
    grow: Grow,
    *,
    judge: str | None,
    llm: LLMJudgeConfig | None,
    at_once: int,
) -> StageResult:
    """Grow the trees; those that an attempt before has finished are kept."""
    path = task.folder / FILE
    with ExitStack() as stack:
        engine = stack.enter_context(context.engine(task.inputs["policy"]))
        grader = Grader.open(judge, llm, context, task, stack)
        driver = Driver(engine, context.retriever, grader.scorer, in_flight=at_once, generation_cache=_REMEMBERED)
        meter = ThroughputNote(driver.counts, grader.note)
        watch = stack.enter_context(Progress(task.name, len(questions), note=meter))
        explored = explore(driver, questions, grow, path, seed=task.seed, watch=watch)
        judged = grader.summary()
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
