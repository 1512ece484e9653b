"""Settings of supervised fine-tuning (the warm-up)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveInt, model_validator

from stepladder.engines.openai.server_config import valid_budget
from stepladder.engines.spend.prices import PriceTable
from stepladder.train.loop.config import TranscriptTrainingConfig

#: Files of a teacher in the folder of a stage. They stay valid when settings change.
TEACHER_FILES = ("teacher-replies.jsonl", "teacher-spend.jsonl")


class SFTConfig(TranscriptTrainingConfig):
    """Supervised fine-tuning on demonstrations. The examples of an update are transcripts."""

    #: Questions to demonstrate.
    questions: PositiveInt = 300
    #: Sample equally many questions of each number of searches needed, instead of uniformly.
    balance: bool = False
    #: Where demonstrations come from. gold: the gold decomposition. mined: a weak decomposition found in the corpus,
    #: for questions that have only answers. bootstrap: the model itself with few-shot examples. teacher: a model behind
    #: a server. trees: the best branch of each tree that ends with a correct answer.
    source: Literal["gold", "mined", "bootstrap", "teacher", "trees"] = "gold"
    #: An OpenAI-compatible server and its model name. The key is read from OPENAI_API_KEY.
    teacher_url: str | None = None
    teacher_model: str | None = None
    #: Spending limit of the teacher, over all attempts to run the stage: 5usd, 2Mtok. Null is no limit.
    teacher_budget: Annotated[str, AfterValidator(valid_budget)] | None = None
    #: A price file (YAML) in addition to the shipped one.
    teacher_prices: Annotated[Path, AfterValidator(Path.absolute)] | None = None
    #: Teacher and bootstrap: episodes per question, and their sampling temperature.
    num_generations: PositiveInt = 4
    temperature: NonNegativeFloat = 0.8
    #: Teacher and bootstrap: the most transcripts kept per question.
    keep: PositiveInt = 1
    #: Teacher, bootstrap and trees: minimum F1 of a correct answer.
    min_f1: Annotated[float, Field(gt=0, le=1)] = 1.0
    #: Bootstrap: how the model is played while it samples. `constrained`: decoding follows the agent's grammar, so that
    #: a model that was never trained on the format keeps it. `strict`: text outside the format ends an episode.
    format: Literal["constrained", "strict"] = "strict"
    #: Trees: train on text of a model behind a server, whose token ids are unknown: it is encoded with this model's
    #: tokenizer.
    reencode: bool = False

    @model_validator(mode="after")
    def _teacher_given(self) -> Self:
        if self.source == "teacher" and self.teacher_model is None:
            raise ValueError("source teacher needs teacher_model, and teacher_url unless it is OpenAI's")
        return self

    def unused(self) -> Mapping[str, str]:
        """Settings of other sources."""
        names = [] if self.source == "teacher" else [name for name in type(self).model_fields if "teacher_" in name]
        if self.source in ("gold", "mined", "trees"):
            names += ["num_generations", "temperature", "keep", "supported", "least_solved", "most_solved"]
        if self.source != "bootstrap":
            names.append("format")
        if self.source in ("gold", "mined"):
            names.append("min_f1")
        names += ["questions", "balance"] if self.source == "trees" else ["reencode"]
        reasons = {
            "gold": "the oracle replays each gold decomposition once",
            "mined": "the oracle replays each decomposition once",
            "trees": "the best branch of each tree is used",
            "bootstrap": "the model itself writes the demonstrations",
            "teacher": "the text of a teacher is always encoded here",
        }
        reason = f"with source: {self.source} ({reasons.get(self.source)})"
        return {**super().unused(), **dict.fromkeys(names, reason)}

    def inert(self) -> frozenset[str]:
        """`reencode` and a budget allow, and change nothing; and `format`, unless it is set."""
        strict = {"format"} if self.format == "strict" else set()
        return super().inert() | {"reencode", "teacher_budget", "teacher_prices"} | strict

    def check_price(self) -> None:
        """Raise an error early if the price of the teacher is needed and unknown."""
        if self.teacher_model is not None and (self.teacher_budget or "").lower().endswith("usd"):
            PriceTable(self.teacher_prices).need(self.teacher_model)
