"""Step scores of a reward model, computed in this process or by the workers of a Ray cluster.

In: a reward model and trajectories. Out: for each trajectory one logit per step, equal up to rounding wherever it is
computed: batches have other sizes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Trajectory
from stepladder.driver.cluster.pool import Lost, WorkerPool
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.workers.rollout_workers import cluster_of

if TYPE_CHECKING:
    from stepladder.judges.prm.reward_model import ProcessRewardModel

_TARGET = "stepladder.pipeline.workers.scoring:StepScoreWorker"
#: Trajectories per item: a batch of them fills the model.
_CHUNK = 64
#: One logit per step of every trajectory.
StepScores = Callable[[Sequence[Trajectory]], list[tuple[float, ...]]]


@dataclass(frozen=True, slots=True)
class ScorePlan:
    """The reward model that a worker opens."""

    folder: str
    device: str
    dtype: str
    retokenize: bool


class StepScoreWorker:
    """A worker: scores steps with a reward model of its own."""

    def __init__(self, plan: ScorePlan) -> None:
        from stepladder.judges.prm.reward_model import ProcessRewardModel

        self.model = ProcessRewardModel.load(
            plan.folder, device=plan.device, dtype=plan.dtype, retokenize=plan.retokenize
        )

    def work(self, items: Iterator[tuple[int, Any] | None]) -> Iterator[tuple[int, Any]]:
        """Scores of each group of trajectories, and how many histories were too long for the model."""
        for item in items:
            if item is not None:
                number, trajectories = item
                before = self.model.builder.truncated
                scores = self.model.score_logits(trajectories)
                yield number, (scores, self.model.builder.truncated - before)

    def report(self) -> None:
        """Nothing to report."""


@contextmanager
def step_scores(context: RunContext, model: "ProcessRewardModel", folder: str) -> Iterator[StepScores]:
    """The scores of the model in this folder, by the workers of the cluster if there is one, else by the model."""
    if context.settings.ray is None:
        yield model.score_logits
        return
    shared = context.settings
    plan = ScorePlan(folder, shared.device, shared.dtype, model.builder.retokenize)
    with closing(WorkerPool(cluster_of(context).workers(_TARGET, plan))) as pool:

        def score(trajectories: Sequence[Trajectory]) -> list[tuple[float, ...]]:
            size = max(1, min(_CHUNK, -(-len(trajectories) // (2 * len(pool)))))
            chunks = [trajectories[start : start + size] for start in range(0, len(trajectories), size)]
            found: dict[int, list[tuple[float, ...]]] = {}
            for index, reply in pool.map(chunks, 2):
                if isinstance(reply, Lost):
                    raise StepladderError(
                        f"the steps of {len(chunks[index])} episodes could not be scored: {reply.reason}"
                    )
                found[index], truncated = reply
                model.builder.truncated += truncated
            return [each for index in range(len(chunks)) for each in found[index]]

        yield score
