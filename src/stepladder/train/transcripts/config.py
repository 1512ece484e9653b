"""Settings of fine-tuning on transcripts, shared by SFT and RFT."""

from typing import Annotated

from annotated_types import MinLen
from pydantic import PositiveFloat

from stepladder.train.loop.config import PolicyTrainingConfig

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
