"""The contract of a judge: which of several steps from one state are better than which.

In: a tree and some of its nodes that share a parent. Out: preferences between them; none where the judge sees no
difference worth learning. `prefer` is a generator like every algorithm here, so that a judge may ask a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stepladder.core.requests import Algorithm
from stepladder.core.trace import Node, Tree


@dataclass(frozen=True, slots=True)
class Preference:
    """One step preferred to a sibling. Nodes are named by their ids."""

    chosen: int
    rejected: int
    #: Values of both, in the judge's own measure; None where it only orders.
    chosen_value: float | None = None
    rejected_value: float | None = None
    reason: str = ""


class Judge(Protocol):
    """Prefers steps to their siblings."""

    #: Written into every pair it makes.
    name: str

    def prefer(self, tree: Tree, siblings: Sequence[Node]) -> Algorithm[list[Preference]]:
        """The preferences among siblings, the clearest first."""
