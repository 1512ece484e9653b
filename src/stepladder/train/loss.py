"""The loss of training on transcripts: the weighted mean of -log p(token | all before it), over policy tokens alone.

In: a model and a batch. Out: the sum over the batch, and the weight it has to be divided by. An update may consist of
several batches on several devices; only the weight of all of them together is the right divisor.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from stepladder.train.batches import Batch, wanted_columns


def weighted_nll(model: Callable[..., Any], batch: Batch) -> torch.Tensor:
    """Sum of weight * -log p over the policy's tokens of a batch. Prompt and environment are read, never predicted."""
    ids_BT, weights_BT = batch["input_ids"][:, 1:], batch["weights"][:, 1:]
    predicted_BT = weights_BT > 0
    # Logits are made only for columns in which some row has a token to predict: they are most of what a small model
    # computes, and most of the memory of a model with a large vocabulary.
    columns_K, kept = wanted_columns(predicted_BT)
    # No mask: a causal model does not see what is padded behind its rows.
    logits_BKV = model(input_ids=batch["input_ids"], use_cache=False, logits_to_keep=kept).logits[:, : len(columns_K)]
    predicted_BK = predicted_BT[:, columns_K]
    nll_N = cross_entropy(logits_BKV[predicted_BK].float(), ids_BT[:, columns_K][predicted_BK], reduction="none")
    return (nll_N * weights_BT[:, columns_K][predicted_BK]).sum()


def weight_of(batch: Batch) -> torch.Tensor:
    """What the tokens to predict weigh together. The first token of a context is given, whoever wrote it."""
    return batch["weights"][:, 1:].sum()
