"""Settings of rejection-sampling fine-tuning."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from stepladder.train.loop.config import TranscriptTrainingConfig


class RFTConfig(TranscriptTrainingConfig):
    """Which questions are sampled, and which samples are kept. The examples of an update are transcripts."""

    #: Below those of sft: a small policy that continues from sft at 5e-4 became worse on a user's own texts.
    auto_rates = (2e-4, 1e-4, 2e-5)

    #: Questions to sample, and episodes per question.
    questions: PositiveInt = 256
    num_generations: PositiveInt = 8
    #: Sample equally many questions of each number of searches needed, instead of uniformly.
    balance: bool = False
    temperature: NonNegativeFloat = 0.8
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    #: Minimum F1 of a correct answer; an exact match is always correct.
    min_f1: Annotated[float, Field(gt=0, le=1)] = 1.0
    #: Minimum PRM score (a logit) of every step; null, or none, uses no PRM.
    threshold: Annotated[float | None, BeforeValidator(lambda value: None if value == "none" else value)] = 0.0
    #: Accept transcripts of another tokenizer than the PRM's and tokenize their text again.
    retokenize: bool = False
    #: What samples: the policy, or the model behind the recipe's server, which needs `reencode`.
    sampled_by: Literal["policy", "server"] = "policy"
    #: Train on text of a model behind a server, whose token ids are unknown: it is encoded with this model's tokenizer.
    reencode: bool = False
    #: The most distinct transcripts kept per question.
    keep: PositiveInt = 2
    num_train_epochs: PositiveFloat = 1

    def unused(self) -> Mapping[str, str]:
        """Without a threshold there is no PRM."""
        found = (
            {} if self.threshold is not None else {"retokenize": "with threshold: null (no PRM reads the transcripts)"}
        )
        if self.sampled_by == "policy":
            found["reencode"] = "with sampled_by: policy (its token ids are known)"
        return {**super().unused(), **found}

    @model_validator(mode="after")
    def _text_of_a_server(self) -> Self:
        if self.sampled_by == "server" and not self.reencode:
            raise ValueError("sampled_by: server gives text without token ids: set reencode to true to train on it")
        return self

    def inert(self) -> frozenset[str]:
        """`reencode` allows, and changes nothing."""
        return super().inert() | {"reencode"} | ({"sampled_by"} if self.sampled_by == "policy" else set())
