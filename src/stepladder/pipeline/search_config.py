"""Settings of tree search, with the constants of the papers as presets.

    reasonrag   UCT, c 1.414, 2 children, 64 simulations, depth 7, F1 decayed by 0.9 per step
    prorag      PUCT, c 2.5, 5 children, 200 simulations, depth 10, F1 discounted by 0.99 per step
    laptop      as prorag, with few simulations and early stopping: minutes for a small model on a CPU
    server      as prorag, with fewer simulations and kept rollouts: the fewest calls per group of siblings with values

In: the name of a preset and overrides. Out: `ExploreConfig` with every value filled in.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from stepladder.core.config import Config
from stepladder.core.requests import Sampling
from stepladder.core.step_scorer import Derived
from stepladder.explore.episode import EpisodeConfig
from stepladder.explore.mcts import MCTSConfig, Selection
from stepladder.judges.llm.config import LLMJudgeConfig
from stepladder.judges.llm.llm_judge import Mode

_PRORAG = {"selection": "puct", "c": 2.5, "width": 5, "simulations": 200, "depth": 10, "gamma": 0.99}
PRESETS: dict[str, dict[str, Any]] = {
    "reasonrag": {"selection": "uct", "c": 1.414, "width": 2, "simulations": 64, "depth": 7, "decay": 0.9},
    "prorag": {**_PRORAG, "temperature": 0.9, "top_p": 0.95},
    "server": {**_PRORAG, "simulations": 64, "temperature": 0.9, "top_p": 0.95, "keep_rollouts": True},
    "laptop": {**_PRORAG, "simulations": 32, "temperature": 1.2, "patience": 16},
}


class TreeStageConfig(Config):
    """What the stages that grow trees share: the questions, an LLM as scorer, and the concurrency."""

    renamed: ClassVar[dict[str, str]] = {"trees_at_once": "max_concurrent_trees"}

    split: str = "train"
    #: Number of questions, chosen by a seeded shuffle; null is all.
    questions: int | None = Field(default=64, ge=1)
    #: Equally many questions for each number of searches needed.
    balance: bool = True
    #: The LLM that scores or ranks steps, if one does, and its budget.
    llm: LLMJudgeConfig | None = None
    #: Gold judge as scorer: how a step counts that follows from an earlier error: not at all (unjudged), as good, or as
    #: faulty.
    derived: Derived = "unjudged"
    #: Concurrent trees, all of which are in memory.
    max_concurrent_trees: int = Field(default=64, ge=1)

    #: Modes of the LLM that this stage can use; the first is the default.
    llm_modes: ClassVar[tuple[Mode, ...]] = ("value", "score")

    @property
    def uses_gold(self) -> bool:
        """Whether the gold judge scores the steps."""
        return False

    def unused(self) -> Mapping[str, str]:
        """Scores are not compared with each other."""
        return (
            {}
            if self.llm is None
            else {"llm.score_margin": "with an LLM in this stage (its scores make no preferences here)"}
        )

    def inert(self) -> frozenset[str]:
        """`derived`, unless it is set."""
        return super().inert() | (frozenset({"derived"}) if self.derived == "unjudged" else frozenset())

    @model_validator(mode="before")
    @classmethod
    def _mode_of_the_stage(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(llm := data.get("llm"), dict):
            return data
        mode = llm.get("mode", cls.llm_modes[0])
        if mode in get_args(Mode) and mode not in cls.llm_modes:
            raise ValueError(f"llm.mode: expected {' or '.join(cls.llm_modes)} in this stage, found {mode!r}")
        return {**data, "llm": {**llm, "mode": mode}}


class ExploreConfig(TreeStageConfig):
    """The questions to explore, and the search settings of their trees."""

    #: Source of the values below that are not given.
    preset: Literal["reasonrag", "prorag", "server", "laptop"] = "laptop"
    simulations: int = Field(default=200, ge=1)
    #: Steps sampled per state; equal ones become one child.
    width: int = Field(default=5, ge=1)
    depth: int = Field(default=10, ge=1)
    selection: Selection = "puct"
    c: float = Field(default=2.5, ge=0)
    #: Discount per step between a node and the end of an episode.
    gamma: float = Field(default=1.0, gt=0, le=1)
    #: Discount per step between the root and the end of an episode.
    decay: float = Field(default=1.0, gt=0, le=1)
    #: Sampling of children.
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    #: Sampling of rollouts; 0 is greedy.
    rollout_temperature: float = Field(default=0.0, ge=0)
    #: Value of a leaf: a rollout to the end of the episode, or the score of its newest step.
    evaluate: Literal["rollout", "gold", "llm"] = "rollout"
    #: Rollouts expand the states on their way: fewer calls per group of siblings with values, where samples of one
    #: state are one call.
    keep_rollouts: bool = False
    #: Concurrent simulations per tree.
    parallel: int = Field(default=4, ge=1)
    #: Early stopping: stop when no value below the root changed by more than `tolerance` in this many simulations.
    patience: int | None = Field(default=None, ge=1)
    tolerance: float = Field(default=0.01, ge=0)

    @model_validator(mode="after")
    def _llm_and_its_settings(self) -> "ExploreConfig":
        if (self.evaluate == "llm") != (self.llm is not None):
            raise ValueError("evaluate: llm and the settings of the model (llm.model) must be given together")
        return self

    @property
    def uses_gold(self) -> bool:
        return self.evaluate == "gold"

    def unused(self) -> Mapping[str, str]:
        """Settings of rollouts and of early stopping."""
        found = {}
        if self.evaluate != "rollout":
            names = ("rollout_temperature", "keep_rollouts")
            found = dict.fromkeys(names, f"with evaluate: {self.evaluate} (there are no rollouts)")
        if self.evaluate != "gold":
            found["derived"] = f"with evaluate: {self.evaluate} (only the gold judge knows derived steps)"
        if self.patience is None:
            found["tolerance"] = "with patience: null (there is no early stopping)"
        return {**super().unused(), **found}

    def inert(self) -> frozenset[str]:
        """`keep_rollouts`, unless it is set."""
        return super().inert() | (frozenset() if self.keep_rollouts else frozenset({"keep_rollouts"}))

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        preset = data.get("preset", cls.model_fields["preset"].default)
        return {**PRESETS.get(preset, {}), **data} if isinstance(preset, str) else data

    def search(self, episode: EpisodeConfig) -> MCTSConfig:
        """Search settings of one tree, within the limits of an episode."""
        limit = episode.sampling.max_tokens
        same = {field.name for field in fields(MCTSConfig)} - {"evaluate"}
        return MCTSConfig(
            episode=replace(episode, sampling=Sampling(self.temperature, self.top_p, limit)),
            rollout=Sampling(self.rollout_temperature, 1.0, limit),
            evaluate="rollout" if self.evaluate == "rollout" else "score",
            **self.model_dump(include=same),
        )
