"""What can be set about the warm-up."""

from typing import Annotated, Literal, Self

from annotated_types import MinLen
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from stepladder.settings import Settings

#: ProRAG's format-aware loss: tags that decide what happens next count more. Tags an agent does not use never match.
TAG_WEIGHTS = {
    "<answer>": 5.0,
    "</answer>": 5.0,
    "<subquery>": 3.0,
    "</subquery>": 3.0,
    "<subanswer>": 3.0,
    "</subanswer>": 3.0,
    "</step>": 2.0,
}


class LoraSettings(Settings):
    """Train small matrices beside the frozen weights. They are merged into the weights at the end."""

    rank: PositiveInt = 16
    alpha: PositiveFloat = 32
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    #: Names of the layers that get them, or all linear ones but the output layer.
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"


class SFTSettings(Settings):
    """Supervised fine-tuning on transcripts."""

    # What to train on
    #: Questions to make transcripts of.
    questions: PositiveInt = 300
    #: Take as many questions of each number of searches needed as there are, instead of a plain sample.
    balance: bool = False
    #: Who plays them: the gold decomposition, a teacher behind a server, or the model itself with worked examples.
    source: Literal["gold", "teacher", "bootstrap"] = "gold"
    #: An OpenAI-compatible server and the name of the model there. The key comes from OPENAI_API_KEY.
    teacher_url: str | None = None
    teacher_model: str | None = None
    #: Teacher and bootstrap: episodes a question, and how they are sampled.
    samples: PositiveInt = 4
    temperature: NonNegativeFloat = 0.8
    #: Teacher and bootstrap: the F1 from which an answer counts as right, and most transcripts kept of a question.
    min_f1: Annotated[float, Field(gt=0, le=1)] = 1.0
    keep: PositiveInt = 1

    # How to train
    epochs: PositiveFloat = 3
    #: The highest learning rate. auto: 5e-4 below 20M parameters, 1e-4 below 1B, else 2e-5; with LoRA 2e-4.
    lr: Literal["auto"] | PositiveFloat = "auto"
    #: Transcripts an update.
    batch: PositiveInt = 8
    #: Parts that an update is computed in, one after the other: more of them take less memory.
    accumulate: PositiveInt = 1
    #: Share of the updates in which the learning rate rises.
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.05
    #: How it falls afterwards.
    schedule: Literal["linear", "cosine", "constant"] = "cosine"
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0
    #: What a policy token that spells a tag counts in the loss; all others count 1.
    tag_weights: dict[Annotated[str, MinLen(1)], PositiveFloat] = TAG_WEIGHTS
    #: None trains all weights.
    lora: LoraSettings | None = None
    #: bf16 computes in bf16 and keeps the weights in fp32; auto is bf16 on CUDA, else fp32.
    precision: Literal["auto", "fp32", "bf16"] = "auto"

    # How to watch it
    #: Dev questions whose F1 decides which checkpoint is the policy; with 0 it is the last.
    dev_questions: NonNegativeInt = 60
    #: Updates between dev scores, and between checkpoints; 0: one epoch.
    eval_every: NonNegativeInt = 0

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.batch % self.accumulate:
            raise ValueError(f"batch {self.batch} cannot be computed in {self.accumulate} equal parts (accumulate)")
        if self.source == "teacher" and self.teacher_model is None:
            raise ValueError("source teacher needs teacher_model, and teacher_url unless it is OpenAI's")
        if self.source != "teacher" and (self.teacher_url or self.teacher_model):
            raise ValueError(
                f"a teacher was given, but the source is {self.source}: leave it out, or say source teacher"
            )
        return self
