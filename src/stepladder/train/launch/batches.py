"""The batches of one process: its share of every update.

In: the order of the examples, and the size of a batch. Out: batches of indices, as many for every process. The examples
of an update depend on the order only, not on the number of processes, and no example is used twice: where the last
examples of an epoch are fewer than the processes, some get a filler, whose loss counts nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import Dataset, Sampler

#: In place of the index of an example.
_FILLER = -1
#: Name of the entry of a batch that tells whether it is a filler.
IS_FILLER = "is_filler"


class SharedBatches(Sampler[list[int]]):
    """Batches of `size` examples for process `rank` of `processes`."""

    def __init__(self, order: Sampler[int] | Sequence[int], size: int, rank: int = 0, processes: int = 1) -> None:
        self.order, self.size, self.rank, self.processes = order, size, rank, processes

    def __len__(self) -> int:
        return -(-len(self.order) // (self.size * self.processes))  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of an epoch.

        >>> list(SharedBatches([7, 8, 9], 1, 0, 2)), list(SharedBatches([7, 8, 9], 1, 1, 2))
        ([[7], [9]], [[8], [-1]])
        """
        indices = list(self.order)
        together = self.size * self.processes
        for start in range(0, len(indices), together):
            part = indices[start : start + together]
            count = min(self.size, -(-len(part) // self.processes))
            yield part[self.rank * count : (self.rank + 1) * count] or [_FILLER]


class WithFiller(Dataset[tuple[bool, Any]]):
    """Examples, each with whether it is a filler. The filler is the first example again."""

    def __init__(self, examples: Any) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> tuple[bool, Any]:
        return index == _FILLER, self.examples[max(index, 0)]


def collate_with_filler(collate: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[tuple[bool, Any]]], Any]:
    """The collate function of `WithFiller`."""

    def collated(rows: Sequence[tuple[bool, Any]]) -> Any:
        return {**collate([example for _, example in rows]), IS_FILLER: any(filler for filler, _ in rows)}

    return collated
