"""The loss of fine-tuning on transcripts: the weighted mean of -log p(token | context) over policy tokens.

In: a model and a batch. Out: the sum over the batch, and the weight to divide it by. An update may have several batches
on several devices: the divisor is their total weight.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy, pad

from stepladder.train.loop.selected_logits import selected_logits
from stepladder.train.transcripts.collate import Batch


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
