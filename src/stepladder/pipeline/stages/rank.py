"""The stage `rank`: RAG-Gym's process data. Several actions are sampled at every step, and the best one is taken.

In: a policy and, with judge `prm`, a reward model. Out: `trees.jsonl.gz`, one branch with its siblings per question.
Later stages use it: `sft` (source `trees`) imitates branches that end with a right answer, `pairs` (judge `rank`) pairs
the best action of a state with the worst, for `dpo` and `prm`.
"""

from collections.abc import Mapping
from functools import partial

from pydantic import Field, model_validator

from stepladder.agents import Agent
from stepladder.core.requests import Algorithm
from stepladder.core.trace import Question, Tree
from stepladder.engines.openai.server_config import POLICY_FILES
from stepladder.explore.episode import EpisodeConfig
from stepladder.explore.ranked import ranked
from stepladder.judges.llm.config import COST_SETTINGS, PERSISTENT_FILES
from stepladder.judges.registry import ScorerName, scorers
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.search_config import TreeStageConfig
from stepladder.pipeline.stage import POLICY, REWARD, TREES, StageResult, StageSpec, Task
from stepladder.pipeline.stage_summary import Numbers, StageSummary, failure_note, judge_lines, policy_lines
from stepladder.pipeline.tree_search import check_tree_stage, grow_trees, tree_labels


class RankConfig(TreeStageConfig):
    """Questions, actions per step, and the scorer that ranks them."""

    llm_modes = ("ranking", "score", "value")

    #: Actions sampled per step; equal ones count once.
    n: int = Field(default=10, ge=1)
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    #: The ranking: by the gold judge, a reward model, or an LLM, which ranks the actions of a state jointly (RAG-Gym).
    judge: ScorerName = "gold"
    max_concurrent_trees: int = Field(default=256, ge=1)

    @property
    def uses_gold(self) -> bool:
        return self.judge == "gold"

    def unused(self) -> Mapping[str, str]:
        """Settings of the gold judge."""
        only = "(only the gold judge knows derived steps)"
        return {**super().unused(), **({} if self.judge == "gold" else {"derived": f"with judge: {self.judge} {only}"})}

    @model_validator(mode="after")
    def _llm_and_its_settings(self) -> "RankConfig":
        if scorers().get(self.judge).uses_llm != (self.llm is not None):
            raise ValueError("judge: llm and the settings of the model (llm.model) must be given together")
        return self


def run_rank(settings: RankConfig, context: RunContext, task: Task) -> StageResult:
    """Run one episode per question with the best action at every step."""
    jointly = settings.llm is not None and settings.llm.mode == "ranking"
    limits = context.episode(settings.temperature, settings.top_p)
    grow = partial(ranked_tree, context.agent_of(task.inputs[POLICY]), limits, settings.n, jointly)
    return grow_trees(context, task, settings, grow, scorer=settings.judge)


def ranked_tree(
    agent: Agent, limits: EpisodeConfig, n: int, jointly: bool, question: Question, seed: int
) -> Algorithm[Tree]:
    """The tree of one question. A function of its own, so that workers can be sent its arguments."""
    return ranked(agent, question, limits, seed, n=n, jointly=jointly)


def summarize(numbers: Numbers) -> StageSummary:
    """Distinct actions per question, and how often a right answer was among them."""
    written = "" if numbers["tokens_written"] is None else f"; {numbers['tokens_written']:,} tokens written"
    return (
        f"{numbers['trees']:,} questions, on average {numbers['nodes'] - 1:.1f} distinct actions; a right answer was "
        f"among them for {numbers['solved']:.0%}{written}{failure_note(numbers)}"
    ), {**judge_lines(numbers), **policy_lines(numbers)}


STAGE = StageSpec(
    RankConfig,
    run_rank,
    (POLICY, REWARD),
    (TREES,),
    unused_inputs=lambda settings: frozenset(() if scorers().get(settings.judge).uses_prm else {REWARD}),
    check=check_tree_stage,
    accepts_server=True,
    persistent_files=(*PERSISTENT_FILES, *POLICY_FILES),
    not_fingerprinted=frozenset({"max_concurrent_trees", *(f"llm.{name}" for name in COST_SETTINGS)}),
    summarize=summarize,
    labels=tree_labels,
)
