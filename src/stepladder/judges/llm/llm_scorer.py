"""A language model as step scorer, for example to value the leaves of a search tree.

In: trajectories. Out: for each, one score between 0 and 1 per step, or an error. Every step is a request of its own
that contains its history. In a tree all steps but the last were scored with their own nodes: a `CachedEngine` answers
them from its response cache.
"""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from stepladder.core.errors import BackendError
from stepladder.core.step_scorer import StepScorer
from stepladder.core.trace import Trajectory
from stepladder.driver import Driver
from stepladder.engines.base import Engine
from stepladder.judges.llm.llm_judge import LLMJudge
from stepladder.judges.llm.spend.response_cache import CachedEngine


class LLMScorer(StepScorer):
    """A step scorer that runs an LLM judge in mode `score` on its own engine."""

    #: One call with many trajectories at a time; the inner driver uses the engine's own concurrency.
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

    def cost(self) -> str:
        """What the engine has spent so far."""
        return self.engine.spend().line() if isinstance(self.engine, CachedEngine) else ""

    def summary(self) -> dict[str, Any]:
        """The judge's counts and problems, and the spend of its engine."""
        spend = {"spend": asdict(self.engine.spend())} if isinstance(self.engine, CachedEngine) else {}
        return {**self.judge.summary(), **spend}

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()
