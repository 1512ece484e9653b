"""Logits at selected positions only.

In: a causal model, rows of token ids, and a mask of positions. Out: the logits at these positions, row after row. The
policy wrote only a fraction of a transcript's tokens, and logits are the largest tensor of a model with a large
vocabulary. A hook passes only the selected hidden states to the output layer; logit scaling and capping still apply.
"""

from typing import Any

import torch
from torch import nn

from stepladder.engines.transformers.packed_attention import unwrap_model
from stepladder.models.length_batches import PAD_TO_MULTIPLE_OF


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
