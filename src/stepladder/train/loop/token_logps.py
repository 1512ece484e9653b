"""Log-probs and entropies of the tokens that are learnt from, and of no others.

In: a causal model, rows of token ids padded on the right, and which tokens are wanted. Out: two tensors of the rows'
shape, 0 where nothing is wanted. Rows of like length are computed together, so that there is less to pad.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn.functional import pad

from stepladder.models.length_batches import context_window, padded_width
from stepladder.train.loop.selected_logits import selected_logits

#: Rows computed together: small parts of like length have less padding, large ones keep a GPU busy.
_AT_ONCE_CPU, _AT_ONCE = 8, 64


def token_logps(
    model: Any,
    ids_BT: torch.Tensor,
    lengths_B: torch.Tensor,
    wanted_BT: torch.Tensor,
    temperature: float,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> tuple[torch.Tensor, torch.Tensor]:
    """`wanted_BT` is about the tokens behind the first, which nothing predicts; so are both results."""
    at_once = _AT_ONCE_CPU if ids_BT.device.type == "cpu" else _AT_ONCE
    rows, columns, logps, entropies = [], [], [], []
    for part in torch.split(torch.argsort(lengths_B, stable=True), at_once):
        width = padded_width(lengths_B[part].tolist(), context_window(model))
        own_BT = wanted_BT[part, : width - 1]  # a token's log-prob is found at the one before it
        if not own_BT.any():
            continue
        ids = ids_BT[part, :width]
        ids = pad(ids, (0, width - ids.shape[1]))
        with autocast():
            logits_NV = selected_logits(model, ids, pad(own_BT, (0, width - own_BT.shape[1])))
        logps_NV = (logits_NV.float() / temperature).log_softmax(-1)
        row_N, column_N = own_BT.nonzero(as_tuple=True)
        written_N = ids[row_N, column_N + 1]
        rows.append(part[row_N])
        columns.append(column_N)
        logps.append(logps_NV.gather(1, written_N[:, None])[:, 0])
        entropies.append(-(logps_NV.detach().exp() * logps_NV.detach()).sum(dim=-1))
    empty_BT = torch.zeros(wanted_BT.shape, device=ids_BT.device)
    if not rows:  # nothing is wanted, and yet there may be an update: its loss must be connected to the weights
        nothing = sum(weights.sum() * 0.0 for weights in model.parameters() if weights.requires_grad)
        return empty_BT + nothing, empty_BT
    places = torch.cat(rows), torch.cat(columns)
    return empty_BT.index_put(places, torch.cat(logps)), empty_BT.index_put(places, torch.cat(entropies))
