"""The stage `explore`: grows search trees with a policy (`explore/mcts.py`).

In: a policy. Out: `trees.jsonl.gz`, one tree per question.
"""

from functools import partial
from typing import TYPE_CHECKING

from stepladder.agents import Agent
from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm
from stepladder.core.trace import Question, Tree
from stepladder.engines.openai.server_config import POLICY_FILES
from stepladder.explore.mcts import MCTSConfig, mcts_search
from stepladder.judges.llm.config import COST_SETTINGS, PERSISTENT_FILES
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.search_config import ExploreConfig
from stepladder.pipeline.stage import POLICY, TREES, StageResult, StageSpec, Task
from stepladder.pipeline.stage_summary import Numbers, StageSummary, failure_note, judge_lines, policy_lines
from stepladder.pipeline.tree_search import check_tree_stage, grow_trees, tree_labels

if TYPE_CHECKING:
    from stepladder.judges.llm.estimate import Estimate


def run_explore(settings: ExploreConfig, context: RunContext, task: Task) -> StageResult:
    """Grow one tree per question."""
    grow = partial(mcts_tree, context.agent_of(task.inputs[POLICY]), settings.search(context.episode()))
    scorer = None if settings.evaluate == "rollout" else settings.evaluate
    return grow_trees(context, task, settings, grow, scorer=scorer)


def mcts_tree(agent: Agent, rules: MCTSConfig, question: Question, seed: int) -> Algorithm[Tree]:
    """The tree of one question. A function of its own, so that workers can be sent its arguments."""
    return mcts_search(agent, question, rules, seed)


def dry_run(settings: ExploreConfig, context: RunContext) -> "Estimate":
    """The maximum cost of the judge."""
    if settings.llm is None:
        raise StepladderError(f"evaluate: {settings.evaluate} costs nothing: there is nothing to estimate")
    from stepladder.judges.llm.estimate import estimate_tree_search

    questions = len(context.split(settings.split)[: settings.questions])
    return estimate_tree_search(settings.llm.judge(), questions, settings.simulations, settings.llm.price())


def summarize(numbers: Numbers) -> StageSummary:
    """Trees, what they cost, and how many questions were solved."""
    broken = f"; {numbers['broken']:,} simulations failed" if numbers.get("broken") else ""
    written = "" if numbers["tokens_written"] is None else f"{numbers['tokens_written']:,} tokens written, "
    return (
        f"{numbers['trees']:,} trees, on average {numbers['nodes']:.1f} nodes and {numbers['simulations']:.1f} "
        f"simulations, F1 {numbers['mean_f1']:.2f}; {numbers['solved']:.0%} of the questions solved at least once; "
        f"{written}{numbers['shared']:.0%} of all requests answered from cache{broken}{failure_note(numbers)}"
    ), {**judge_lines(numbers), **policy_lines(numbers)}


STAGE = StageSpec(
    ExploreConfig,
    run_explore,
    (POLICY,),
    (TREES,),
    check=check_tree_stage,
    accepts_oracle=True,
    accepts_server=True,
    persistent_files=(*PERSISTENT_FILES, *POLICY_FILES),
    not_fingerprinted=frozenset({"max_concurrent_trees", *(f"llm.{name}" for name in COST_SETTINGS)}),
    summarize=summarize,
    labels=tree_labels,
)
