"""Training a process reward model (ProRAG, stage 2; RAG-Gym's critic).

In: an initial model, and training and held-out examples. Out, in one folder:

    curves.jsonl    one row per update (loss; for pairs also accuracy and margin) and per dev evaluation
    checkpoints/    the newest and the best, to resume from
    reward/         the best by held-out loss: an ordinary AutoModelForSequenceClassification with its tokenizer

The losses are of step scores r (logits):

    ranking     -log sigmoid(r+ - r- - m)      ProRAG and RAG-Gym, on two steps from one state; m is a margin
    centering   (r+ + r-)^2                    keeps 0 between the two: the ranking loss is shift-invariant
    value       cross-entropy of sigmoid(r)    with a value between 0 and 1, such as a Monte-Carlo estimate

It is not trl's RewardTrainer, which reads the whole state once per score and has no target values. The ranking loss is
the same.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid
from transformers import PreTrainedTokenizerBase, TrainingArguments

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Pair, Question
from stepladder.data import DataSet
from stepladder.engines import make_engine
from stepladder.engines.transformers.tokenization import Encoding
from stepladder.judges.prm.answer_scores import least_scores
from stepladder.judges.prm.prm_inputs import PRMInputBuilder
from stepladder.judges.prm.reward_model import (
    ProcessRewardModel,
    load_for_training,
    load_reward_model,
    patch_step_forward,
)
from stepladder.models.devices import DTYPES
from stepladder.models.length_batches import context_window
from stepladder.models.loading import context_limit_of, quiet_libraries
from stepladder.preferences.pair_checks import read_pairs
from stepladder.train.launch.sharding import check_shardable
from stepladder.train.loop.base_trainer import BaseTrainer, DevScore, eval_mode
from stepladder.train.loop.compute import Compute, prepare_compute
from stepladder.train.loop.context import TrainingContext, Trees
from stepladder.train.loop.policy_weights import add_lora
from stepladder.train.loop.public_trainer import PublicTrainer, all_questions
from stepladder.train.loop.training_loop import report_line, run_training, training_numbers
from stepladder.train.prm.config import PAIR_LOSSES, STEP_LOSSES, PRMConfig
from stepladder.train.prm.prm_data import PRMBatch, PRMExample, collate_examples
from stepladder.train.prm.prm_sources import ExampleMaker, pair_examples, tree_examples
from stepladder.train.transcripts.sampled_episodes import policy_episodes

#: Examples per batch of the dev evaluation.
_DEV_BATCH = 16


@dataclass(frozen=True, slots=True)
class PRMReport:
    """The result of training a PRM."""

    #: A model folder.
    reward: Path
    #: Counts and metrics, as in the stage's summary.
    numbers: dict[str, Any]

    def __repr__(self) -> str:
        return report_line(self.reward, self.numbers)


@dataclass
class PRMTrainer(PublicTrainer[PRMConfig, PRMReport]):
    """Trains a process reward model: `PRMTrainer("runs/nano/sft/policy", pairs="runs/nano/pairs/pairs").train()`."""

    #: For the objective `pairs`: pairs, or a folder or file of them. `held_out` is used with a sequence of pairs.
    pairs: Sequence[Pair] | str | os.PathLike[str] | None = None
    held_out: Sequence[Pair] = ()
    #: For the other objectives.
    trees: Trees | None = None

    kind = "prm"
    config_class = PRMConfig

    def _questions(self, data: DataSet) -> tuple[Question, ...]:
        return data.split("train") if self.pairs is None else all_questions(data)

    def _train(self, policy: str, context: TrainingContext, config: PRMConfig) -> PRMReport:
        if config.objective == "pairs":
            if self.pairs is None:
                raise StepladderError("objective 'pairs' needs pairs")
            examples = pair_examples(config, context, *read_pairs(self.pairs, self.held_out))
        else:
            if self.trees is None:
                raise StepladderError(f"objective '{config.objective}' needs trees")
            sample = partial(
                policy_episodes,
                context,
                lambda: closing(
                    make_engine("transformers", context.agent, model=policy, device=context.device, dtype=context.dtype)
                ),
                num_generations=config.num_generations,
                temperature=config.temperature,
                label="Episodes",
                distributed=True,
            )
            examples = tree_examples(config, context, self.trees, policy, sample)
        return train_prm(config.model or policy, context, config, examples)


def ranking_loss(better_P: torch.Tensor, worse_P: torch.Tensor, margins_P: torch.Tensor) -> torch.Tensor:
    """Negative log-likelihood of the order of each pair."""
    return -logsigmoid(better_P - worse_P - margins_P)


def centering_loss(better_P: torch.Tensor, worse_P: torch.Tensor) -> torch.Tensor:
    """Centers the scores of each pair at 0, so that a score of 0 is neither good nor bad."""
    return (better_P + worse_P) ** 2


def value_loss(scores_S: torch.Tensor, targets_S: torch.Tensor) -> torch.Tensor:
    """Cross-entropy between sigmoid(score) and the value of each step."""
    return binary_cross_entropy_with_logits(scores_S, targets_S, reduction="none")


def batch_loss(
    scores_S: torch.Tensor, batch: PRMBatch, centering: float, loss_type: str | None = None
) -> tuple[torch.Tensor, dict[str, float]]:
    """The loss of a batch and its metrics, summed over pairs or steps."""
    if not len(batch["better"]):
        step_loss = STEP_LOSSES.get(loss_type or next(iter(STEP_LOSSES)))
        scores_S = least_scores(scores_S, batch["answers"], batch["before_answers"])
        loss = (step_loss(scores_S, batch["values"]) * batch["weights"]).sum()
        ends = slice(batch["steps"])
        errors_S = (scores_S[ends].detach().sigmoid() - batch["values"][ends]).abs()
        error = (errors_S * batch["weights"][ends]).sum()
        return loss, {"error": float(error)}
    better_P, worse_P = scores_S[batch["better"]], scores_S[batch["worse"]]
    pair_loss = PAIR_LOSSES.get(loss_type or next(iter(PAIR_LOSSES)))
    losses_P = pair_loss(better_P, worse_P, batch["margins"])
    if centering:
        losses_P = losses_P + centering * centering_loss(better_P, worse_P)
    margins_P = (better_P - worse_P).detach()
    return losses_P.sum(), {"accuracy": float((margins_P > 0).sum()), "margin": float(margins_P.sum())}


def count_targets(batch: PRMBatch) -> int:
    """The number of pairs or steps."""
    return len(batch["better"]) or int(batch["weights"][: batch["steps"]].sum())


class StepRewardTrainer(BaseTrainer):
    """Trains a model with a scalar head."""

    #: Weight of the centering loss, and the name of the loss; set after construction.
    centering = 0.0
    loss_type: str | None = None

    def loss_weight(self, batch: Any) -> float:
        """Pairs or steps."""
        return float(count_targets(batch))

    def count_policy_tokens(self, batch: Any) -> float:
        """Here: the scored steps."""
        return float(count_targets(batch) if len(batch["values"]) else batch["steps"])

    def summed_loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Over pairs or steps."""
        loss, metrics = batch_loss(_scores(model, batch), batch, self.centering, self.loss_type)
        self.batch_metrics.update(metrics)
        return loss


