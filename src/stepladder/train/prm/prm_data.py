"""What a reward model learns from: pairs of steps from one state, or steps with values, as rows of tokens.

In: pairs, or trees. Out: `PRMExample`s. The pairs of one state are one example, in which every step is read once,
however many pairs it is in. A branch of a tree is one example too: one pass reads the values of all its steps.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import torch

from stepladder.core.trace import Node, Pair, Side, Trajectory, Tree
from stepladder.judges.prm.prm_inputs import PRMInput, PRMInputBuilder
from stepladder.judges.prm.reward_model import collate_inputs
from stepladder.oracle.step_judge import judge, judge_tree


@dataclass(frozen=True, slots=True)
class PRMExample:
    """Readings whose steps are compared with each other, or with values."""

    question_id: str
    readings: tuple[PRMInput, ...]
    #: Places of the better and the worse step, counted over all ends of the readings, and the margin between them.
    pairs: tuple[tuple[int, int, float], ...] = ()
    #: One value an end; empty where steps are compared with each other.
    values: tuple[float, ...] = ()

    @property
    def length(self) -> int:
        """Tokens of the longest reading."""
        return max(len(reading.tokens) for reading in self.readings)


class PRMBatch(TypedDict):
    """Examples as tensors: the rows, the places in them that are scored, and what is known there.

    With pairs, places are the ends of steps. With values, the other tokens of each step may follow behind them.
    """

    input_ids: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor
    #: For the counts of the trainer; the model needs none.
    attention_mask: torch.Tensor
    #: By pairs: places of steps, and margins. Empty where there are values.
    better: torch.Tensor
    worse: torch.Tensor
    margins: torch.Tensor
    #: By places. Empty where there are pairs.
    values: torch.Tensor
    weights: torch.Tensor
    #: How many of the places are ends of steps.
    steps: int
    question_ids: list[str]


def from_pairs(pairs: Iterable[Pair], builder: PRMInputBuilder, margin: float = 0.0) -> list[PRMExample]:
    """One example a state; the margin of a pair is `margin` times the difference of its values, where it has them."""
    states: dict[Any, list[Pair]] = {}
    for pair in pairs:
        context = tuple((segment.tokens, segment.text) for segment in pair.context)
        states.setdefault((pair.question_id, context), []).append(pair)
    return [_state(each, builder, margin) for each in states.values()]


def _state(pairs: Sequence[Pair], builder: PRMInputBuilder, margin: float) -> PRMExample:
    places: dict[Any, int] = {}
    readings: list[PRMInput] = []

    def place(side: Side) -> int:
        key = (side.written.tokens, side.written.text)
        if key not in places:
            places[key] = len(readings)
            readings.append(builder.step(pairs[0].context, side.written))
        return places[key]

    compared = tuple((place(pair.chosen), place(pair.rejected), margin * (pair.margin or 0.0)) for pair in pairs)
    return PRMExample(pairs[0].question_id, tuple(readings), compared)


def from_trees(
    trees: Iterable[Tree], builder: PRMInputBuilder, values_of: Callable[[Tree], Sequence[float | None]]
) -> Iterator[PRMExample]:
    """One example a branch, with the values of those of its steps that no branch before it had.

    `values_of` gives a value between 0 and 1 for every node, or None where nothing is known of it.
    """
    for tree in trees:
        known = list(values_of(tree))
        children_by_node = tree.children_by_node()
        for node in tree.nodes[1:]:
            if children_by_node[node.id]:
                continue  # inside a branch
            if example := _branch(tree, node, builder, known):
                yield example


def from_chains(chains: Iterable[Trajectory], builder: PRMInputBuilder) -> Iterator[PRMExample]:
    """One example a context of a trajectory, with what the gold judge says of its steps."""
    for chain in chains:
        known = [None if verdict is None else verdict.value for verdict in judge(chain)]
        for reading in builder.trajectory(chain):
            if example := _valued(chain.question.id, [reading], known):
                yield example


def outcomes(tree: Tree) -> list[float | None]:
    """What ended branches earned, and nothing of the steps before: what an outcome reward model learns from."""
    return [node.reward if node.stop is not None else None for node in tree.nodes]


def gold_verdicts(tree: Tree) -> list[float | None]:
    """What the gold judge says of every step it can judge."""
    return [None if verdict is None else verdict.value for verdict in judge_tree(tree)]


def _branch(tree: Tree, leaf: Node, builder: PRMInputBuilder, known: list[float | None]) -> PRMExample | None:
    """The branch to a leaf. Values that it uses are taken out of those known."""
    branch = tree.branch(leaf)[1:]
    example = _valued(tree.question.id, builder.trajectory(tree.trajectory(leaf)), [known[node.id] for node in branch])
    for node in branch:
        known[node.id] = None
    return example


def _valued(question_id: str, readings: Iterable[PRMInput], known: Sequence[float | None]) -> PRMExample | None:
    """The readings with those of their steps whose value is known; None without any."""
    kept: list[PRMInput] = []
    values: list[float] = []
    for reading in readings:
        found = [known[step] for step in reading.steps]
        valued = [place for place, value in enumerate(found) if value is not None]
        if valued:
            steps, starts, ends = (
                tuple(each[place] for place in valued) for each in (reading.steps, reading.starts, reading.ends)
            )
            kept.append(PRMInput(reading.tokens[: ends[-1] + 1], steps, starts, ends))
            values += [value for value in found if value is not None]
    return PRMExample(question_id, tuple(kept), values=tuple(values)) if kept else None


def collate_examples(examples: Sequence[PRMExample], dense: float = 0.0, window: int | None = None) -> PRMBatch:
    """Examples as tensors. `dense`: what the other tokens of a step weigh together, its end being 1."""
    readings = [reading for example in examples for reading in example.readings]
    batch = collate_inputs(readings, window)
    lengths_B1 = torch.tensor([[len(reading.tokens)] for reading in readings])
    pairs: list[tuple[int, int, float]] = []
    first = 0
    for example in examples:
        pairs += [(first + better, first + worse, margin) for better, worse, margin in example.pairs]
        first += sum(len(reading.ends) for reading in example.readings)
    values = [value for example in examples for value in example.values]
    rows, columns, more, weights = _other_tokens(readings, values, dense) if dense and values else ([], [], [], [])
    return PRMBatch(
        input_ids=batch["input_ids"],
        rows=torch.cat([batch["rows"], torch.tensor(rows, dtype=torch.long)]),
        columns=torch.cat([batch["columns"], torch.tensor(columns, dtype=torch.long)]),
        attention_mask=(torch.arange(batch["input_ids"].shape[1]) < lengths_B1).long(),
        better=torch.tensor([better for better, _, _ in pairs], dtype=torch.long),
        worse=torch.tensor([worse for _, worse, _ in pairs], dtype=torch.long),
        margins=torch.tensor([margin for _, _, margin in pairs], dtype=torch.float32),
        values=torch.tensor([*values, *more], dtype=torch.float32),
        weights=torch.tensor([1.0] * len(values) + weights, dtype=torch.float32),
        steps=first,
        question_ids=[example.question_id for example in examples],
    )


def _other_tokens(
    readings: Sequence[PRMInput], values: Sequence[float], dense: float
) -> tuple[list[int], list[int], list[float], list[float]]:
    """The tokens of steps but for their ends: rows, columns, the value of their step, and what each weighs."""
    rows: list[int] = []
    columns: list[int] = []
    found: list[float] = []
    weights: list[float] = []
    value = iter(values)
    for row, reading in enumerate(readings):
        for start, end, of_step in zip(reading.starts, reading.ends, value):
            count = end - start
            rows += [row] * count
            columns += range(start, end)
            found += [of_step] * count
            weights += [dense / max(count, 1)] * count
    return rows, columns, found, weights
