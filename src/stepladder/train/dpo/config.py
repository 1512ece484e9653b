"""What can be set about direct preference optimisation."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from stepladder.train.loop.config import PolicyTrainingConfig


class DPOConfig(PolicyTrainingConfig):
    """DPO on pairs of steps, with ReasonRAG's constants. Examples of an update are pairs.

    lr auto: 5e-5 below 20M parameters, 5e-6 below 1B, else 1e-6 (ReasonRAG's); with LoRA 5e-6.
    """

    #: How strongly the policy is held to where it began: the larger, the closer it stays.
    beta: PositiveFloat = 0.3
    #: sigmoid is DPO's own; ipo also stops pushing once two steps are far enough apart.
    loss: Literal["sigmoid", "ipo"] = "sigmoid"
    epochs: PositiveFloat = 1
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.2
