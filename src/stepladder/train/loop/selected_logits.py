"""Logits of the tokens that are wanted, and of no others.

In: a causal model, rows of token ids, and a mask of places. Out: the logits at those places, one line each, row after
row. In a transcript the policy wrote a fraction of the tokens, and logits are the largest thing that a model with a
large vocabulary computes. So its output layer is given the hidden states of the wanted places alone; whatever the model
does with logits (scaling, capping) it does as ever.
"""

from typing import Any

import torch
from torch import nn

from stepladder.engines.transformers.packed_attention import unwrap_model
from stepladder.models.length_batches import PAD_TO_MULTIPLE_OF


def selected_logits(model: Any, ids_BT: torch.Tensor, wanted_BT: torch.Tensor) -> torch.Tensor:
    """The logits behind the tokens where `wanted_BT` says so. Nothing is masked: what is padded stands on the right."""
    places_N = wanted_BT.flatten().nonzero()[:, 0]
    # The last one is repeated, for fewer different shapes.
    chosen_M = torch.cat([places_N, places_N[-1:].expand(-len(places_N) % PAD_TO_MULTIPLE_OF)])
    head = _output_layer(model)
    if head is None:
        return _of(model, ids_BT).flatten(0, 1)[places_N]
    met = False

    def choose(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        nonlocal met
        hidden_BTD = inputs[0]
        if met or hidden_BTD.shape[:2] != ids_BT.shape:
            return inputs  # not what was expected: all are computed, as the model wants it
        met = True
        return hidden_BTD.flatten(0, 1)[chosen_M][None], *inputs[1:]

    handle = head.register_forward_pre_hook(choose)
    try:
        logits = _of(model, ids_BT)
    finally:
        handle.remove()
    return logits[0, : len(places_N)] if met else logits.flatten(0, 1)[places_N]


def _of(model: Any, ids_BT: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=ids_BT, use_cache=False).logits
    return logits


def _output_layer(model: Any) -> nn.Module | None:
    core = unwrap_model(model) if isinstance(model, nn.Module) else None
    layer = core.get_output_embeddings() if core is not None else None  # type: ignore[no-untyped-call]
    return layer if isinstance(layer, nn.Module) else None
