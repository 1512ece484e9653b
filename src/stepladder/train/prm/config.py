"""Settings of process reward model training, and its losses by name: a new one is a function and one line here."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from stepladder.core.registry import Registry
from stepladder.core.step_scorer import Derived
from stepladder.models import absolute_if_folder
from stepladder.oracle.corruptions import Mistake
from stepladder.train.loop.config import TrainingConfig

#: (better, worse, margins) -> one loss per pair; the first is the default.
PAIR_LOSSES: Registry[Callable[..., Any]] = Registry(
    "loss_type of pairs", {"ranking": ("stepladder.train.prm.trainer:ranking_loss", "-log sigmoid(r+ - r- - m)")}
)
#: (scores, targets) -> one loss per step; the first is the default.
STEP_LOSSES: Registry[Callable[..., Any]] = Registry(
    "loss_type of steps",
    {"cross_entropy": ("stepladder.train.prm.trainer:value_loss", "cross-entropy of sigmoid(r) with a value")},
)


class PRMConfig(TrainingConfig):
    """The objective and the data of a PRM. The examples of an update are states (pairs) or branches (values)."""

    renamed: ClassVar[dict[str, str]] = {
        **TrainingConfig.renamed,
        "spoilt": "corruptions",  # word-check: ignore
        "centre": "center_rewards_coefficient",
        "window": "max_length",
    }

    #: `pairs`: rank the two steps of a pair. From trees: `verdicts`: predict the gold judge's verdict of every step;
    #: `values`: predict its Monte-Carlo value; `outcome`: predict the reward of a finished episode from its last step
    #: alone (an outcome reward model, as a baseline).
    objective: Literal["pairs", "verdicts", "values", "outcome"] = "pairs"
    #: The loss, one of those above for the objective; null is the first: ranking for pairs, else cross_entropy.
    loss_type: str | None = None
    #: The initial model, a causal LM or a reward model; null is the policy.
    model: Annotated[str, AfterValidator(absolute_if_folder)] | None = None
    #: Accept pairs and trees of another tokenizer than the model's and tokenize their text again.
    retokenize: bool = False
    #: Train on text of a model behind a server, whose token ids are unknown: it is encoded with this model's tokenizer.
    reencode: bool = False
    #: Pairs: margin of the ranking loss per unit of difference between the two values.
    margin: NonNegativeFloat = 0.0
    #: Pairs: weight of the loss that centers the scores of a pair at 0, so that a threshold of 0 is meaningful.
    center_rewards_coefficient: NonNegativeFloat = 0.01
    #: Verdicts: how a step counts that follows from an earlier error: not at all (unjudged), as good, or as faulty. A
    #: wrong final answer is always faulty.
    derived: Derived = "unjudged"
    #: Verdicts: train questions whose gold trajectories, intact and corrupted, are added to the data. They need no
    #: generation, and cover mistakes that the policy does not make, such as an answer before any search.
    chains: NonNegativeInt = 0
    #: Verdicts: further corrupted copies of each gold trajectory, each with one mistake: a truncated name, an unrelated
    #: query, a premature answer.
    corruptions: NonNegativeInt = 0
    #: Verdicts: whether the final answers of these trajectories are labelled. Without, the model learns about answers
    #: from the policy's own trees and episodes alone.
    chain_answers: bool = True
    #: Verdicts: train questions on which the policy runs `num_generations` episodes each at this temperature. Every
    #: step of them is judged and added to the data: trees hold many first steps, and few later ones.
    episodes: NonNegativeInt = 0
    num_generations: PositiveInt = 2
    temperature: NonNegativeFloat = 1.0
    #: Verdicts: kinds of mistakes of `chains` and `corruptions` to train without, to examine whether the model knows
    #: them nevertheless. Mistakes of the policy in trees and episodes are never left out.
    leave_out: tuple[Mistake, ...] = ()
    #: Share of the labels that are wrong on purpose, chosen with the seed, to see how much noise a judge may have: a
    #: verdict or value is replaced by 1 minus it, the steps of a pair change sides. Held-out labels too. 0.5: labels
    #: that say nothing.
    label_noise: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    #: Score a query with the passages that it found, at the last token of these (ProRAG), and every other step where it
    #: ends. Stored with the reward model. Guided search then retrieves for every candidate. Not for pairs.
    score_after_retrieval: bool = False
    #: How a final answer is scored. `step`: at its last token, like every step. `least`: with the least score of all
    #: steps so far, its own included: it is only as good as the steps that it rests on. Stored with the reward model.
    answer_score: Literal["step", "least"] = "step"
    #: Trees: total loss weight of the other tokens that the policy wrote in a step, relative to the one that is scored.
    #: Dense supervision helps small models to learn where a step goes wrong.
    dense: NonNegativeFloat = 0.0
    #: Maximum tokens of a state with its step; longer histories are truncated on the left. Null: the context length.
    max_length: PositiveInt | None = None
    #: Trees and episodes: share of the questions that is held out. Pairs have their own split.
    dev_share: Annotated[float, Field(ge=0, lt=1)] = 0.1

    @model_validator(mode="after")
    def _known_loss(self) -> Self:
        if self.loss_type is not None:
            (PAIR_LOSSES if self.objective == "pairs" else STEP_LOSSES).checked(self.loss_type)
        return self

    @model_validator(mode="after")
    def _has_passages(self) -> Self:
        if self.score_after_retrieval and self.objective == "pairs":
            raise ValueError(
                "score_after_retrieval needs trees or episodes: objective verdicts or values (a pair of steps has no "
                "passages)"
            )
        return self

    def unused(self) -> Mapping[str, str]:
        """Settings of other objectives and data."""
        found = {}
        if self.objective != "verdicts":
            extra = [name for name in ("chains", "corruptions", "episodes", "leave_out") if getattr(self, name)]
            found = dict.fromkeys(extra, f"with objective: {self.objective} (verdicts label them)")
            found["derived"] = f"with objective: {self.objective} (it is a kind of verdict)"
        elif not self.chains and not self.chain_answers:
            found["chain_answers"] = "with chains: 0 (it is about their answers)"
        elif self.corruptions and not self.chains:
            found["corruptions"] = "with chains: 0 (it is the number of corrupted copies of each gold trajectory)"
        if self.objective == "verdicts" and self.leave_out and not self.chains:
            found["leave_out"] = "with chains: 0 (it is about mistakes in them)"
        if self.objective == "pairs":
            found |= dict.fromkeys(("dense", "dev_share", "answer_score"), "with objective: pairs (they are for trees)")
        else:
            reason = f"with objective: {self.objective} (they are for pairs)"
            found |= dict.fromkeys(("margin", "center_rewards_coefficient"), reason)
        if not self.episodes:
            found |= dict.fromkeys(("num_generations", "temperature"), "with episodes: 0 (nothing is sampled)")
        return {**super().unused(), **found}

    def inert(self) -> frozenset[str]:
        """The settings of sampled episodes, if there are none."""
        unused = frozenset() if self.episodes else frozenset({"episodes", "num_generations", "temperature"})
        unused |= {"derived"} if self.derived == "unjudged" else frozenset()
        unused |= {"chain_answers"} if self.chain_answers else frozenset()
        optional = ("leave_out", "label_noise", "score_after_retrieval")
        unused |= {name for name in optional if not getattr(self, name)}
        unused |= {"answer_score"} if self.answer_score == "step" else frozenset()
        return super().inert() | unused | {"reencode"}  # which allows, and changes nothing
