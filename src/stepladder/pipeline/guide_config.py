"""What can be set about guided inference, and the scorer that it names."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Self

from pydantic import Field, model_validator

from stepladder.core.config import Config
from stepladder.core.step_scorer import StepScorer
from stepladder.explore.guided import Aggregate, Guide
from stepladder.judges.base import ScorerOptions
from stepladder.judges.registry import make_scorer

#: Strategies for which a setting counts, where that is not all of them.
_COUNT_FOR = {
    "beams": ("beam",),
    "aggregate": ("beam", "trajectories"),
    "weighted": ("actions", "beam", "trajectories"),
    "simulations": ("mcts",),
}


class GuideConfig(Config):
    """Sample more than one needs, and choose."""

    #: Who chooses: a reward model, the gold judge (to see what a perfect one would bring), or the most common answer.
    by: Literal["prm", "gold", "vote"] = "prm"
    #: Among what: samples of every step, of every step of several states, whole episodes, or in a search tree.
    strategy: Literal["actions", "beam", "trajectories", "mcts"] = "actions"
    #: Samples of a step, or of an episode.
    n: int = Field(default=8, ge=1)
    #: Beam: states that are kept.
    beams: int = Field(default=2, ge=1)
    #: Beam and trajectories: what the scores of all steps make of a trajectory.
    aggregate: Aggregate = "min"
    #: Multiply scores by the samples that say the same.
    weighted: bool = False
    #: MCTS: simulations a question.
    simulations: int = Field(default=32, ge=1)
    #: How samples are drawn; equal ones would leave nothing to choose.
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)

    @model_validator(mode="after")
    def _nothing_is_said_in_vain(self) -> Self:
        # What a recipe in full says of all settings are their defaults.
        fields, strategy = type(self).model_fields, self.guide().strategy
        given = {name for name, field in fields.items() if getattr(self, name) != field.default}
        if self.by == "vote" and "strategy" in given:
            raise ValueError("a vote is among the answers of whole episodes: leave out the strategy")
        for name, counts in _COUNT_FOR.items():
            if name in given and strategy not in counts:
                raise ValueError(f"{name} counts for the strategy {' or '.join(counts)}, and not for {strategy}")
        return self

    def told(self) -> dict[str, object]:
        """What was used, for those who read a result."""
        guide = self.guide()
        used = [name for name, counts in _COUNT_FOR.items() if guide.strategy in counts]
        plain = self.model_dump(include={"by", "n", "temperature", "top_p", *used})
        return {**plain, "strategy": guide.strategy}

    def guide(self) -> Guide:
        """How to choose."""
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
        """Who scores; `reward` is the folder of the reward model, where one chooses."""
        # Any policy, also one with another tokenizer or behind a server: its text is encoded again if necessary.
        yield None if self.by == "vote" else make_scorer(self.by, ScorerOptions(reward, device, dtype))