def _scores(model: nn.Module, batch: PRMBatch) -> torch.Tensor:
    scores_S: torch.Tensor = model(input_ids=batch["input_ids"], rows=batch["rows"], columns=batch["columns"])
    return scores_S.float()


def train_prm(model: str | Path, context: TrainingContext, config: PRMConfig, make_examples: ExampleMaker) -> PRMReport:
    """Train a PRM that starts as `model`."""
    compute = prepare_compute(config, context, "prm")
    with quiet_libraries():
        start, tokenizer = load_for_training(model)
        stored = next(start.parameters()).dtype
        bf16 = compute.bf16 and config.lora is not None and not compute.is_sharded
        base = start.to(compute.weights_device, torch.bfloat16 if bf16 else torch.float32)
        check_shardable(base, model)
        prm: Any = base if config.lora is None else add_lora(base, config.lora, model, "SEQ_CLS", ("score",))
        patch_step_forward(prm)
        text = prm.config.get_text_config()
        max_length = config.max_length or context_limit_of(text)
        options = {"retokenize": config.retokenize, "after_retrieval": config.score_after_retrieval}
        builder = PRMInputBuilder(Encoding(tokenizer), max_length, text.pad_token_id, **options)
        train, dev, counts = make_examples(builder)
        if not train:
            raise StepladderError("there are no examples to train a reward model on")

        def trainer(arguments: TrainingArguments) -> BaseTrainer:
            collator: Any = partial(collate_examples, dense=config.dense, max_length=context_window(prm))
            held_out: Any = [None] if dev else None
            made = StepRewardTrainer(prm, arguments, collator, train_dataset=list(train), eval_dataset=held_out)
            made.centering, made.loss_type = config.center_rewards_coefficient, config.loss_type
            return made

        metrics, checkpoint = run_training(
            trainer,
            [example.length for example in train],
            config,
            prm,
            context,
            compute,
            dev_eval=_dev_evaluator(prm, dev, config, compute) if dev else None,
            best_by="dev_loss",
        )
        assert checkpoint is not None  # the initial model is never evaluated, so it cannot be the best
        with compute.processes.main_first():
            if compute.processes.is_main_process:
                dtype = DTYPES.get(context.dtype, stored)
                _write(context.folder / "reward", model, checkpoint, tokenizer, dtype, config)
    best = {
        f"held_out_{name.removeprefix('dev_')}": value
        for name, value in (metrics.best or {}).items()
        if name not in ("step", "dev_seconds")
    }
    inputs = {"histories_cut": builder.truncated, "segments_retokenized": builder.retokenized}
    return PRMReport(context.folder / "reward", {**best, **counts, **inputs, **training_numbers(metrics)})


