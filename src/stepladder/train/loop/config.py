"""What can be set about any training: how long, how fast, in which precision, of which weights."""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from stepladder.core.config import Config


class LoraConfig(Config):
    """Train small matrices beside the frozen weights. They are merged into the weights at the end."""

    rank: PositiveInt = 16
    alpha: PositiveFloat = 32
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    #: Names of the layers that get them, or all linear ones but the output layer.
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"


class TrainingConfig(Config):
    """How to train."""

    epochs: PositiveFloat = 3
    #: The highest learning rate; auto suits the size of the model.
    lr: Literal["auto"] | PositiveFloat = "auto"
    #: Examples an update.
    batch: PositiveInt = 8
    #: Parts that an update is computed in, one after the other: more of them take less memory.
    accumulate: PositiveInt = 1
    #: Share of the updates in which the learning rate rises.
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.05
    #: How it falls afterwards.
    schedule: Literal["linear", "cosine", "constant"] = "cosine"
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0
    #: None trains all weights.
    lora: LoraConfig | None = None
    #: bf16 computes in bf16 where the processor can, and keeps the weights in fp32; auto is bf16 on CUDA, else fp32.
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    #: Updates between dev scores, and between checkpoints; 0: one epoch.
    eval_every: NonNegativeInt = 0

    @model_validator(mode="after")
    def _in_equal_parts(self) -> Self:
        if self.batch % self.accumulate:
            raise ValueError(f"batch {self.batch} cannot be computed in {self.accumulate} equal parts (accumulate)")
        return self


class PolicyTrainingConfig(TrainingConfig):
    """How to train a policy, which is watched by playing dev questions."""

    #: Dev questions whose F1 decides which checkpoint is the policy; with 0 it is the last.
    dev_questions: NonNegativeInt = 60
    #: Score the policy as it came, too, before the first update: where no checkpoint is as good, it stays what it was.
    score_first: bool = False

    def idle(self) -> frozenset[str]:
        """Settings without effect."""
        return frozenset() if self.score_first else frozenset({"score_first"})
