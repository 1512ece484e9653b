"""A language model as the scorer of a search: grades the steps of a trajectory while a tree grows.

In: trajectories. Out: for each, one score between 0 and 1 a step, or why there is none. Every step is asked about
on its own, with what went before it. In a tree all steps but the last were asked about when their own nodes were
scored: an engine that remembers (`open_judge_engine`) answers those for nothing.
"""

from collections.abc import Sequence
from functools import partial

from stepladder.core.errors import BackendError
from stepladder.core.step_scorer import StepScorer
from stepladder.core.trace import Trajectory
from stepladder.driver import Driver
from stepladder.engines.base import Engine
from stepladder.judges.llm.llm_judge import LLMJudge


class LLMScorer(StepScorer):
    """A step scorer that runs an LLM judge in mode `score` on its own engine."""

    #: One call at a time, of many trajectories: the engine is called from as many threads as it allows.
    max_batch = 1024
    concurrency = 1

    def __init__(self, engine: Engine, judge: LLMJudge | None = None) -> None:
        self.engine = engine
        self.judge = judge or LLMJudge("score")

    def score(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...] | Exception]:
        """For each trajectory one score per step, or the error of its requests."""
        jobs = [partial(self.judge.grade, trajectory) for trajectory in trajectories]
        return [
            BackendError(outcome.failure.reason) if outcome.failure is not None else outcome.value or ()
            for outcome in Driver(self.engine).run(jobs)
        ]
