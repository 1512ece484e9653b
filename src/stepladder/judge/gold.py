"""The exact judge: does a step ask for, extract or conclude what the gold decomposition still needs, given the history?

In: trajectories or trees. Out: a `Verdict` for each step (`history.py` has the rules); `GoldJudge` makes preferences of
them, `GoldScorer` scores, and `prefers` compares with what another judge chose. It asks no model.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from stepladder.judge.base import Preference
from stepladder.judge.history import Fault, History, Verdict
from stepladder.request import Algorithm, Score
from stepladder.trace import Node, Trajectory, Tree

__all__ = ["Fault", "GoldJudge", "GoldScorer", "Verdict", "judge", "judge_step", "prefers"]


def judge(trajectory: Trajectory) -> tuple[Verdict | None, ...]:
    """One verdict a step; None where the question's annotation cannot tell."""
    return History(trajectory.question, trajectory.given).follow(trajectory.steps)


def judge_step(trajectory: Trajectory, index: int) -> Verdict | None:
    """The verdict on one step, given those before it."""
    steps = trajectory.steps
    return History(trajectory.question, trajectory.given).follow(steps[: range(len(steps))[index] + 1])[-1]


def prefers(tree: Tree, chosen: int, rejected: int) -> Literal[1, 0, -1] | None:
    """Whether the judge, too, prefers the chosen of two nodes (1), the other (-1) or neither (0); None: cannot tell."""
    for_it, against_it = (_verdict(tree, node) for node in (chosen, rejected))
    if for_it is None or against_it is None:
        return None
    if for_it.good == against_it.good:
        return 0
    return 1 if for_it.good else -1


def _verdict(tree: Tree, node: int) -> Verdict | None:
    return judge_step(tree.trajectory(tree.nodes[node]), -1) if tree.nodes[node].step is not None else None


class GoldJudge:
    """Prefers every good step to every faulty sibling. Asks no model."""

    name = "gold"

    def prefer(self, tree: Tree, siblings: Sequence[Node]) -> Algorithm[list[Preference]]:
        """Good over faulty, each with each; values 1 and 0; the reason is the fault."""
        yield from ()
        good: list[Node] = []
        faulty: list[tuple[Node, Verdict]] = []
        for node, verdict in _judge_siblings(tree, siblings):
            if verdict is not None and verdict.good:
                good.append(node)
            elif verdict is not None:
                faulty.append((node, verdict))
        return [
            Preference(better.id, worse.id, 1.0, 0.0, f"{verdict.fault}: {verdict.reason}")
            for better in good
            for worse, verdict in faulty
        ]


def _judge_siblings(tree: Tree, siblings: Sequence[Node]) -> Iterator[tuple[Node, Verdict | None]]:
    """Every sibling with its verdict. The history they share is followed once."""
    if not siblings or siblings[0].parent is None:
        return
    before = History(tree.question, tree.given)
    before.follow(tree.trajectory(tree.nodes[siblings[0].parent]).steps)
    for node in siblings:
        if node.step is not None:
            yield node, before.copy().take(node.step)


class GoldScorer:
    """Scores steps by their verdict: 1 good, 0 faulty, 0.5 where the judge cannot tell."""

    max_batch = 1024
    concurrency = 1

    def score(self, requests: Sequence[Score]) -> list[tuple[float, ...] | Exception]:
        """For each trajectory, one score a step."""
        return [
            tuple(0.5 if verdict is None else verdict.value for verdict in judge(request.trajectory))
            for request in requests
        ]
