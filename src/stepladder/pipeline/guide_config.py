"""Settings of guided inference (best-of-n, beam search, MCTS), and the step scorer they name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Self

from pydantic import Field, model_validator

from stepladder.core.config import Config
from stepladder.core.step_scorer import StepScorer
from stepladder.explore.guided import Aggregate, Guide
from stepladder.judges.base import ScorerOptions
from stepladder.judges.registry import make_scorer

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

    @model_validator(mode="after")
    def _no_unused_settings(self) -> Self:
        # Defaults are accepted: the recipe in a run folder lists every setting.
        fields, strategy = type(self).model_fields, self.guide().strategy
        given = {name for name, field in fields.items() if getattr(self, name) != field.default}
        if self.by == "vote" and "strategy" in given:
            raise ValueError("by: vote chooses among the answers of whole episodes: remove the strategy")
        for name, strategies in _USED_BY.items():
            if name in given and strategy not in strategies:
                raise ValueError(f"{name} is for the strategy {' or '.join(strategies)}, not for {strategy}")
        return self

    def describe(self) -> dict[str, object]:
        """The settings that have an effect, for the description of a result."""
        guide = self.guide()
        used = [name for name, strategies in _USED_BY.items() if guide.strategy in strategies]
        plain = self.model_dump(include={"by", "n", "temperature", "top_p", *used})
        return {**plain, "strategy": guide.strategy}

    def guide(self) -> Guide:
        """The settings for `explore.guided`."""
        return Guide(
            "vote" if self.by == "vote" else self.strategy,
            self.n,
            self.beams,
            self.aggregate,
            self.weighted,
            self.simulations,
            retrieve_first=self.by == "gold",
        )

    @contextmanager
    def scorer(self, reward: str | None, device: str, dtype: str) -> Iterator[StepScorer | None]:
        """The step scorer, or None for a vote. `reward` is the folder of the reward model, for `by: prm`."""
        yield None if self.by == "vote" else make_scorer(self.by, ScorerOptions(reward, device, dtype))
