"""Training examples of a PRM: pairs of steps from one state, or steps with target values, as tokens.

In: pairs, trees or trajectories. Out: `PRMExample`s, and batches of them. All pairs of one state are one example, in
which every step is tokenized once. A branch of a tree is one example: one forward pass scores all its steps.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import torch

from stepladder.core.trace import ActionKind, Pair, Side, Trajectory, Tree
from stepladder.judges.prm.prm_inputs import PRMInput, PRMInputBuilder
from stepladder.judges.prm.reward_model import collate_inputs
from stepladder.oracle.step_judge import judge, judge_tree
from stepladder.oracle.step_verdicts import Derived, reward_target


@dataclass(frozen=True, slots=True)
class PRMExample:
    """PRM inputs whose steps are compared with each other, or with target values."""

    question_id: str
    inputs: tuple[PRMInput, ...]
    #: Indices of the better and the worse step, counted over all steps of the inputs, and the margin between them.
    pairs: tuple[tuple[int, int, float], ...] = ()
    #: One target value per step; empty for pairs.
    values: tuple[float, ...] = ()

    @property
    def length(self) -> int:
        """Tokens of the longest input."""
        return max(len(each.tokens) for each in self.inputs)


class PRMBatch(TypedDict):
    """Examples as tensors: token ids, the scored positions (`rows`, `columns`), and their targets.

    The last tokens of steps come first. With values, the other tokens of the steps may follow.
    """

    input_ids: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor
    #: For the token counts of the trainer; the model needs none.
    attention_mask: torch.Tensor
    #: Per pair: indices of steps, and margins. Empty with values.
    better: torch.Tensor
    worse: torch.Tensor
    margins: torch.Tensor
    #: Per position. Empty with pairs.
    values: torch.Tensor
    weights: torch.Tensor
    #: How many of the positions are last tokens of steps.
    steps: int
    question_ids: list[str]


def from_pairs(pairs: Iterable[Pair], builder: PRMInputBuilder, margin: float = 0.0) -> list[PRMExample]:
    """One example per state; the margin of a pair is `margin` times the difference of its values, if it has them."""
    states: dict[Any, list[Pair]] = {}
    for pair in pairs:
        context = tuple((segment.tokens, segment.text) for segment in pair.context)
        states.setdefault((pair.question_id, context), []).append(pair)
    return [_state(each, builder, margin) for each in states.values()]


def _state(pairs: Sequence[Pair], builder: PRMInputBuilder, margin: float) -> PRMExample:
    indices: dict[Any, int] = {}
    inputs: list[PRMInput] = []

    def index_of(side: Side) -> int:
        key = (side.written.tokens, side.written.text)
        if key not in indices:
            indices[key] = len(inputs)
            inputs.append(builder.step(pairs[0].context, side.written))
        return indices[key]

    compared = tuple((index_of(pair.chosen), index_of(pair.rejected), margin * (pair.margin or 0.0)) for pair in pairs)
    return PRMExample(pairs[0].question_id, tuple(inputs), compared)


def from_trees(
    trees: Iterable[Tree], builder: PRMInputBuilder, values_of: Callable[[Tree], Sequence[float | None]]
) -> Iterator[PRMExample]:
    """One example per branch, with the values of its steps that no earlier branch has.

    `values_of` gives a value between 0 and 1 for every node, or None if it is unknown.
    """
    for tree in trees:
        known = list(values_of(tree))
        children_by_node = tree.children_by_node()
        for leaf in tree.nodes[1:]:
            if children_by_node[leaf.id]:
                continue
            branch = tree.branch(leaf)[1:]
            inputs = builder.trajectory(tree.trajectory(leaf))
            if example := _valued(tree.question.id, inputs, [known[node.id] for node in branch]):
                yield example
            for node in branch:
                known[node.id] = None


def from_chains(
    chains: Iterable[Trajectory], builder: PRMInputBuilder, derived: Derived = "unjudged", *, answers: bool = True
) -> Iterator[PRMExample]:
    """One example per context of a trajectory, with the gold judge's verdicts of its steps.

    `answers`: whether final answers have a value.
    """
    for chain in chains:
        known = [
            reward_target(verdict, step.action.kind, derived)
            if answers or step.action.kind is not ActionKind.ANSWER
            else None
            for step, verdict in zip(chain.steps, judge(chain), strict=True)
        ]
        for each in builder.trajectory(chain):
            if example := _valued(chain.question.id, [each], known):
                yield example


def outcomes(tree: Tree) -> list[float | None]:
    """The rewards of finished branches, at their last step only: the targets of an outcome reward model."""
    return [node.reward if node.stop is not None else None for node in tree.nodes]


def gold_verdicts(tree: Tree, derived: Derived = "unjudged") -> list[float | None]:
    """The gold judge's verdict of every step it can judge; wrong answers are faulty."""
    return [
        None if node.step is None else reward_target(verdict, node.step.action.kind, derived)
        for node, verdict in zip(tree.nodes, judge_tree(tree), strict=True)
    ]


