"""Settings of direct preference optimization."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat

from stepladder.train.loop.config import PolicyTrainingConfig


class DPOConfig(PolicyTrainingConfig):
    """DPO on pairs of steps, with ReasonRAG's constants. The examples of an update are pairs."""

    #: A tenth of fine-tuning's, because a pair pushes two steps apart without bound; the last is ReasonRAG's.
    auto_rates = (5e-5, 5e-6, 1e-6)
    auto_lora_rate = 5e-6

    renamed: ClassVar[dict[str, str]] = {**PolicyTrainingConfig.renamed, "loss": "loss_type"}

    #: Strength of the KL penalty: the larger, the closer the policy stays to the reference.
    beta: PositiveFloat = 0.3
    #: sigmoid: the DPO paper's loss. ipo: stops increasing the margin of a pair once it is large enough.
    loss_type: Literal["sigmoid", "ipo"] = "sigmoid"
    num_train_epochs: PositiveFloat = 1
    #: Train on text of a model behind a server, whose token ids are unknown: it is encoded with this model's tokenizer.
    reencode: bool = False
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.2

    def unused(self) -> Mapping[str, str]:
        """Nothing: without dev questions, `eval_on_start` evaluates held-out pairs."""
        return {}

    def inert(self) -> frozenset[str]:
        """`reencode` allows, and changes nothing."""
        return super().inert() | {"reencode"}
