"""Settings of direct preference optimization."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat

from stepladder.train.loop.config import PolicyTrainingConfig


class DPOConfig(PolicyTrainingConfig):
    """DPO on pairs of steps, with ReasonRAG's constants. The examples of an update are pairs.

    learning_rate auto: 5e-5 below 20M parameters, 5e-6 below 1B, else 1e-6 (ReasonRAG's); with LoRA 5e-6.
    """

    renamed: ClassVar[dict[str, str]] = {**PolicyTrainingConfig.renamed, "loss": "loss_type"}

    #: Strength of the KL penalty: the larger, the closer the policy stays to the reference.
    beta: PositiveFloat = 0.3
    #: sigmoid: the DPO paper's loss. ipo: stops increasing the margin of a pair once it is large enough.
    loss_type: Literal["sigmoid", "ipo"] = "sigmoid"
    num_train_epochs: PositiveFloat = 1
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.2
