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
    #: One target value per step, None for one that is only needed for an answer; empty for pairs.
    values: tuple[float | None, ...] = ()
    #: The answers whose score depends on the steps before them: the index of each among the steps, and of these.
    answers: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def targets(self) -> int:
        """The number of target values."""
        return sum(value is not None for value in self.values)

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
    #: Indices of answers whose score depends on the steps before; for each of these, which answer, and its index.
    answers: torch.Tensor
    before_answers: torch.Tensor
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
    trees: Iterable[Tree],
    builder: PRMInputBuilder,
    values_of: Callable[[Tree], Sequence[float | None]],
    answer_score: str = "step",
) -> Iterator[PRMExample]:
    """One example per branch, with the values of its steps that no earlier branch has.

    `values_of` gives a value between 0 and 1 for every node, or None if it is unknown. `answer_score`: with `least`
    the steps before an answer are kept, since its score depends on theirs.
    """
    for tree in trees:
        known = list(values_of(tree))
        children_by_node = tree.children_by_node()
        for leaf in tree.nodes[1:]:
            if children_by_node[leaf.id]:
                continue
            branch = tree.branch(leaf)[1:]
            trajectory = tree.trajectory(leaf)
            answers = _answers(trajectory) if answer_score == "least" else ()
            inputs = builder.trajectory(trajectory)
            if example := _valued(tree.question.id, inputs, [known[node.id] for node in branch], answers):
                yield example
            for node in branch:
                known[node.id] = None


def from_chains(
    chains: Iterable[Trajectory],
    builder: PRMInputBuilder,
    derived: Derived = "unjudged",
    *,
    answers: bool = True,
    answer_score: str = "step",
) -> Iterator[PRMExample]:
    """One example per context of a trajectory, with the gold judge's verdicts of its steps; one per trajectory if
    the score of an answer depends on the steps before it.

    `answers`: whether final answers have a value.
    """
    for chain in chains:
        known = [
            reward_target(verdict, step.action.kind, derived)
            if answers or step.action.kind is not ActionKind.ANSWER
            else None
            for step, verdict in zip(chain.steps, judge(chain), strict=True)
        ]
        inputs = builder.trajectory(chain)
        scored = _answers(chain) if answer_score == "least" else ()
        for some in [inputs] if scored else [[each] for each in inputs]:
            if example := _valued(chain.question.id, some, known, scored):
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


def _answers(trajectory: Trajectory) -> list[int]:
    """The numbers of the steps that are final answers."""
    return [number for number, step in enumerate(trajectory.steps) if step.action.kind is ActionKind.ANSWER]


def _valued(
    question_id: str, inputs: Iterable[PRMInput], known: Sequence[float | None], answers: Sequence[int] = ()
) -> PRMExample | None:
    """The inputs, reduced to the steps whose value is known, and to those before one of `answers`; None if no value is
    known.
    """
    answers = [number for number in answers if known[number] is not None]
    needed = max(answers, default=0)
    kept: list[PRMInput] = []
    numbers: list[int] = []
    for each in inputs:
        own = [index for index, step in enumerate(each.steps) if known[step] is not None or step < needed]
        if own:
            ends = tuple(each.ends[index] for index in own)
            steps, others = tuple(each.steps[index] for index in own), tuple(each.others[index] for index in own)
            kept.append(PRMInput(each.tokens[: ends[-1] + 1], steps, ends, others))
            numbers += steps
    values = tuple(known[number] for number in numbers)
    if all(value is None for value in values):
        return None
    places = {number: place for place, number in enumerate(numbers)}
    resting = tuple((places[each], tuple(places[number] for number in range(each))) for each in answers)
    return PRMExample(question_id, tuple(kept), values=values, answers=resting)


def with_wrong_labels(examples: Iterable[PRMExample], share: float, seed: int) -> list[PRMExample]:
    """The examples with about this share of their labels reversed: 1 - value, or a pair the other way round."""
    rng = random.Random(seed)

    def reversed_labels(example: PRMExample) -> PRMExample:
        pairs = tuple(
            (worse, better, margin) if rng.random() < share else (better, worse, margin)
            for better, worse, margin in example.pairs
        )
        values = tuple(1 - value if value is not None and rng.random() < share else value for value in example.values)
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
    answers, before = _answers_and_steps(examples)
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
        values=torch.tensor([*(value or 0.0 for value in values), *more], dtype=torch.float32),
        weights=torch.tensor([*(float(value is not None) for value in values), *weights], dtype=torch.float32),
        answers=torch.tensor(answers, dtype=torch.long),
        before_answers=torch.tensor(before, dtype=torch.long).reshape(-1, 2),
        steps=first,
        question_ids=[example.question_id for example in examples],
    )


def _answers_and_steps(examples: Sequence[PRMExample]) -> tuple[list[int], list[tuple[int, int]]]:
    """The indices of `answers` in the batch; and for each step before one, which of them, and its index."""
    answers: list[int] = []
    before: list[tuple[int, int]] = []
    first = 0
    for example in examples:
        for answer, steps in example.answers:
            before += [(len(answers), first + step) for step in steps]
            answers.append(first + answer)
        first += sum(len(each.ends) for each in example.inputs)
    return answers, before


def _other_tokens(
    inputs: Sequence[PRMInput], values: Sequence[float | None], dense: float
) -> Iterator[tuple[int, int, float, float]]:
    """The tokens of steps that are not scored: row, column, the value of the step, and the weight of the token."""
    value = iter(values)
    for row, each in enumerate(inputs):
        for others, of_step in zip(each.others, value):
            if of_step is not None:
                yield from ((row, column, of_step, dense / len(others)) for column in others)