def _valued(question_id: str, inputs: Iterable[PRMInput], known: Sequence[float | None]) -> PRMExample | None:
    """The inputs, reduced to the steps whose value is known; None without any."""
    kept: list[PRMInput] = []
    values: list[float] = []
    for each in inputs:
        found = [known[step] for step in each.steps]
        valued = [index for index, value in enumerate(found) if value is not None]
        if valued:
            steps, ends = (tuple(column[index] for index in valued) for column in (each.steps, each.ends))
            others = tuple(each.others[index] for index in valued)
            kept.append(PRMInput(each.tokens[: ends[-1] + 1], steps, ends, others))
            values += [value for value in found if value is not None]
    return PRMExample(question_id, tuple(kept), values=tuple(values)) if kept else None


def with_wrong_labels(examples: Iterable[PRMExample], share: float, seed: int) -> list[PRMExample]:
    """The examples with about this share of their labels reversed: 1 - value, or a pair the other way round."""
    rng = random.Random(seed)

    def reversed_labels(example: PRMExample) -> PRMExample:
        pairs = tuple(
            (worse, better, margin) if rng.random() < share else (better, worse, margin)
            for better, worse, margin in example.pairs
        )
        values = tuple(1 - value if rng.random() < share else value for value in example.values)
        return replace(example, pairs=pairs, values=values)

    return [reversed_labels(example) for example in examples]


def collate_examples(examples: Sequence[PRMExample], dense: float = 0.0, max_length: int | None = None) -> PRMBatch:
    """Examples as tensors. `dense`: the total weight of the other tokens of a step, relative to its last token."""
    inputs = [each for example in examples for each in example.inputs]
    batch = collate_inputs(inputs, max_length)
    lengths_B1 = torch.tensor([[len(each.tokens)] for each in inputs])
    pairs: list[tuple[int, int, float]] = []
    first = 0
    for example in examples:
        pairs += [(first + better, first + worse, margin) for better, worse, margin in example.pairs]
        first += sum(len(each.ends) for each in example.inputs)
    values = [value for example in examples for value in example.values]
    others = list(_other_tokens(inputs, values, dense)) if dense and values else []
    rows, columns, more, weights = zip(*others) if others else ((), (), (), ())
    return PRMBatch(
        input_ids=batch["input_ids"],
        rows=torch.cat([batch["rows"], torch.tensor(rows, dtype=torch.long)]),
        columns=torch.cat([batch["columns"], torch.tensor(columns, dtype=torch.long)]),
        attention_mask=(torch.arange(batch["input_ids"].shape[1]) < lengths_B1).long(),
        better=torch.tensor([better for better, _, _ in pairs], dtype=torch.long),
        worse=torch.tensor([worse for _, worse, _ in pairs], dtype=torch.long),
        margins=torch.tensor([margin for _, _, margin in pairs], dtype=torch.float32),
        values=torch.tensor([*values, *more], dtype=torch.float32),
        weights=torch.tensor([*[1.0] * len(values), *weights], dtype=torch.float32),
        steps=first,
        question_ids=[example.question_id for example in examples],
    )


def _other_tokens(
    inputs: Sequence[PRMInput], values: Sequence[float], dense: float
) -> Iterator[tuple[int, int, float, float]]:
    """The tokens of steps that are not scored: row, column, the value of the step, and the weight of the token."""
    value = iter(values)
    for row, each in enumerate(inputs):
        for others, of_step in zip(each.others, value):
            yield from ((row, column, of_step, dense / len(others)) for column in others)
