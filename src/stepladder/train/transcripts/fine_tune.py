"""Fine-tuning on transcripts with a weighted loss over the policy's tokens, one forward pass per transcript.

In: a policy session and transcripts. Out: the fine-tuned policy in `policy/`, and metrics. SFT and RFT differ only in
where the transcripts come from. The loss is the weighted mean of -log p(token | context) over policy tokens; an update
may have several batches on several devices, so it is computed as a sum and divided by the total weight of the update.

It is `transformers.Trainer` and not trl's SFTTrainer, which has no token weights and replaces the forward pass and the
loss of the model.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypedDict

import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad
from transformers import TrainingArguments

from stepladder.core.errors import StepladderError
from stepladder.core.io import launch
from stepladder.core.trace import Trajectory
from stepladder.engines.transformers.in_process import InProcessEngine
from stepladder.models.length_batches import context_window, padded_width
from stepladder.train.loop.base_trainer import BaseTrainer
from stepladder.train.loop.config import TranscriptTrainingConfig
from stepladder.train.loop.microbatches import split_microbatches
from stepladder.train.loop.policy_session import PolicySession
from stepladder.train.loop.training_loop import run_training, training_numbers
from stepladder.train.transcripts.selected_logits import selected_logits
from stepladder.train.transcripts.tokenized import Example, tokenize_trajectory


class Batch(TypedDict):
    """Examples, padded on the right. Padding has weight 0 and is masked in attention."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    weights: torch.Tensor
    question_ids: list[str]


def collate(examples: Sequence[Example], max_length: int | None = None) -> Batch:
    """Examples as tensors, for a model with this context window."""
    width = padded_width((len(example.tokens) for example in examples), max_length)
    ids_BT = torch.zeros(len(examples), width, dtype=torch.long)
    mask_BT = torch.zeros(len(examples), width, dtype=torch.long)
    weights_BT = torch.zeros(len(examples), width)
    for row, example in enumerate(examples):
        length = len(example.tokens)
        ids_BT[row, :length] = torch.tensor(example.tokens)
        mask_BT[row, :length] = 1
        weights_BT[row, :length] = torch.tensor(example.weights)
    return Batch(
        input_ids=ids_BT,
        attention_mask=mask_BT,
        weights=weights_BT,
        question_ids=[example.question_id for example in examples],
    )


def weighted_nll(model: Callable[..., Any], batch: Batch) -> torch.Tensor:
    """Sum of weight * -log p over the policy tokens of a batch; prompt and environment tokens are not in the loss."""
    ids_BT, weights_BT = batch["input_ids"][:, 1:], batch["weights"][:, 1:]
    predicted_BT = weights_BT > 0
    logits_NV = selected_logits(model, batch["input_ids"], pad(predicted_BT, (0, 1)))
    nll_N = cross_entropy(logits_NV.float(), ids_BT[predicted_BT], reduction="none")
    return (nll_N * weights_BT[predicted_BT]).sum()


class TranscriptTrainer(BaseTrainer):
    """Trains a policy on tokenized transcripts."""

    def loss_weight(self, batch: Any) -> float:
        """The total weight of the predicted tokens. The first token of a context is not predicted."""
        return float(batch["weights"][:, 1:].sum())

    def count_policy_tokens(self, batch: Any) -> float:
        """Tokens with a weight above 0."""
        return float((batch["weights"] > 0).sum())

    def microbatches(self, batch: Any) -> Iterator[Any]:
        """Some rows each."""
        rows, width = batch["input_ids"].shape
        return split_microbatches(batch, torch.full((rows,), width), self.max_tokens)

    def without_loss(self, microbatch: Any) -> Any:
        """With weights of 0."""
        return {**microbatch, "weights": torch.zeros_like(microbatch["weights"])}

    def summed_loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """The weighted sum over the policy's tokens."""
        return weighted_nll(model, batch)


def fine_tune(
    session: PolicySession, transcripts: Sequence[Trajectory], config: TranscriptTrainingConfig
) -> dict[str, float]:
    """Train the policy and write the selected checkpoint; returns metrics."""
    model, engine = session.policy.model, session.engine
    dev_eval = session.dev_evaluator(config.dev_questions)
    engine.reset_prefix_cache()  # training needs the memory
    examples, too_long = _fitting_examples(transcripts, engine, config)

    def trainer(arguments: TrainingArguments) -> BaseTrainer:
        # A trainer that evaluates requires an eval_dataset; ours is inside dev_eval.
        held_out: Any = [None] if dev_eval else None
        collator: Any = partial(collate, max_length=context_window(model))
        return TranscriptTrainer(model, arguments, collator, train_dataset=list(examples), eval_dataset=held_out)

    metrics, checkpoint = run_training(
        trainer,
        [len(example.tokens) for example in examples],
        config,
        model,
        session.context,
        session.compute,
        dev_eval=dev_eval,
    )
    session.save(checkpoint)
    return {"skipped_too_long": too_long, "examples": len(examples), **training_numbers(metrics)}


def _fitting_examples(
    transcripts: Sequence[Trajectory], engine: InProcessEngine, config: TranscriptTrainingConfig
) -> tuple[list[Example], int]:
    """The examples that fit into the context window, and how many do not."""
    examples = [each for one in transcripts for each in tokenize_trajectory(one, engine, config.tag_weights)]
    limit = engine.context_limit
    fitting = [example for example in examples if len(example.tokens) <= limit]
    lengths = [len(example.tokens) for example in examples]
    too_long = len(examples) - len(fitting)
    if not fitting:
        raise StepladderError(
            f"none of {len(examples):,} transcripts fits into the context window of {limit:,} tokens: they have "
            f"{min(lengths):,} to {max(lengths):,}. Use a model with a longer context, or fewer passages per search (k)"
        )
    if too_long and launch.is_main():
        print(
            f"skipped {too_long:,} of {len(examples):,} transcripts: longer than the context window of {limit:,} "
            f"tokens (up to {max(lengths):,})",
            file=sys.stderr,
        )
    return fitting, too_long
