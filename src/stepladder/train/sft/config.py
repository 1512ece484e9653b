"""What can be set about the warm-up."""

from typing import Annotated, Literal, Self

from annotated_types import MinLen
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from stepladder.train.loop.config import PolicyTrainingConfig

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


class TranscriptTrainingConfig(PolicyTrainingConfig):
    """How to train on transcripts. lr auto: 5e-4 below 20M parameters, 1e-4 below 1B, else 2e-5; with LoRA 2e-4."""

    #: What a policy token that spells a tag counts in the loss; all others count 1.
    tag_weights: dict[Annotated[str, MinLen(1)], PositiveFloat] = TAG_WEIGHTS


class SFTConfig(TranscriptTrainingConfig):
    """Supervised fine-tuning on transcripts: who writes them. Examples of an update are transcripts."""

    #: Questions to make transcripts of.
    questions: PositiveInt = 300
    #: Take as many questions of each number of searches needed as there are, instead of a plain sample.
    balance: bool = False
    #: Who plays them: the gold decomposition; one that is mined from the corpus, where there are only answers; the
    #: model itself with worked examples; a teacher behind a server. Or the best branches of trees, all of those that
    #: end with a right answer; then `questions` does not count.
    source: Literal["gold", "mined", "bootstrap", "teacher", "trees"] = "gold"
    #: An OpenAI-compatible server and the name of the model there. The key comes from OPENAI_API_KEY.
    teacher_url: str | None = None
    teacher_model: str | None = None
    #: Teacher and bootstrap: episodes a question, and how they are sampled.
    samples: PositiveInt = 4
    temperature: NonNegativeFloat = 0.8
    #: Teacher, bootstrap and trees: the F1 from which an answer counts as right; most transcripts kept of a question.
    min_f1: Annotated[float, Field(gt=0, le=1)] = 1.0
    keep: PositiveInt = 1

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.source == "teacher" and self.teacher_model is None:
            raise ValueError("source teacher needs teacher_model, and teacher_url unless it is OpenAI's")
        if self.source != "teacher" and (self.teacher_url or self.teacher_model):
            raise ValueError(
                f"a teacher was given, but the source is {self.source}: leave it out, or say source teacher"
            )
        return self
