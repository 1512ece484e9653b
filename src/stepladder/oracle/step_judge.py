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
from stepladder.oracle.step_rules import History
from stepladder.oracle.step_verdicts import Derived, Fault, Verdict, verdict_value

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

    def __init__(self, derived: Derived = "unjudged") -> None:
        """`derived`: how steps count that follow from an earlier error."""
        self._verdicts = once_per_tree(judge_tree)
        self._derived = derived

    def prefer(self, tree: Tree, siblings: Sequence[Node]) -> Algorithm[list[Preference]]:
        """All pairs of a good and a faulty step, with values 1 and 0; the reason is the fault. Others make no pair."""
        yield from ()
        verdicts = self._verdicts(tree)
        values = {node.id: verdict_value(verdicts[node.id], self._derived) for node in siblings}
        return [
            Preference(better, worse, 1.0, 0.0, f"{verdict.fault}: {verdict.reason}")
            for better, good in values.items()
            if good == 1
            for worse, bad in values.items()
            if bad == 0 and (verdict := verdicts[worse]) is not None
        ]


class GoldScorer(StepScorer):
    """Scores steps by their verdict: 1 good, 0 faulty, None if they are not judged."""

    max_batch = 1024
    concurrency = 1
    #: The logit of a good step: a probability of 0.99, as a confident reward model would give.
    good_logit = 4.6

    def __init__(self, derived: Derived = "unjudged") -> None:
        """`derived`: how steps count that follow from an earlier error."""
        self._derived = derived

    def score(self, trajectories: Sequence[Trajectory]) -> list[tuple[float | None, ...]]:
        return [tuple(verdict_value(each, self._derived) for each in judge(trajectory)) for trajectory in trajectories]

    def score_logits(self, trajectories: Sequence[Trajectory]) -> list[tuple[float | None, ...]]:
        """For each trajectory, one logit per step; None if it is not judged."""
        return [
            tuple(None if value is None else self.good_logit * (2 * value - 1) for value in values)
            for values in self.score(trajectories)
        ]


JUDGES = {
    "gold": JudgeSpec(
        lambda options: GoldJudge(options.derived),
        "the gold judge: exact, needs gold decompositions or gold passages",
        uses_margin=False,
        needs_gold=True,
        advice="Or explore with more simulations, a larger width or a higher temperature",
    )
}
SCORERS = {
    "gold": ScorerSpec(
        lambda options: GoldScorer(options.derived), "the gold judge: 1 good, 0 faulty, unjudged where it cannot tell"
    )
}
