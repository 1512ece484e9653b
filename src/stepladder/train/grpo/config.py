"""Settings of GRPO."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.core.registry import Registry
from stepladder.core.step_scorer import Derived
from stepladder.engines.vllm.settings import VLLMConfig
from stepladder.train.grpo.advantage import Over
from stepladder.train.grpo.credit.base import AdvantageEstimator, Need
from stepladder.train.grpo.credit.unused import SINCE, unused_credit
from stepladder.train.loop.config import PolicyTrainingConfig

#: Advantage estimators by name, the values of `mode`. A new one is a file with an `AdvantageEstimator` and a line here.
ESTIMATORS: Registry[AdvantageEstimator] = Registry(
    "mode",
    {
        "dual": ("stepladder.train.grpo.credit.dual:DUAL", "outcome and step advantages (ProRAG)"),
        "outcome": ("stepladder.train.grpo.credit.outcome:OUTCOME", "the answer alone (Search-R1)"),
        "process": ("stepladder.train.grpo.credit.process:PROCESS", "the steps alone"),
        "first-error": ("stepladder.train.grpo.credit.first_error:FIRST_ERROR", "dual up to the first faulty step"),
        "gain": ("stepladder.train.grpo.credit.gain:GAIN", "how much closer to the answer a step leads"),
        "tree": ("stepladder.train.grpo.credit.tree:TREE", "the outcomes of the branches below a step"),
    },
)
#: The mode that samples trees instead of independent episodes.
TREE = "tree"
Share = Annotated[float, Field(gt=0, lt=1)]


#: trl's names of loss types that mean the same, and why others are refused.
_TRL_LOSS_TYPES = {"dapo": "token", "grpo": "sequence"}
_OTHER_LOSS_TYPES = {
    "bnpo": "the mean over the tokens of each microbatch depends on how many fit into memory: use token",
    "dr_grpo": "an episode has no max_completion_length to divide by: use token, with another learning_rate",
}


def _own_loss_type(name: object) -> object:
    if not isinstance(name, str):
        return name
    if name in _OTHER_LOSS_TYPES:
        raise ValueError(f"{name} is not supported: {_OTHER_LOSS_TYPES[name]}")
    return _TRL_LOSS_TYPES.get(name, name)


LossType = Literal["token", "step", "sequence"]


class RewardConfig(Config):
    """Rewards of episodes and steps; the defaults are ProRAG's."""

    #: Reward of an answer per unit of F1, if its F1 reaches `min_f1`, else 0.
    f1_weight: PositiveFloat = 2.0
    min_f1: Annotated[float, Field(ge=0, le=1)] = 0.2
    #: Added for an episode that kept its agent's format and reached an answer; subtracted for any other.
    format_bonus: NonNegativeFloat = 1.0
    #: The same for a step, beside its score between 0 and 1.
    step_format_bonus: NonNegativeFloat = 0.5


class TreeConfig(Config):
    """How the episodes of a question share prefixes, in the mode `tree`."""

    #: Episodes of a question that start at the question; the others branch off from states along these.
    stems: PositiveInt = 2
    #: `steps`: the gain in mean reward of the leaves below, plus the value relative to the root (TreeRL's sum).
    #: `gains`: the gain alone; 0 behind the last branching point. `branches`: all steps of a branch get the reward of
    #: its leaf, relative to its own tree and to all trees (Tree-GRPO).
    credit: Literal["steps", "gains", "branches"] = "steps"


