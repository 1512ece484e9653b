"""Batches of examples of like length: less padding, less to compute; and always in the same order for the same seed.

In: examples. Out: their order in an epoch (`SimilarLengths`), and padded tensors of a few of them (`collate`), which
come in few shapes.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypedDict

import numpy as np
import torch
from torch.utils.data import Sampler

from stepladder.core.seeding import seed_of
from stepladder.train.transcripts.tokenized import Example

#: Widths come in multiples of this: kernels are prepared for every new shape, on a CPU for a third of all time.
WIDTHS = 32
#: Batches that are sorted by length together. More of them: less padding, but the same examples meet more often.
SORTED_TOGETHER = 16


class Batch(TypedDict):
    """Examples padded on the right; what is padded has weight 0 and is not attended to."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    weights: torch.Tensor
    question_ids: list[str]


class SimilarLengths(Sampler[int]):
    """The order of one epoch: shuffled, but any `batch` examples in a row are about equally long."""

    def __init__(self, lengths: Sequence[int], batch: int, seed: int) -> None:
        self.lengths = np.array(lengths)
        self.batch = batch
        self.seed = seed
        #: Every epoch has its own order; set before the epoch begins.
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng(seed_of(self.seed, "order", self.epoch))
        shuffled = rng.permutation(len(self.lengths))
        pool = self.batch * SORTED_TOGETHER
        batches: list[list[int]] = []
        for start in range(0, len(shuffled), pool):
            part = shuffled[start : start + pool]
            ordered = part[np.argsort(self.lengths[part], kind="stable")].tolist()
            batches += [ordered[first : first + self.batch] for first in range(0, len(ordered), self.batch)]
        # A batch that is not full has to come last: before others it would shift where they begin.
        full = [each for each in batches if len(each) == self.batch]
        rest = [index for each in batches if len(each) < self.batch for index in each]
        for number in rng.permutation(len(full)).tolist():
            yield from full[number]
        yield from rest


def padded_width(lengths: Iterable[int], window: int | None = None) -> int:
    """The width of a batch with rows of these lengths, for a model that takes so many tokens.

    >>> padded_width([3, 40]), padded_width([3, 40], window=50)
    (64, 50)
    """
    longest = max(lengths)
    rounded = -(-longest // WIDTHS) * WIDTHS
    return rounded if window is None else max(longest, min(rounded, window))


def window_of(model: Any) -> int | None:
    """How many tokens a model takes, as far as it says so; it may be wrapped for several devices."""
    config = getattr(getattr(model, "module", model), "config", None)
    window = None if config is None else getattr(config.get_text_config(), "max_position_embeddings", None)
    return window if isinstance(window, int) else None


def collate(examples: Sequence[Example], window: int | None = None) -> Batch:
    """Examples as tensors, for a model that takes so many tokens."""
    width = padded_width((len(example.tokens) for example in examples), window)
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
