"""Logits at selected positions only, and log-probs of the tokens in a loss.

In: a causal model, rows of token ids, and a mask of positions. Out: the logits at these positions, row after row. The
policy wrote only a fraction of a transcript's tokens, and logits are the largest tensor of a model with a large
vocabulary. A hook passes only the selected hidden states to the output layer; logit scaling and capping still apply.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad

from stepladder.engines.transformers.packed_attention import unwrap_model
from stepladder.models.length_batches import PAD_TO_MULTIPLE_OF, context_window, padded_width

#: For rows and columns of the mask, and their logits: which of these belong to tokens that were allowed.
Allowed = Callable[[Sequence[int], Sequence[int], torch.Tensor], torch.Tensor]
#: The logit of a token that was not allowed: its probability is exactly 0.
_NEVER = -1e9
#: Rows per forward pass: small batches need less padding, large ones keep a GPU busy.
_CPU_ROWS, _GPU_ROWS = 8, 64


def selected_logits(model: Any, ids_BT: torch.Tensor, selected_BT: torch.Tensor) -> torch.Tensor:
    """The logits at the selected positions. There is no attention mask: padding is on the right."""
    positions_N = selected_BT.flatten().nonzero()[:, 0]
    # The last position is repeated up to a round number, for fewer different shapes.
    chosen_M = torch.cat([positions_N, positions_N[-1:].expand(-len(positions_N) % PAD_TO_MULTIPLE_OF)])
    head = _output_layer(model)
    if head is None:
        return _forward(model, ids_BT).flatten(0, 1)[positions_N]
    hooked = False

    def select(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        nonlocal hooked
        hidden_BTD = inputs[0]
        if hooked or hidden_BTD.shape[:2] != ids_BT.shape:
            return inputs  # another shape than expected: compute all logits
        hooked = True
        return hidden_BTD.flatten(0, 1)[chosen_M][None], *inputs[1:]

    handle = head.register_forward_pre_hook(select)
    try:
        logits = _forward(model, ids_BT)
    finally:
        handle.remove()
    return logits[0, : len(positions_N)] if hooked else logits.flatten(0, 1)[positions_N]


def _forward(model: Any, ids_BT: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=ids_BT, use_cache=False).logits
    return logits


def _output_layer(model: Any) -> nn.Module | None:
    core = unwrap_model(model) if isinstance(model, nn.Module) else None
    layer = core.get_output_embeddings() if core is not None else None  # type: ignore[no-untyped-call]
    return layer if isinstance(layer, nn.Module) else None


def token_logps(
    model: Any,
    ids_BT: torch.Tensor,
    lengths_B: torch.Tensor,
    mask_BT: torch.Tensor,
    temperature: float,
    autocast: Callable[[], AbstractContextManager[Any]],
    allowed: Allowed | None = None,
    *,
    in_one_pass: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies of the tokens in the mask, 0 elsewhere. Rows are padded on the right.

    The mask and both results start at the second token: nothing predicts the first. Rows of similar length are computed
    together, to reduce padding. `allowed`: the tokens of the vocabulary that were allowed in the place of each; the
    distribution is the model's over these. `in_one_pass`: for sharded weights, which all processes must read equally
    often.
    """
    batch_size = len(ids_BT) if in_one_pass else _CPU_ROWS if ids_BT.device.type == "cpu" else _GPU_ROWS
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
        row_N, column_N = own_BT.nonzero(as_tuple=True)
        logits_NV = logits_NV.float() / temperature
        if allowed is None:
            logps_NV = logits_NV.log_softmax(-1)
        else:
            allowed_NV = allowed(part[row_N].tolist(), column_N.tolist(), logits_NV)
            # Not minus infinity, which times a probability of 0 is not a number.
            logps_NV = logits_NV.masked_fill(~allowed_NV, _NEVER).log_softmax(-1)
        targets_N = ids[row_N, column_N + 1]
        rows.append(part[row_N])
        columns.append(column_N)
        logps.append(logps_NV.gather(1, targets_N[:, None])[:, 0])
        entropies.append(-(logps_NV.detach().exp() * logps_NV.detach()).sum(dim=-1))
    empty_BT = torch.zeros(mask_BT.shape, device=ids_BT.device)
    if not rows:  # the mask is all 0: a zero that is connected to the weights, through the forward pass that
        # wrappers for several devices expect
        with autocast():
            logits_1V = selected_logits(model, ids_BT[:1, :1], torch.ones_like(ids_BT[:1, :1], dtype=torch.bool))
        return empty_BT + logits_1V.float().sum() * 0.0, empty_BT
    positions = torch.cat(rows), torch.cat(columns)
    return empty_BT.index_put(positions, torch.cat(logps)), empty_BT.index_put(positions, torch.cat(entropies))