class MonitorConfig(Config):
    """Limits of the alarms; None switches an alarm off. `monitors.py` documents how each limit is applied.

    Most defaults are relative to the start of the run, and so suit models of any size.
    """

    #: Whether an alarm ends the run.
    stop: bool = True
    #: Updates per window: the mean of the latest window is compared with that of an earlier one.
    window: int = Field(default=5, ge=3)
    #: A change between two windows counts only above this many standard errors.
    noise: PositiveFloat = 5.0
    #: format_collapse: the largest drop of the share of valid transcripts below the first window.
    valid_drop: Share | None = 0.25
    #: format_collapse: the smallest share of valid transcripts, for a run that started at twice as many or more.
    valid_floor: Share | None = 0.3
    #: reward_hacking: the largest drop of F1 below its best window while step scores rise.
    f1_drop: Share | None = 0.05
    #: reward_hacking: the rise of step scores, from 0 to 1, that makes such a drop suspicious.
    step_score_rise: Share = 0.02
    #: reward_hacking: the largest rise of the share of repeated or empty steps above the first window.
    repeated_rise: Share | None = 0.25
    #: entropy_collapse: the smallest entropy, as a share of the first window's.
    entropy_share: Share | None = 0.2
    #: kl_blow_up: the highest KL divergence from the reference, in nats per token.
    kl: PositiveFloat | None = 1.0
    #: no_searches: the fewest searches per episode, as a share of the first window's.
    searches_share: Share | None = 0.3
    #: endless: the largest share of episodes that end at the step limit.
    step_limit: Share | None = 0.5
    #: endless: the most searches per episode, on average; depends on the agent and its step limit.
    most_searches: PositiveFloat | None = None
    #: logprob_mismatch: the largest mean difference between a token's log-prob in the engine and in the trainer.
    logprob_gap: PositiveFloat | None = 0.1

    def unused(self) -> Mapping[str, str]:
        """`step_score_rise` is a part of the alarm for a drop of F1."""
        return {"step_score_rise": "with f1_drop: null"} if self.f1_drop is None else {}


