"""Settings shared by all trainers: duration, learning rate, precision, LoRA."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from annotated_types import MinLen
from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError, unknown_name
from stepladder.train.loop.trackers import ReportTo

#: The usual optimizer.
ADAMW = "adamw_torch_fused"
#: transformers' optimizers that need no further settings.
OPTIMIZERS = (
    *("adamw_torch", ADAMW, "adamw_torch_8bit", "adamw_torch_4bit", "adamw_8bit", "paged_adamw_8bit"),
    *("paged_adamw_32bit", "adafactor", "lion_32bit", "lion_8bit", "sgd", "adagrad", "rmsprop"),
)


def _known_optimizer(name: str) -> str:
    if name not in OPTIMIZERS:
        raise ValueError(str(unknown_name("optimizer", name, OPTIMIZERS)))
    return name


class LoraConfig(Config):
    """Train low-rank adapters beside the frozen weights. They are merged into the weights at the end."""

    renamed: ClassVar[dict[str, str]] = {
        "rank": "r",
        "alpha": "lora_alpha",
        "dropout": "lora_dropout",
        "targets": "target_modules",
    }

    r: PositiveInt = 16
    lora_alpha: PositiveFloat = 32
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    #: Names of the layers to adapt; all-linear: every linear layer except the output layer.
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"


class TrainingConfig(Config):
    """Settings of any training stage."""

    renamed: ClassVar[dict[str, str]] = {
        "epochs": "num_train_epochs",
        "lr": "learning_rate",
        "batch": "batch_size",
        "accumulate": "gradient_accumulation_steps",
        "warmup": "warmup_ratio",
        "schedule": "lr_scheduler_type",
        "eval_every": "eval_steps",
        "samples": "num_generations",
    }

    #: The learning rate `auto`: below 20M parameters, below 1B, above; and with LoRA.
    auto_rates: ClassVar[tuple[float, float, float]] = (5e-4, 1e-4, 2e-5)
    auto_lora_rate: ClassVar[float] = 2e-4

    num_train_epochs: PositiveFloat = 3
    #: Peak learning rate; auto depends on the size of the model.
    learning_rate: Literal["auto"] | PositiveFloat = "auto"
    #: Examples per update, over all processes and microbatches.
    batch_size: PositiveInt = 8
    #: Microbatches per update; more of them need less memory.
    gradient_accumulation_steps: PositiveInt = 1
    #: Share of the updates over which the learning rate rises to its peak.
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.05
    lr_scheduler_type: Literal["linear", "cosine", "constant"] = "cosine"
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0
    #: None trains all weights.
    lora: LoraConfig | None = None
    #: bf16: mixed precision with fp32 master weights. auto: bf16 on CUDA, fp32 elsewhere.
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    #: Compute activations again in the backward pass instead of keeping them: less memory, about a third more time.
    gradient_checkpointing: bool = False
    #: Optimizer, by transformers' name: adamw_torch, adafactor, adamw_8bit (needs bitsandbytes), sgd, ...
    optim: Annotated[str, AfterValidator(_known_optimizer)] = ADAMW
    #: Updates between evaluations on dev data and between checkpoints; 0: one epoch.
    eval_steps: NonNegativeInt = 0
    #: Experiment trackers besides `curves.jsonl`: tensorboard, wandb, trackio, mlflow. Null: the recipe's `report_to`.
    report_to: ReportTo | None = None

    @model_validator(mode="after")
    def _equal_microbatches(self) -> Self:
        if self.batch_size % self.gradient_accumulation_steps:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of gradient_accumulation_steps "
                f"{self.gradient_accumulation_steps}"
            )
        return self

    def check_processes(self, processes: int) -> None:
        """Raise if this many processes cannot share the batches."""
        parts = self.gradient_accumulation_steps * processes
        if self.batch_size % parts:
            raise StepladderError(
                f"batch_size {self.batch_size} is not a multiple of {parts} (gradient_accumulation_steps "
                f"{self.gradient_accumulation_steps} x {processes} processes): set batch_size, the examples per update "
                f"of all processes, to {-(-self.batch_size // parts) * parts}, or launch another number of processes"
            )

    def inert(self) -> frozenset[str]:
        """Trackers and memory do not change the result; the optimizer is named if it is not the usual one."""
        return frozenset({"report_to", "gradient_checkpointing", *(("optim",) if self.optim == ADAMW else ())})


class PolicyTrainingConfig(TrainingConfig):
    """Settings of stages that train a policy. Checkpoints are evaluated by episodes on dev questions."""

    renamed: ClassVar[dict[str, str]] = {**TrainingConfig.renamed, "score_first": "eval_on_start"}

    #: Dev questions used to select the best checkpoint by F1; with 0 the last checkpoint is kept.
    dev_questions: NonNegativeInt = 60
    #: Evaluate the initial policy as well, and keep it if no checkpoint is as good.
    eval_on_start: bool = False

    def unused(self) -> Mapping[str, str]:
        """Without dev questions nothing is evaluated."""
        return {} if self.dev_questions else {"eval_on_start": "with dev_questions: 0 (nothing is evaluated)"}

    def inert(self) -> frozenset[str]:
        """`eval_on_start`, unless it is set."""
        return super().inert() | (frozenset() if self.eval_on_start else frozenset({"eval_on_start"}))


def selection_questions(settings: object) -> int:
    """How many dev questions the settings of a stage select a checkpoint by."""
    count: int = getattr(settings, "dev_questions", 0)
    return count if getattr(settings, "eval_split", "dev") == "dev" else 0


#: ProRAG's format-aware loss: tags that control the episode weigh more. Tags that an agent does not use never match.
TAG_WEIGHTS = {
    "<answer>": 5.0,
    "</answer>": 5.0,
    "<subquery>": 3.0,
    "</subquery>": 3.0,
    "<subanswer>": 3.0,
    "</subanswer>": 3.0,
    "</step>": 2.0,
}


class TranscriptTrainingConfig(PolicyTrainingConfig):
    """Settings of fine-tuning."""

    #: Loss weights of policy tokens that are part of a tag; all other policy tokens weigh 1.
    tag_weights: dict[Annotated[str, MinLen(1)], PositiveFloat] = TAG_WEIGHTS
    #: Samples: keep a transcript only if its answer and its sub-answers occur in the passages found before them.
    supported: bool = False
    #: Samples: keep transcripts of a question only if at least, and at most, this share of its samples is right. One of
    #: many may be luck; a question that is always answered right has little left to teach.
    least_solved: Annotated[float, Field(ge=0, le=1)] = 0.0
    most_solved: Annotated[float, Field(ge=0, le=1)] = 1.0

    def inert(self) -> frozenset[str]:
        """The rules for samples, unless they are set."""
        rules = ("supported", "least_solved", "most_solved")
        return super().inert() | {
            name for name in rules if getattr(self, name) == type(self).model_fields[name].default
        }

    @model_validator(mode="after")
    def _some_share(self) -> Self:
        if self.least_solved > self.most_solved:
            raise ValueError(
                f"expected least_solved <= most_solved, found {self.least_solved:g} and {self.most_solved:g}"
            )
        return self
