"""Settings of supervised fine-tuning (the warm-up)."""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from stepladder.train.transcripts.config import TranscriptTrainingConfig


class SFTConfig(TranscriptTrainingConfig):
    """Supervised fine-tuning on demonstrations. The examples of an update are transcripts."""

    #: Questions to demonstrate.
    questions: PositiveInt = 300
    #: Sample equally many questions of each number of searches needed, instead of uniformly.
    balance: bool = False
    #: Where demonstrations come from. gold: the gold decomposition. mined: a weak decomposition found in the corpus,
    #: for questions that have only answers. bootstrap: the model itself with few-shot examples. teacher: a model behind
    #: a server. trees: the best branch of each tree that ends with a correct answer; `questions` is ignored.
    source: Literal["gold", "mined", "bootstrap", "teacher", "trees"] = "gold"
    #: An OpenAI-compatible server and its model name. The key is read from OPENAI_API_KEY.
    teacher_url: str | None = None
    teacher_model: str | None = None
    #: Teacher and bootstrap: episodes per question, and their sampling temperature.
    num_generations: PositiveInt = 4
    temperature: NonNegativeFloat = 0.8
    #: Teacher, bootstrap and trees: minimum F1 of a correct answer, and the most transcripts kept per question.
    min_f1: Annotated[float, Field(gt=0, le=1)] = 1.0
    keep: PositiveInt = 1

    @model_validator(mode="after")
    def _teacher_given(self) -> Self:
        if self.source == "teacher" and self.teacher_model is None:
            raise ValueError("source teacher needs teacher_model, and teacher_url unless it is OpenAI's")
        if self.source != "teacher" and (self.teacher_url or self.teacher_model):
            raise ValueError(f"teacher_url and teacher_model need source: teacher, but the source is {self.source}")
        return self