class GRPOConfig(PolicyTrainingConfig):
    """Group-relative policy optimization. The examples of an update are episodes."""

    #: Small, because the signal of an update is noisy and the next episodes depend on it; with LoRA ProRAG's.
    auto_rates = (1e-4, 1e-5, 1e-6)
    auto_lora_rate = 1e-5

    renamed: ClassVar[dict[str, str]] = {
        **PolicyTrainingConfig.renamed,
        "passes": "num_iterations",
        "kl": "beta",
        "clip": "epsilon",
        "clip_high": "epsilon_high",
        "drop_flat": "drop_zero_std_groups",
        "normalise": "normalize",  # word-check: ignore
        "least_spread": "min_std",
        "grader": "scorer",
        "guards": "monitors",
        "vllm_memory": "vllm_gpu_memory_utilization",
    }
    renamed_values: ClassVar[dict[str, dict[str, str]]] = {"scorer": {"model": "prm"}}

    #: Credit assignment. `dual`: outcome and step advantages (ProRAG). `outcome`: the answer alone (Search-R1).
    #: `process`: the steps alone. `first-error`: dual, without step advantages behind the first faulty step. `gain`: by
    #: how much a step raises a `potential`. `tree`: steps by the answers of the branches below them, without a PRM.
    mode: Annotated[str, AfterValidator(ESTIMATORS.checked)] = "dual"
    #: Train questions.
    questions: PositiveInt = 256
    #: Sample equally many questions of each number of searches needed, instead of uniformly.
    balance: bool = False
    #: Episodes per question in an update: the group size.
    num_generations: PositiveInt = 8
    #: Episodes per update; the number of questions is this divided by `num_generations`.
    batch_size: PositiveInt = 64
    #: Rollouts of each question; may be a fraction.
    num_train_epochs: PositiveFloat = 1
    #: Stop after this many minutes of updates, if that is earlier. The result then depends on the machine.
    minutes: PositiveFloat | None = None
    #: Stop after the update in which the tokens that the policy has written in episodes reach this number, if that is
    #: earlier. Episodes without a signal count too, so that trainings with the same budget cost about the same.
    token_budget: PositiveInt | None = None
    #: Updates per batch of episodes.
    num_iterations: PositiveInt = 1
    temperature: PositiveFloat = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    #: Rollout engine: transformers with the weights in training, or vLLM with a copy that is synchronized before every
    #: rollout.
    engine: Literal["transformers", "vllm"] = "transformers"
    #: vLLM's share of the GPU memory, and the tokens of its longest transcript (null: the model's context length).
    vllm_gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1)] = 0.3
    vllm_max_model_length: Annotated[int, Field(ge=2)] | None = None
    #: vLLM rounds differently than the trainer: weigh the loss of its tokens by the ratio of both probabilities (trl's
    #: correction, at temperature 1 and top_p 1). `token_*`: each token by its own; `sequence_*`: all tokens of an
    #: episode by its product. A ratio beyond the limits is clipped (`*_truncate`), or its tokens are left out.
    vllm_importance_sampling_correction: bool = True
    vllm_importance_sampling_mode: Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = (
        "sequence_mask"
    )
    vllm_importance_sampling_clip_max: PositiveFloat | None = 3.0
    vllm_importance_sampling_clip_min: NonNegativeFloat | None = None
    rewards: RewardConfig = RewardConfig()
    #: Step scorer: the PRM; or the gold judge, for questions with a gold decomposition, as an upper bound.
    scorer: Literal["prm", "gold"] = "prm"
    #: Gold judge: how a step counts that follows from an earlier error: not at all (unjudged), as good, or as faulty.
    #: Unjudged steps have no step advantage and are not part of the baseline.
    derived: Derived = "unjudged"
    #: Weight of the step advantage beside the outcome advantage.
    process_weight: NonNegativeFloat = 0.3
    #: Weight of the outcome advantage, in `dual`, `first-error` and `gain`.
    outcome_weight: NonNegativeFloat = 1.0
    #: In `gain`, what a state is worth. `prm`: the score of the step that led to it. `monte-carlo`: the mean F1 of
    #: continuations from it. `likelihood`: the probability of the gold answer (IGPO). `recall`: the share of gold
    #: passages found. `graph`: the distance to the answer in Atlas's facts. `agreement`: how often continuations agree.
    potential: Literal["prm", "monte-carlo", "likelihood", "recall", "graph", "agreement"] = "prm"
    #: Continuations from every state, for the potentials `monte-carlo` and `agreement`.
    num_continuations: PositiveInt = 4
    #: In `gain`, subtract from every gain the mean of the group's gains at the same step. Then episodes that are all
    #: alike have no advantage, also where the potential is far from the reward that they come to.
    center_gains: bool = False
    #: `together`: the reward of the format is part of what is divided by the group's deviation (ProRAG). `apart`: only
    #: answers and step scores are; `format_weight` times the reward of the format, relative to the group, is added.
    normalize_rewards: Literal["together", "apart"] = "together"
    format_weight: NonNegativeFloat = 0.1
    #: The standard deviation of a group: of these episodes (population), or with n - 1 (sample: ProRAG's code).
    std: Literal["population", "sample"] = "population"
    #: Whether, in `dual`, the answer step gets a step advantage too (ProRAG), besides the outcome advantage.
    grade_answers: bool = True
    #: Baseline of step scores: the mean over all tokens of the group (ProRAG), over its steps, or over the tokens of
    #: `peers`, steps of the same kind at the same position. The first two compare steps of different kinds: where
    #: answers score lower than searches, correct ones are discouraged too; where late searches do, early answers pay.
    normalize: Over = "tokens"
    #: Lower bound of the standard deviation that step scores are divided by (ProRAG: 0). Equally good steps differ only
    #: by noise, which should not be scaled up.
    min_std: NonNegativeFloat = 0.0
    tree: TreeConfig = TreeConfig()
    #: KL coefficient; 0 needs no reference model.
    beta: NonNegativeFloat = 0.0
    #: Clipping range of the probability ratio; `epsilon_high` is the upper one, if given.
    epsilon: PositiveFloat = 0.2
    epsilon_high: PositiveFloat | None = None
    #: Skip the computation of groups whose rewards are all equal: their advantages are 0.
    drop_zero_std_groups: bool = True
    #: Replace groups without a signal by groups of further questions, in at most this many rounds (DAPO's dynamic
    #: sampling). 0: such groups are not replaced, so that some updates learn from fewer groups.
    refill: NonNegativeInt = 0
    #: What the loss is a mean of: all tokens of the update (trl's `dapo`); the means of its steps; or the means of its
    #: episodes (trl's `grpo`).
    loss_type: Annotated[LossType, BeforeValidator(_own_loss_type)] = "token"
    #: The split that checkpoints are evaluated on. `test` is for studies that measure checkpoints on test questions:
    #: then none of them is selected, and the last one is kept.
    eval_split: Literal["dev", "test"] = "dev"
    #: Accept transcripts of another tokenizer than the PRM's and tokenize their text again.
    retokenize: bool = False
    lr_scheduler_type: Literal["linear", "cosine", "constant"] = "constant"
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    monitors: MonitorConfig = MonitorConfig()

    @model_validator(mode="after")
    def _known_potential(self) -> Self:
        if self.mode == "gain" and self.potential == "prm" and self.scorer != "prm":
            raise ValueError(
                f"potential: prm reads a reward model, not scorer: {self.scorer}, whose verdicts are no values"
            )
        if self.mode == "gain" and self.potential == "agreement" and self.num_continuations < 2:
            raise ValueError("num_continuations must be 2 or more with potential: agreement: one agrees with nothing")
        return self

    @model_validator(mode="after")
    def _whole_groups(self) -> Self:
        if self.batch_size % (self.num_generations * self.gradient_accumulation_steps):
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of num_generations {self.num_generations} x "
                f"gradient_accumulation_steps {self.gradient_accumulation_steps}: the episodes of a question are "
                "compared with each other, so they must be in one microbatch. Set batch_size, the episodes per update"
            )
        if self.num_generations < 2:
            raise ValueError("num_generations must be 2 or more: an episode is compared with others of its question")
        if self.mode == TREE and self.tree.stems > self.num_generations:
            raise ValueError(f"tree.stems {self.tree.stems} is more than num_generations {self.num_generations}")
        if self.questions < self.batch_size // self.num_generations:
            raise ValueError(
                f"questions {self.questions} do not fill an update of {self.batch_size // self.num_generations} "
                f"(batch_size {self.batch_size} by num_generations {self.num_generations}); set batch_size to "
                f"{self.questions * self.num_generations} or less"
            )
        return self

    def unused(self) -> Mapping[str, str]:
        """Settings of other modes, scorers and engines."""
        found = unused_credit(self)
        if self.engine != "vllm":
            found |= dict.fromkeys(self._vllm_names(), f"with engine: {self.engine}")
        elif self.temperature != 1 or self.top_p != 1:
            reason = "with a temperature or top_p other than 1 (the engine's log-probs are not those it sampled from)"
            found |= dict.fromkeys(self._vllm_names("importance"), reason)
        elif not self.vllm_importance_sampling_correction:
            details = [name for name in self._vllm_names("importance") if not name.endswith("correction")]
            found |= dict.fromkeys(details, "with vllm_importance_sampling_correction: false")
        if not self.beta:
            found["monitors.kl"] = "with beta: 0 (the KL divergence is not part of the loss)"
        if self.temperature != 1:
            found["monitors.logprob_gap"] = "with a temperature other than 1 (it is not measured)"
        if not self.dev_questions:
            found["eval_split"] = "with dev_questions: 0 (nothing is evaluated)"
        return {**super().unused(), **found}

    def check_processes(self, processes: int) -> None:
        """The episodes of a question are compared with each other, so they are in one microbatch of one process."""
        parts = self.num_generations * self.gradient_accumulation_steps * processes
        if self.batch_size % parts:
            raise StepladderError(
                f"batch_size {self.batch_size} is not a multiple of {parts} (num_generations {self.num_generations} x "
                f"gradient_accumulation_steps {self.gradient_accumulation_steps} x {processes} processes): set "
                f"batch_size, the episodes per update of all processes, to {-(-self.batch_size // parts) * parts}, or "
                "launch another number of processes"
            )

    def inert(self) -> frozenset[str]:
        """Settings that are newer than runs, and how vLLM's rounding is corrected, unless they are set; and how much
        memory vLLM takes.
        """
        fields = type(self).model_fields
        newer = ("derived", "refill", "token_budget", "loss_type", "eval_split", *SINCE)
        optional = (*newer, *self._vllm_names("importance"))
        unset = {name for name in optional if getattr(self, name) == fields[name].default}
        return super().inert() | unset | {"vllm_max_model_length"}

    @classmethod
    def _vllm_names(cls, part: str = "") -> list[str]:
        return [name for name in cls.model_fields if name.startswith(f"vllm_{part}")]

    @property
    def vllm_settings(self) -> VLLMConfig | None:
        """Of the rollout engine, if it is vLLM."""
        if self.engine != "vllm":
            return None
        memory, length = self.vllm_gpu_memory_utilization, self.vllm_max_model_length
        return VLLMConfig(gpu_memory_utilization=memory, max_model_len=length)

    @property
    def corrects_importance(self) -> bool:
        """Whether the loss is corrected for the rounding of vLLM."""
        return (
            self.engine == "vllm" and self.vllm_importance_sampling_correction and self.temperature == self.top_p == 1
        )

    @property
    def needs(self) -> frozenset[Need]:
        """The evidence that the estimator of `mode` reads."""
        return ESTIMATORS.get(self.mode).needs(self)

    @property
    def scores_steps(self) -> bool:
        """Whether steps are scored."""
        return Need.STEP_SCORES in self.needs

    @property
    def ddof(self) -> int:
        """What is subtracted from the number of values in a standard deviation."""
        return int(self.std == "sample")

    @property
    def needs_reward_model(self) -> bool:
        """Whether the steps are scored by a PRM."""
        return self.scores_steps and self.scorer == "prm"
