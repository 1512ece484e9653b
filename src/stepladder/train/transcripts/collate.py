"""Batches of tokenized examples, and the loss of fine-tuning on them.

The loss is the weighted mean of -log p(token | context) over policy tokens. In: a model and a batch. Out: the sum over
the batch, and the weight to divide it by. An update may have several batches on several devices: the divisor is their
total weight.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import torch
from torch.nn.functional import cross_entropy, pad

from stepladder.models.length_batches import padded_width
from stepladder.train.transcripts.selected_logits import selected_logits
from stepladder.train.transcripts.tokenized import Example


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


def total_weight(batch: Batch) -> torch.Tensor:
    """The total weight of the predicted tokens. The first token of a context is not predicted."""
    return batch["weights"][:, 1:].sum()
