"""Preference pairs from search trees: a chosen and a rejected step from the same state.

In: a tree, a judge, settings. Out (as the generator's return value): `TreePairs`, the pairs of that tree and the number
of dropped preferences by reason. In a pair the chosen step is well formed and the rejected one is not a rewording of
it. The context of a pair is exactly what the policy saw, including token ids.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from pydantic import Field

from stepladder.core.answer_metrics import normalize, token_overlap
from stepladder.core.config import Config
from stepladder.core.requests import Algorithm
from stepladder.core.seeding import seed_of
from stepladder.core.step_scorer import Derived
from stepladder.core.trace import Action, ActionKind, Node, Pair, Side, Step, Tree
from stepladder.explore.ranked import best_branch
from stepladder.explore.values import depths_of, monte_carlo, spre
from stepladder.judges.base import Judge
from stepladder.oracle.step_judge import judge_tree
from stepladder.oracle.step_verdicts import verdict_value


class PairRules(Config):
    """Which siblings make a pair."""

    #: Siblings with fewer visits are left out. Terminal steps need no visit: their reward is known.
    min_visits: int = Field(default=1, ge=0)
    #: States with fewer visits give no pairs.
    min_state_visits: int = Field(default=0, ge=0)
    #: Only states on the best branch of a tree, and only if it ends with a right answer (RAG-Gym).
    right_branch: bool = False
    #: Whether both steps must be well formed, or only the chosen one.
    both_valid: bool = False
    #: Steps of one kind with at least this word overlap (F1) are rewordings of each other and make no pair.
    twin_overlap: float = Field(default=0.9, gt=0, le=1)
    #: Maximum pairs per state, the clearest first; null is all.
    per_state: int | None = Field(default=None, ge=1)
    #: Discount per step of SPRE values.
    decay: float = Field(default=0.9, gt=0, le=1)
    #: How the gold judge, as judge and in the statistics, counts a step that follows from an earlier error: not at all
    #: (unjudged), as good, or as faulty.
    derived: Derived = "unjudged"

    def inert(self) -> frozenset[str]:
        """`derived`, unless it is set."""
        return super().inert() | (frozenset({"derived"}) if self.derived == "unjudged" else frozenset())


@dataclass(frozen=True, slots=True)
class TreePairs:
    """The pairs of one tree."""

    pairs: tuple[Pair, ...]
    #: The number of preferences without a pair, by reason.
    dropped: Counter[str] = field(default_factory=Counter)
    #: States whose steps the judge compared, and how many of these steps the gold judge could grade.
    states: int = 0
    graded: int = 0


def tree_pairs(tree: Tree, judge: Judge, rules: PairRules) -> Algorithm[TreePairs]:
    """The pairs of one tree, from the root down."""
    gold = [verdict_value(verdict, rules.derived) for verdict in judge_tree(tree)]
    values = {"mc": monte_carlo(tree), "spre": spre(tree, rules.decay), "gold": gold}
    depths = depths_of(tree)

    def side(node: Node, value: float | None) -> Side:
        step = _step(node)
        known = {name: found for name, each in values.items() if (found := each[node.id]) is not None}
        return Side(step.written, step.action, value, node.visits, {**node.scores, **known})

    pairs: list[Pair] = []
    dropped: Counter[str] = Counter()
    states = graded = 0
    for state, siblings in judged_groups(tree, rules):
        states += 1
        graded += sum(gold[node.id] is not None for node in siblings)
        branch = tree.trajectory(siblings[0])
        context = branch.consumed(len(branch.steps) - 1)
        kept = 0
        for preference in (yield from judge.prefer(tree, siblings)):
            chosen, rejected = tree.nodes[preference.chosen], tree.nodes[preference.rejected]
            reason = _unfit(chosen, rejected, rules)
            if reason is None and kept == rules.per_state:
                reason = "surplus"
            if reason is not None:
                dropped[reason] += 1
                continue
            kept += 1
            sides = side(chosen, preference.chosen_value), side(rejected, preference.rejected_value)
            depth = depths[state.id]
            pairs.append(Pair(tree.question.id, tree.agent, context, *sides, depth, judge.name, preference.reason))
    return TreePairs(tuple(pairs), dropped, states, graded)


def judged_groups(tree: Tree, rules: PairRules) -> Iterator[tuple[Node, list[Node]]]:
    """Every state with at least two children to compare, and these children."""
    right = _right_branch(tree) if rules.right_branch else None
    for state, children in zip(tree.nodes, tree.children_by_node()):
        if state.visits < rules.min_state_visits or (right is not None and state.id not in right):
            continue
        siblings = [
            child
            for child in children
            if (child.visits >= rules.min_visits or child.reward is not None)
            and not (rules.both_valid and _step(child).action.kind is ActionKind.MALFORMED)
        ]
        if len(siblings) > 1 and any(_step(child).action.kind is not ActionKind.MALFORMED for child in siblings):
            yield state, siblings


def _right_branch(tree: Tree) -> frozenset[int]:
    """The nodes of the best branch; none if its answer is wrong."""
    branch = best_branch(tree)
    return frozenset(node.id for node in branch) if branch[-1].reward == 1.0 else frozenset()


def are_rewordings(one: Action, other: Action, overlap: float) -> bool:
    """Whether two actions say the same in other words, measured by word overlap.

    >>> query = lambda text: Action(ActionKind.QUERY, text)
    >>> are_rewordings(query("Where was the poet Ada Tarn born?"), query("Where was Ada Tarn, the poet, born?"), 0.9)
    True
    >>> are_rewordings(query("Where was the poet Ada Tarn born?"), query("When was the poet Ada Tarn born?"), 0.9)
    False
    """
    if one.kind is not other.kind:
        return False
    return normalize(one.content) == normalize(other.content) or token_overlap(one.content, other.content)[0] >= overlap


def balanced(groups: Sequence[object], seed: int) -> list[int]:
    """The indices to keep, in order, so that no group is larger than the median one; drawn by the seed.

    >>> balanced(["query", "query", "query", "answer"], seed=0)
    [0, 1, 3]
    """
    sizes = Counter(groups)
    if not sizes:
        return []
    limit = int(np.median(list(sizes.values())))
    kept: list[int] = []
    taken: Counter[object] = Counter()
    for index in np.random.default_rng(seed_of(seed, "balance")).permutation(len(groups)):
        if taken[groups[index]] < limit:
            taken[groups[index]] += 1
            kept.append(int(index))
    return sorted(kept)


def dev_questions(ids: Iterable[str], share: float) -> frozenset[str]:
    """The held-out questions: a share of those explored, and never all of them.

    They depend on the ids alone: all judges of the same trees hold out the same questions, so a model trained on the
    pairs of one judge can be tested on the pairs of another.
    """
    distinct = sorted(set(ids), key=lambda each: seed_of("dev", each))
    return frozenset(distinct[: min(round(share * len(distinct)), len(distinct) - 1)])


def _unfit(chosen: Node, rejected: Node, rules: PairRules) -> str | None:
    """Why a preference makes no pair; None if it makes one."""
    if _step(chosen).action.kind is ActionKind.MALFORMED:
        return "malformed chosen"
    if are_rewordings(_step(chosen).action, _step(rejected).action, rules.twin_overlap):
        return "twins"
    return None


def _step(node: Node) -> Step:
    assert node.step is not None  # only the root has no step
    return node.step
