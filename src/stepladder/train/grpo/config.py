"""What can be set about reinforcement learning."""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from stepladder.core.config import Config
from stepladder.train.grpo.advantage import Over
from stepladder.train.grpo.monitor_config import GuardConfig
from stepladder.train.loop.config import PolicyTrainingConfig


class RewardConfig(Config):
    """What an episode and its steps earn; ProRAG's constants."""

    #: An answer earns this times its F1, if that reaches `min_f1`, else nothing.
    f1_weight: PositiveFloat = 2.0
    min_f1: Annotated[float, Field(ge=0, le=1)] = 0.2
    #: More for an episode that kept its agent's format and came to an answer; as much less for any other.
    format_bonus: NonNegativeFloat = 1.0
    #: The same of a step, beside its score between 0 and 1.
    step_format_bonus: NonNegativeFloat = 0.5


class TreeConfig(Config):
    """How the episodes of a question share their beginnings, in the mode `tree`."""

    #: Of the samples of a question so many begin at the question; the others branch off from states along these.
    stems: PositiveInt = 2
    #: `steps`: a step earns what it adds to the mean reward of the ends below it, and how that compares with the whole
    #: tree's (TreeRL's sum). `gains`: the first of these alone; behind the last parting of branches it is 0.
    #: `branches`: all steps of a branch earn what its end does, against its own tree and against all (Tree-GRPO).
    credit: Literal["steps", "gains", "branches"] = "steps"


class GRPOConfig(PolicyTrainingConfig):
    """Group-relative policy optimisation. Examples of an update are episodes.

    lr auto: 1e-4 below 20M parameters, 1e-5 below 1B, else 1e-6; with LoRA 1e-5 (ProRAG's).
    """

    #: `dual`: what the answer earned and what each step did (ProRAG). `outcome`: the answer alone (Search-R1).
    #: `process`: the steps alone. `tree`: steps by the answers that branches below them come to; no reward model.
    mode: Literal["dual", "outcome", "process", "tree"] = "dual"
    #: Questions to learn from.
    questions: PositiveInt = 256
    #: Take as many questions of each number of searches needed as there are, instead of a plain sample.
    balance: bool = False
    #: Episodes of each question in an update.
    samples: PositiveInt = 8
    #: Episodes an update; questions an update are this by `samples`.
    batch: PositiveInt = 64
    #: How often each question is played; may be a fraction.
    epochs: PositiveFloat = 1
    #: End after so many minutes of updates, if that comes first. What is learnt then depends on the machine.
    minutes: PositiveFloat | None = None
    #: Updates from the same episodes.
    passes: PositiveInt = 1
    temperature: PositiveFloat = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    #: Who plays: transformers with the weights that are trained, or vLLM with a copy that is renewed every update; and
    #: the share of the GPU's memory that vLLM takes.
    engine: Literal["transformers", "vllm"] = "transformers"
    vllm_memory: Annotated[float, Field(gt=0, lt=1)] = 0.3
    rewards: RewardConfig = RewardConfig()
    #: Who scores steps: the reward model; or the gold judge, where questions have a gold decomposition, to see how far
    #: a perfect reward model would come.
    grader: Literal["model", "gold"] = "model"
    #: What a step's own advantage counts beside the answer's.
    process_weight: NonNegativeFloat = 0.3
    #: Whether, in `dual`, the step that answers earns its score too (ProRAG). What it is worth the outcome says.
    grade_answers: bool = True
    #: Scores of steps are measured against the mean of the group: over all its tokens (ProRAG), over its steps, or over
    #: the tokens of `peers`, steps of the same kind at the same place. The first two reward what kind a step is: where
    #: answers score lower than searches, right ones are discouraged too; where late searches do, answering early pays.
    normalise: Over = "tokens"
    #: What a score is above or below that mean is divided by the spread of the group (ProRAG), or by this if the spread
    #: is less: equally good steps differ by noise, and noise should not count as much as good against bad.
    least_spread: NonNegativeFloat = 0.0
    tree: TreeConfig = TreeConfig()
    #: How strongly the policy is held to where it began; 0 needs no reference.
    kl: NonNegativeFloat = 0.0
    #: How far the probability of a token may move within the passes over one batch; upwards by `clip_high` if given.
    clip: PositiveFloat = 0.2
    clip_high: PositiveFloat | None = None
    #: Leave out questions whose episodes all earned the same: they teach nothing and cost as much.
    drop_flat: bool = True
    #: Transcripts of another tokenizer than the reward model's: encode their text anew, instead of refusing them.
    reencode: bool = False
    schedule: Literal["linear", "cosine", "constant"] = "constant"
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.0
    guards: GuardConfig = GuardConfig()

    @model_validator(mode="after")
    def _whole_groups(self) -> Self:
        if self.batch % (self.samples * self.accumulate):
            raise ValueError(
                f"batch {self.batch} is no multiple of samples {self.samples} x accumulate {self.accumulate}: the "
                "episodes of a question are compared with each other, so they must be together. Set batch, the "
                "episodes of an update"
            )
        if self.samples < 2:
            raise ValueError("samples must be 2 or more: an episode is compared with others of its question")
        if self.mode == "tree" and self.tree.stems > self.samples:
            raise ValueError(f"tree.stems {self.tree.stems} is more than samples {self.samples}")
        if self.questions < self.batch // self.samples:
            raise ValueError(
                f"questions {self.questions} do not fill an update, which plays {self.batch // self.samples} (batch "
                f"{self.batch} by samples {self.samples}); set batch to {self.questions * self.samples} or less"
            )
        return self

    @property
    def scores_steps(self) -> bool:
        """Whether steps are scored."""
        return self.mode in ("dual", "process")

    @property
    def needs_reward_model(self) -> bool:
        """Whether it is a reward model that scores them."""
        return self.scores_steps and self.grader == "model"
