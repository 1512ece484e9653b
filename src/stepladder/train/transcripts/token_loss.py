"""The loss of training on transcripts: the weighted mean of -log p(token | all before it), over policy tokens alone.

In: a model and a batch. Out: the sum over the batch, and the weight it has to be divided by. An update may consist of
several batches on several devices; only the weight of all of them together is the right divisor.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy, pad

from stepladder.train.loop.selected_logits import selected_logits
from stepladder.train.transcripts.collate import Batch


def weighted_nll(model: Callable[..., Any], batch: Batch) -> torch.Tensor:
    """Sum of weight * -log p over the policy's tokens of a batch. Prompt and environment are read, never predicted."""
    ids_BT, weights_BT = batch["input_ids"][:, 1:], batch["weights"][:, 1:]
    predicted_BT = weights_BT > 0
    logits_NV = selected_logits(model, batch["input_ids"], pad(predicted_BT, (0, 1)))
    nll_N = cross_entropy(logits_NV.float(), ids_BT[predicted_BT], reduction="none")
    return (nll_N * weights_BT[predicted_BT]).sum()


def weight_of(batch: Batch) -> torch.Tensor:
    """What the tokens to predict weigh together. The first token of a context is given, whoever wrote it."""
    return batch["weights"][:, 1:].sum()
