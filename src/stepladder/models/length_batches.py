"""Length-grouped batches: less padding, few tensor shapes, and a fixed order for each seed.

In: the lengths of examples. Out: their order in an epoch (`LengthGroupedSampler`) and the padded width of a batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from stepladder.core.seeding import seed_of

#: Widths are multiples of this: kernels are prepared for each new shape, which took a third of the time on a CPU.
PAD_TO_MULTIPLE_OF = 32
#: Batches that are sorted by length together. More of them: less padding, but the same examples meet more often.
MEGA_BATCH = 16


class LengthGroupedSampler(Sampler[int]):
    """The order of one epoch: shuffled, but the examples of a batch are of similar length."""

    def __init__(self, lengths: Sequence[int], batch: int, seed: int) -> None:
        self.lengths = np.array(lengths)
        self.batch = batch
        self.seed = seed
        #: Each epoch has its own order; set this before the epoch starts.
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng(seed_of(self.seed, "order", self.epoch))
        shuffled = rng.permutation(len(self.lengths))
        pool = self.batch * MEGA_BATCH
        batches: list[list[int]] = []
        for start in range(0, len(shuffled), pool):
            part = shuffled[start : start + pool]
            ordered = part[np.argsort(self.lengths[part], kind="stable")].tolist()
            batches += [ordered[first : first + self.batch] for first in range(0, len(ordered), self.batch)]
        # An incomplete batch comes last: earlier, it would shift the boundaries of the others.
        full = [each for each in batches if len(each) == self.batch]
        rest = [index for each in batches if len(each) < self.batch for index in each]
        for number in rng.permutation(len(full)).tolist():
            yield from full[number]
        yield from rest


def padded_width(lengths: Iterable[int], max_length: int | None = None) -> int:
    """The width of a batch with rows of these lengths, for a model with this context window.

    >>> padded_width([3, 40]), padded_width([3, 40], max_length=50)
    (64, 50)
    """
    longest = max(lengths)
    rounded = -(-longest // PAD_TO_MULTIPLE_OF) * PAD_TO_MULTIPLE_OF
    return rounded if max_length is None else max(longest, min(rounded, max_length))


def context_window(model: Any) -> int | None:
    """The context window in tokens, if the model's config has one. The model may be wrapped for several devices."""
    config = getattr(getattr(model, "module", model), "config", None)
    window = None if config is None else getattr(config.get_text_config(), "max_position_embeddings", None)
    return window if isinstance(window, int) else None
