"""The stage `explore`: grows search trees with a policy (`explore/mcts.py`).

In: a policy. Out: `trees.jsonl.gz`, one tree per question.
"""

from typing import TYPE_CHECKING

from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm
from stepladder.core.trace import Question, Tree
from stepladder.data.sampling import sample_questions
from stepladder.explore.mcts import mcts_search
from stepladder.judges.llm.config import COST_SETTINGS, PERSISTENT_FILES
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.search_config import ExploreConfig
from stepladder.pipeline.stage import POLICY, TREES, StageResult, StageSpec, Task, expect_answers
from stepladder.pipeline.stage_summary import Numbers, StageSummary, failure_note, judge_lines
from stepladder.pipeline.tree_search import grow_trees

if TYPE_CHECKING:
    from stepladder.judges.llm.spend.estimate import Estimate


def run_explore(settings: ExploreConfig, context: RunContext, task: Task) -> StageResult:
    """Grow one tree per question."""
    split = context.split(settings.split)
    rules = settings.search(context.episode())

    def grow(question: Question, seed: int) -> Algorithm[Tree]:
        return mcts_search(context.agent, question, rules, seed)

    return grow_trees(
        context,
        task,
        sample_questions(split, settings.questions or len(split), task.seed, balance=settings.balance),
        grow,
        scorer=None if settings.evaluate == "rollout" else settings.evaluate,
        llm=settings.llm,
        at_once=settings.max_concurrent_trees,
    )


def dry_run(settings: ExploreConfig, context: RunContext) -> "Estimate":
    """The maximum cost of the judge."""
    if settings.llm is None:
        raise StepladderError(f"evaluate: {settings.evaluate} costs nothing: there is nothing to estimate")
    from stepladder.judges.llm.spend.estimate import estimate_tree_search  # brings the client of OpenAI

    questions = len(context.split(settings.split)[: settings.questions])
    return estimate_tree_search(settings.llm.judge("score"), questions, settings.simulations, settings.llm.price())


def check_explore(settings: ExploreConfig, context: RunContext) -> None:
    """Questions must have answers, there must be an index if the agent searches, and a price for a paid judge."""
    expect_answers(settings.split, context)
    if settings.llm is not None:
        settings.llm.check()


def summarize(numbers: Numbers) -> StageSummary:
    """Trees, what they cost, and how many questions were solved."""
    broken = f"; {numbers['broken']:,} simulations failed" if numbers.get("broken") else ""
    written = "" if numbers["tokens_written"] is None else f"{numbers['tokens_written']:,} tokens written, "
    return (
        f"{numbers['trees']:,} trees, on average {numbers['nodes']:.1f} nodes and {numbers['simulations']:.1f} "
        f"simulations, F1 {numbers['mean_f1']:.2f}; {numbers['solved']:.0%} of the questions solved at least once; "
        f"{written}{numbers['shared']:.0%} of all requests answered from cache{broken}{failure_note(numbers)}"
    ), judge_lines(numbers)


STAGE = StageSpec(
    ExploreConfig,
    run_explore,
    (POLICY,),
    (TREES,),
    check=check_explore,
    summarize=summarize,
    accepts_oracle=True,
    persistent_files=PERSISTENT_FILES,
    not_fingerprinted=frozenset({"max_concurrent_trees", *(f"llm.{name}" for name in COST_SETTINGS)}),
)
