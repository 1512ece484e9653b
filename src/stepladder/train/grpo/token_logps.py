"""Log-probs and entropies of the tokens in the loss only.

In: a causal model, rows of token ids padded on the right, and a loss mask. Out: two tensors of the mask's shape, 0
where the mask is 0. Rows of similar length are computed together, to reduce padding.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn.functional import pad

from stepladder.models.length_batches import context_window, padded_width
from stepladder.train.transcripts.selected_logits import selected_logits

#: Rows per forward pass: small batches need less padding, large ones keep a GPU busy.
_CPU_ROWS, _GPU_ROWS = 8, 64


def token_logps(
    model: Any,
    ids_BT: torch.Tensor,
    lengths_B: torch.Tensor,
    mask_BT: torch.Tensor,
    temperature: float,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mask and both results start at the second token: nothing predicts the first."""
    batch_size = _CPU_ROWS if ids_BT.device.type == "cpu" else _GPU_ROWS
    rows, columns, logps, entropies = [], [], [], []
    for part in torch.split(torch.argsort(lengths_B, stable=True), batch_size):
        width = padded_width(lengths_B[part].tolist(), context_window(model))
        own_BT = mask_BT[part, : width - 1]  # a token is predicted at the position before it
        if not own_BT.any():
            continue
        ids = ids_BT[part, :width]
        ids = pad(ids, (0, width - ids.shape[1]))
        with autocast():
            logits_NV = selected_logits(model, ids, pad(own_BT, (0, width - own_BT.shape[1])))
        logps_NV = (logits_NV.float() / temperature).log_softmax(-1)
        row_N, column_N = own_BT.nonzero(as_tuple=True)
        targets_N = ids[row_N, column_N + 1]
        rows.append(part[row_N])
        columns.append(column_N)
        logps.append(logps_NV.gather(1, targets_N[:, None])[:, 0])
        entropies.append(-(logps_NV.detach().exp() * logps_NV.detach()).sum(dim=-1))
    empty_BT = torch.zeros(mask_BT.shape, device=ids_BT.device)
    if not rows:  # the mask is all 0: a zero that is connected to the weights, so that backward works
        zero = sum(weights.sum() * 0.0 for weights in model.parameters() if weights.requires_grad)
        return empty_BT + zero, empty_BT
    positions = torch.cat(rows), torch.cat(columns)
    return empty_BT.index_put(positions, torch.cat(logps)), empty_BT.index_put(positions, torch.cat(entropies))
