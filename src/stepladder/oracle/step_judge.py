"""The gold judge: does a step ask for, extract or conclude what the gold decomposition still needs, given the history?

In: trajectories or trees. Out: a `Verdict` per step (`step_rules.py` has the rules). `GoldJudge` turns verdicts into
preferences, `GoldScorer` into scores. No model is called.
"""

from collections.abc import Sequence
from copy import copy

from stepladder.core.requests import Algorithm
from stepladder.core.step_scorer import StepScorer
from stepladder.core.trace import Node, Trajectory, Tree
from stepladder.judges.base import JudgeSpec, Preference, ScorerSpec, once_per_tree
from stepladder.oracle.step_rules import Fault, History, Verdict

__all__ = ["Fault", "GoldJudge", "GoldScorer", "Verdict", "judge", "judge_tree"]


def judge(trajectory: Trajectory) -> tuple[Verdict | None, ...]:
    """One verdict per step; None where the annotation of the question does not decide."""
    history = History(trajectory.question, trajectory.given)
    return tuple(map(history.judge, trajectory.steps))


def judge_tree(tree: Tree) -> list[Verdict | None]:
    """The verdict on the step of every node, by node id. Shared prefixes are judged once."""
    histories: list[History] = []
    found: list[Verdict | None] = []
    for node in tree.nodes:
        history = History(tree.question, tree.given) if node.parent is None else copy(histories[node.parent])
        found.append(None if node.step is None else history.judge(node.step))
        histories.append(history)
    return found


class GoldJudge:
    """Prefers every good step to every faulty sibling. Calls no model."""

    name = "gold"

    def __init__(self) -> None:
        self._verdicts = once_per_tree(judge_tree)

    def prefer(self, tree: Tree, siblings: Sequence[Node]) -> Algorithm[list[Preference]]:
        """All pairs of a good and a faulty step, with values 1 and 0; the reason is the fault."""
        yield from ()
        verdicts = self._verdicts(tree)
        judged = [(node.id, verdict) for node in siblings if (verdict := verdicts[node.id]) is not None]
        return [
            Preference(better, worse, 1.0, 0.0, f"{verdict.fault}: {verdict.reason}")
            for better, good in judged
            if good.good
            for worse, verdict in judged
            if not verdict.good
        ]


class GoldScorer(StepScorer):
    """Scores steps by their verdict: 1 good, 0 faulty, 0.5 if there is no verdict."""

    max_batch = 1024
    concurrency = 1
    #: The logit of a good step: a probability of 0.99, as a confident reward model would give.
    good_logit = 4.6

    def score(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...]]:
        return [
            tuple(0.5 if verdict is None else verdict.value for verdict in judge(trajectory))
            for trajectory in trajectories
        ]

    def score_logits(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...]]:
        """For each trajectory, one logit per step; 0 if there is no verdict."""
        return [tuple(self.good_logit * (2 * value - 1) for value in values) for values in self.score(trajectories)]


JUDGES = {
    "gold": JudgeSpec(
        lambda _: GoldJudge(),
        "the gold judge: exact, needs gold decompositions or gold passages",
        uses_margin=False,
        needs_gold=True,
        advice="Or explore with more simulations, a larger width or a higher temperature",
    )
}
SCORERS = {"gold": ScorerSpec(lambda _: GoldScorer(), "the gold judge: 1 good, 0 faulty, 0.5 unknown")}
