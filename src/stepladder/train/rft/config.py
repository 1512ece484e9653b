"""What can be set about refinement by rejection sampling."""

from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveInt

from stepladder.train.sft.config import TranscriptTrainingConfig


class RFTConfig(TranscriptTrainingConfig):
    """Which questions are sampled, and which samples are good enough to learn from. Examples are transcripts."""

    #: Questions to sample, and episodes of each.
    questions: PositiveInt = 256
    samples: PositiveInt = 8
    #: Take as many questions of each number of searches needed as there are, instead of a plain sample.
    balance: bool = False
    temperature: NonNegativeFloat = 0.8
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    #: The F1 from which an answer counts as right; an exact match always does.
    min_f1: Annotated[float, Field(gt=0, le=1)] = 1.0
    #: The score that every step must reach, as the reward model gives it (a logit); null asks no reward model.
    threshold: float | None = 0.0
    #: Transcripts of another tokenizer than the reward model's: encode their text anew, instead of refusing them.
    reencode: bool = False
    #: Most different transcripts kept of a question.
    keep: PositiveInt = 2
    epochs: Annotated[float, Field(gt=0)] = 1