def _dev_evaluator(
    model: nn.Module, examples: Sequence[PRMExample], config: PRMConfig, compute: Compute
) -> Callable[[], DevScore]:
    """A function that evaluates the current model on held-out examples."""
    ordered = sorted(examples, key=lambda example: example.length)

    def score() -> DevScore:
        sums: dict[str, float] = {}
        weight = 0
        with eval_mode(model), torch.no_grad(), compute.autocast:
            for start in range(0, len(ordered), _DEV_BATCH):
                batch: Any = collate_examples(ordered[start : start + _DEV_BATCH], max_length=context_window(model))
                batch = {
                    name: part.to(compute.device) if torch.is_tensor(part) else part for name, part in batch.items()
                }
                loss, metrics = batch_loss(
                    _scores(model, batch), batch, config.center_rewards_coefficient, config.loss_type
                )
                for name, value in {"loss": float(loss), **metrics}.items():
                    sums[name] = sums.get(name, 0.0) + value
                weight += count_targets(batch)
        return {name: value / weight for name, value in sums.items()}

    return score


def _write(
    folder: Path,
    source: str | Path,
    checkpoint: Path,
    tokenizer: PreTrainedTokenizerBase,
    dtype: torch.dtype,
    config: PRMConfig,
) -> None:
    """Write the weights of a checkpoint as an ordinary model folder, LoRA merged."""
    model: Any
    if (checkpoint / "adapter_config.json").exists():
        base, _ = load_for_training(source)
        model = PeftModel.from_pretrained(base.float(), str(checkpoint)).merge_and_unload()
    else:
        model, _ = load_reward_model(checkpoint, torch.float32, tokenizer)
    scoring: dict[str, Any] = config.model_dump(include={"score_after_retrieval", "answer_score"})
    ProcessRewardModel(model, tokenizer, **scoring).save(folder, dtype)
