"""Settings of guided inference (best-of-n, beam search, MCTS), and the step scorer they name."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from stepladder.core.config import Config
from stepladder.core.step_scorer import Derived
from stepladder.explore.guided import Aggregate, Guide
from stepladder.judges.prm import scores_after_retrieval
from stepladder.pipeline.workers.rollout_workers import Scoring

#: Settings that only some strategies use.
_USED_BY = {
    "beams": ("beam",),
    "aggregate": ("beam", "trajectories"),
    "weighted": ("actions", "beam", "trajectories"),
    "simulations": ("mcts",),
}


class GuideConfig(Config):
    """Guided inference: sample several candidates and choose the best."""

    #: Chosen by the score of a reward model, by the gold judge (an upper bound), or by majority vote over answers.
    by: Literal["prm", "gold", "vote"] = "prm"
    #: Gold judge: how a step counts that follows from an earlier error: not at all (unjudged), as good, or as faulty.
    derived: Derived = "unjudged"
    #: Best of n per step, beam search over steps, best of n episodes, or Monte Carlo tree search.
    strategy: Literal["actions", "beam", "trajectories", "mcts"] = "actions"
    #: Samples per step, or per question for whole episodes.
    n: int = Field(default=8, ge=1)
    #: Beam: beam width.
    beams: int = Field(default=2, ge=1)
    #: Beam and trajectories: how step scores are aggregated to the score of a trajectory.
    aggregate: Aggregate = "min"
    #: Multiply each score by the number of equal samples.
    weighted: bool = False
    #: MCTS: simulations per question.
    simulations: int = Field(default=32, ge=1)
    #: Sampling of candidates; not greedy, because greedy samples are all equal.
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)

    def unused(self) -> Mapping[str, str]:
        """Settings of other strategies."""
        strategy = self.guide().strategy
        found = {
            name: f"with the strategy {strategy} (it is for {' or '.join(strategies)})"
            for name, strategies in _USED_BY.items()
            if strategy not in strategies
        }
        if self.by != "gold":
            found["derived"] = f"with by: {self.by} (only the gold judge knows derived steps)"
        vote = {"strategy": "with by: vote (it chooses among the answers of whole episodes)"}
        return {**vote, **found} if self.by == "vote" else found

    def inert(self) -> frozenset[str]:
        """`derived`, unless it is set."""
        return super().inert() | (frozenset({"derived"}) if self.derived == "unjudged" else frozenset())

    def describe(self) -> dict[str, object]:
        """The settings that have an effect, for the description of a result."""
        guide = self.guide()
        used = [name for name, strategies in _USED_BY.items() if guide.strategy in strategies]
        plain = self.model_dump(include={"by", "n", "temperature", "top_p", *used})
        return {**plain, "strategy": guide.strategy}

    def guide(self, reward: str | None = None) -> Guide:
        """The settings for `explore.guided`. `reward`: as for `scoring`."""
        same = self.model_dump(include={"n", "beams", "aggregate", "weighted", "simulations"})
        reads_passages = self.by == "gold" or (reward is not None and scores_after_retrieval(reward))
        return Guide("vote" if self.by == "vote" else self.strategy, retrieve_first=reads_passages, **same)

    def scoring(self, reward: str | None) -> Scoring | None:
        """The step scorer, or None for a vote. `reward` is the folder of the reward model, for `by: prm`."""
        return None if self.by == "vote" else Scoring(self.by, reward, {"derived": self.derived})
