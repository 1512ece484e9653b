"""What can be set about a process reward model."""

from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from stepladder.models import absolute_if_folder
from stepladder.train.loop.config import TrainingConfig


class PRMConfig(TrainingConfig):
    """A reward model: what it learns, from what. Examples of an update are states (pairs) or branches (values).

    lr auto: 5e-4 below 20M parameters, 1e-4 below 1B, else 2e-5; with LoRA 2e-4.
    """

    #: `pairs`: rank the two steps of a pair. Of the trees: `verdicts`: predict what the gold judge says of every step;
    #: `values`: predict its Monte-Carlo value; `outcome`: predict what an ended episode earned, from its end alone (an
    #: outcome reward model, to compare with).
    objective: Literal["pairs", "verdicts", "values", "outcome"] = "pairs"
    #: A model to begin with, causal or already a reward model; null is the policy.
    model: Annotated[str, AfterValidator(absolute_if_folder)] | None = None
    #: Pairs and trees of another tokenizer than the model's: encode their text anew, instead of refusing them.
    reencode: bool = False
    #: Pairs: how far apart two steps are to be, for a difference of 1 in their values.
    margin: NonNegativeFloat = 0.0
    #: Pairs: how much it counts that 0 lies between the two, so that a threshold of 0 has a meaning.
    centre: NonNegativeFloat = 0.01
    #: Verdicts: questions of the train split whose gold chains, and the same ones spoilt, are learnt from as well. They
    #: cost no generation, and keep what no policy writes, such as an answer before any search, from being scored well.
    chains: NonNegativeInt = 0
    #: Verdicts: of each of these questions so many more chains, each with one mistake: a name half copied, a search for
    #: something else, an answer too early.
    spoilt: NonNegativeInt = 0
    #: Verdicts: questions of the train split that the policy plays, `samples` times each at this temperature. Every
    #: step of these episodes is judged and learnt from: trees tell most of first steps, and little of later ones.
    episodes: NonNegativeInt = 0
    samples: PositiveInt = 2
    temperature: NonNegativeFloat = 1.0
    #: Of trees: what all other tokens of a step together count in the loss, beside its end, which counts 1. A small
    #: model learns sooner where a step goes wrong when it is told at every token.
    dense: NonNegativeFloat = 0.0
    #: Most tokens of a state with its step; longer histories are cut at the left. Null is the model's window.
    window: PositiveInt | None = None
    #: Of trees and episodes: share of the questions that is held out. Pairs come with their own.
    dev_share: Annotated[float, Field(ge=0, lt=1)] = 0.1
    epochs: PositiveFloat = 3

    @model_validator(mode="after")
    def _chains_have_verdicts(self) -> Self:
        if (self.chains or self.spoilt or self.episodes) and self.objective != "verdicts":
            raise ValueError(
                "chains, spoilt and episodes go with the objective 'verdicts', which labels them; "
                f"not '{self.objective}'"
            )
        if self.spoilt and not self.chains:
            raise ValueError("spoilt says how many mistaken copies of each gold chain; set chains to have gold chains")
        return self
