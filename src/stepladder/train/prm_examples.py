"""What a reward model learns from: pairs of steps from one state, or steps with values, as rows of tokens.

In: pairs, or trees. Out: `RewardExample`s. The pairs of one state are one example, in which every step is read once,
however many pairs it is in. A branch of a tree is one example too: one pass reads the values of all its steps.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import torch

from stepladder.explore.values import monte_carlo
from stepladder.trace import Node, Pair, Side, Tree
from stepladder.train.prm import padded
from stepladder.train.readings import Reading, StepReader


@dataclass(frozen=True, slots=True)
class RewardExample:
    """Readings whose steps are compared with each other, or with values."""

    question_id: str
    readings: tuple[Reading, ...]
    #: Places of the better and the worse step, counted over all ends of the readings, and the margin between them.
    pairs: tuple[tuple[int, int, float], ...] = ()
    #: One value an end; empty where steps are compared with each other.
    values: tuple[float, ...] = ()

    @property
    def length(self) -> int:
        """Tokens of the longest reading."""
        return max(len(reading.tokens) for reading in self.readings)


class RewardBatch(TypedDict):
    """Examples as tensors: the rows, where steps end in them, and what is known of these steps."""

    input_ids: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor
    #: For the counts of the trainer; the model needs none.
    attention_mask: torch.Tensor
    #: By pairs: places of steps, and margins. Empty where there are values.
    better: torch.Tensor
    worse: torch.Tensor
    margins: torch.Tensor
    #: By steps. Empty where there are pairs.
    values: torch.Tensor
    question_ids: list[str]


def from_pairs(pairs: Iterable[Pair], reader: StepReader, margin: float = 0.0) -> list[RewardExample]:
    """One example a state; the margin of a pair is `margin` times the difference of its values, where it has them."""
    states: dict[Any, list[Pair]] = {}
    for pair in pairs:
        context = tuple((segment.tokens, segment.text) for segment in pair.context)
        states.setdefault((pair.question_id, context), []).append(pair)
    return [_state(each, reader, margin) for each in states.values()]


def _state(pairs: Sequence[Pair], reader: StepReader, margin: float) -> RewardExample:
    places: dict[Any, int] = {}
    readings: list[Reading] = []

    def place(side: Side) -> int:
        key = (side.written.tokens, side.written.text)
        if key not in places:
            places[key] = len(readings)
            readings.append(reader.step(pairs[0].context, side.written))
        return places[key]

    compared = tuple((place(pair.chosen), place(pair.rejected), margin * (pair.margin or 0.0)) for pair in pairs)
    return RewardExample(pairs[0].question_id, tuple(readings), compared)


def from_trees(trees: Iterable[Tree], reader: StepReader, *, outcome_only: bool = False) -> Iterator[RewardExample]:
    """One example a branch, with the Monte-Carlo value of every step that no branch before it had.

    `outcome_only`: of ended branches alone, the last step alone, with what it earned: an outcome reward model.
    """
    for tree in trees:
        known: list[float | None] = list(monte_carlo(tree))
        if outcome_only:
            known = [node.reward if node.stop is not None else None for node in tree.nodes]
        families = tree.families()
        for node in tree.nodes[1:]:
            if families[node.id]:
                continue  # inside a branch
            if example := _branch(tree, node, reader, known):
                yield example


def _branch(tree: Tree, leaf: Node, reader: StepReader, known: list[float | None]) -> RewardExample | None:
    """The branch to a leaf. Values that it uses are taken out of those known."""
    branch = tree.branch(leaf)[1:]
    readings: list[Reading] = []
    values: list[float] = []
    for reading in reader.trajectory(tree.trajectory(leaf)):
        ends = [
            (step, end, value)
            for step, end in zip(reading.steps, reading.ends)
            if (value := known[branch[step].id]) is not None
        ]
        if ends:
            readings.append(Reading(reading.tokens, tuple(s for s, _, _ in ends), tuple(e for _, e, _ in ends)))
            values += [value for _, _, value in ends]
    for node in branch:
        known[node.id] = None
    return RewardExample(tree.question.id, tuple(readings), values=tuple(values)) if readings else None


def collate_rewards(examples: Sequence[RewardExample]) -> RewardBatch:
    """Examples as tensors."""
    readings = [reading for example in examples for reading in example.readings]
    rows = padded(readings)
    lengths_B1 = torch.tensor([[len(reading.tokens)] for reading in readings])
    pairs: list[tuple[int, int, float]] = []
    first = 0
    for example in examples:
        pairs += [(first + better, first + worse, margin) for better, worse, margin in example.pairs]
        first += sum(len(reading.ends) for reading in example.readings)
    return RewardBatch(
        input_ids=rows["input_ids"],
        rows=rows["rows"],
        columns=rows["columns"],
        attention_mask=(torch.arange(rows["input_ids"].shape[1]) < lengths_B1).long(),
        better=torch.tensor([better for better, _, _ in pairs], dtype=torch.long),
        worse=torch.tensor([worse for _, worse, _ in pairs], dtype=torch.long),
        margins=torch.tensor([margin for _, _, margin in pairs], dtype=torch.float32),
        values=torch.tensor([value for example in examples for value in example.values], dtype=torch.float32),
        question_ids=[example.question_id for example in examples],
    )
