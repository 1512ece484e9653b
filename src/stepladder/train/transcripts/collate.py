"""Collate tokenized examples into padded tensors."""

from collections.abc import Sequence
from typing import TypedDict

import torch

from stepladder.models.length_batches import padded_width
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
