"""Preference pairs: which siblings make one, what it holds, and how sets of them are cut and counted."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from stepladder.core.io.records import dumps, loads
from stepladder.core.requests import Algorithm
from stepladder.core.trace import Action, ActionKind, Author, Node, Pair, Rollout, Segment, Step, StopReason, Tree
from stepladder.driver import Driver
from stepladder.explore.values import monte_carlo, spre
from stepladder.judges.base import Judge, Preference
from stepladder.judges.value import ValueJudge
from stepladder.oracle.step_judge import GoldJudge
from stepladder.preferences.pair_stats import PairStats
from stepladder.preferences.pairs import (
    PairRules,
    TreePairs,
    are_rewordings,
    balanced,
    dev_questions,
    judged_groups,
    tree_pairs,
)
from tests.support.samples import PASSAGES, QUESTION

PROMPT = Segment(Author.PROMPT, "Question: where?\n", (1, 2), (), "v")


def step(kind: ActionKind, content: str, *, first: bool = True) -> Step:
    said = Segment(Author.POLICY, f"<{kind.value}>{content}", tuple(content.encode()), (), "v")
    read = (PROMPT,) if first else (Segment(Author.ENVIRONMENT, "found", (7,), (), "v"),)
    found = PASSAGES[:1] if kind is ActionKind.QUERY else ()
    return Step(read, said, Action(kind, content, problem="?" if kind is ActionKind.MALFORMED else ""), found)


def tree(*children: tuple[ActionKind, str, float]) -> Tree:
    """A root with children of these actions, each visited twice and worth so much."""
    nodes = [Node(0, None, None, visits=2 * len(children))]
    for number, (kind, content, value) in enumerate(children, start=1):
        rollouts = (Rollout(value, 1, StopReason.ANSWERED),) * 2
        nodes.append(Node(number, 0, step(kind, content), 2, value, rollouts=rollouts))
    return Tree(QUESTION, "prorag", tuple(nodes))


def made(tree: Tree, judge: Judge | None = None, **rules: Any) -> TreePairs:
    judge = judge or ValueJudge("mc", monte_carlo, 0.01)
    (done,) = Driver().run([lambda: tree_pairs(tree, judge, PairRules(**rules))])
    assert done.value is not None, done.failure
    return done.value


QUERY, SUB_ANSWER, ANSWER, BROKEN = ActionKind.QUERY, ActionKind.SUB_ANSWER, ActionKind.ANSWER, ActionKind.MALFORMED
GOOD, BAD = (QUERY, "Who designed Orm Tower?", 0.9), (QUERY, "Where is the river Oss?", 0.1)


def test_a_pair_holds_the_state_both_steps_and_their_values() -> None:
    (pair,) = made(tree(BAD, GOOD)).pairs
    assert (pair.chosen.action.content, pair.rejected.action.content) == (GOOD[1], BAD[1])
    assert (pair.chosen.value, pair.rejected.value, pair.margin) == (0.9, 0.1, pytest.approx(0.8))
    assert pair.context == (PROMPT,)
    assert (pair.depth, pair.judge, pair.question_id, pair.chosen.visits) == (0, "mc", "q1", 2)
    assert pair.chosen.scores["gold"] == 1.0
    assert pair.rejected.scores["gold"] == 0.0
    assert {"mc", "spre"} <= pair.chosen.scores.keys()


def test_the_context_of_a_deeper_pair_is_the_whole_transcript_with_its_tokens() -> None:
    top = tree(GOOD)
    deeper = tuple(
        Node(
            2 + place,
            1,
            step(ActionKind.SUB_ANSWER, text, first=False),
            1,
            rollouts=(Rollout(value, 1, StopReason.ANSWERED),),
        )
        for place, (text, value) in enumerate((("Ada Tarn", 1.0), ("Velm", 0.0)))
    )
    (pair,) = made(Tree(QUESTION, "prorag", (*top.nodes, *deeper))).pairs
    assert [part.text for part in pair.context] == ["Question: where?\n", "<query>Who designed Orm Tower?", "found"]
    assert all(part.tokens for part in pair.context)
    assert pair.depth == 1


def test_close_values_make_no_pair() -> None:
    assert made(tree(GOOD, (QUERY, "Another one?", 0.895))).pairs == ()


def test_a_rewording_is_no_alternative() -> None:
    twin = (QUERY, "who designed the Orm Tower", 0.1)
    result = made(tree(GOOD, twin))
    assert result.pairs == ()
    assert result.dropped == Counter(twins=1)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Where was Ada Tarn born?", "where was ada tarn born", True),
        ("Where was the poet Ada Tarn born?", "Where was Ada Tarn, the poet, born?", True),
        ("Where was Ada Tarn born?", "Where was Ada Tern born?", False),
        ("Where was Ada Tarn born?", "When was Ada Tarn born?", False),
        ("1871", "1872", False),
    ],
)
def test_twins_are_told_by_words_not_by_letters(one: str, other: str, same: bool) -> None:
    assert are_rewordings(Action(QUERY, one), Action(QUERY, other), 0.9) is same


def test_actions_of_two_kinds_are_never_twins() -> None:
    assert not are_rewordings(Action(QUERY, "Velm"), Action(ANSWER, "Velm"), 0.9)


def test_a_malformed_step_is_never_chosen() -> None:
    result = made(tree((BROKEN, "<oops", 0.9), BAD))
    assert result.pairs == ()
    assert result.dropped == Counter({"malformed chosen": 1})


def test_a_malformed_step_may_be_rejected_unless_both_must_be_valid() -> None:
    forest = tree(GOOD, (BROKEN, "<oops", 0.0))
    assert made(forest).pairs[0].rejected.action.kind is BROKEN
    assert made(forest, both_valid=True).pairs == ()


def test_the_clearest_pairs_of_a_state_come_first() -> None:
    forest = tree(GOOD, BAD, (QUERY, "What is Velm?", 0.5))
    assert [pair.margin for pair in made(forest).pairs] == pytest.approx([0.8, 0.4, 0.4])
    kept = made(forest, per_state=1)
    assert [pair.margin for pair in kept.pairs] == pytest.approx([0.8])
    assert kept.dropped == Counter(surplus=2)


def test_unvisited_siblings_are_left_out_but_for_ends() -> None:
    forest = tree(GOOD, BAD)
    unvisited = replace(forest.nodes[2], visits=0, rollouts=())
    assert list(judged_groups(replace(forest, nodes=(*forest.nodes[:2], unvisited)), PairRules())) == []
    end = replace(unvisited, stop=StopReason.ANSWERED, reward=0.0)
    assert len(made(replace(forest, nodes=(*forest.nodes[:2], end))).pairs) == 1


def test_states_that_were_seen_little_can_be_left_out() -> None:
    assert made(tree(GOOD, BAD), min_state_visits=4).pairs
    assert not made(tree(GOOD, BAD), min_state_visits=5).pairs


def test_any_judge_will_do() -> None:
    class Whim:
        name = "whim"

        def prefer(self, tree: Tree, siblings: Sequence[Node]) -> Algorithm[list[Preference]]:
            yield from ()
            return [Preference(siblings[1].id, siblings[0].id, reason="because")]

    (pair,) = made(tree(GOOD, BAD), Whim()).pairs
    assert (pair.chosen.action.content, pair.judge, pair.reason, pair.margin) == (BAD[1], "whim", "because", None)


def test_what_the_tree_says_of_both_sides_is_by_the_rules_of_the_pairs() -> None:
    (found,) = made(tree(GOOD, BAD), ValueJudge("spre", lambda tree: spre(tree, 0.5)), decay=0.5).pairs
    assert found.chosen.scores["spre"] == found.chosen.value == pytest.approx(0.9 * 0.5**2)
    assert loads(dumps(found), Pair) == found


def test_the_gold_judge_makes_pairs_too() -> None:
    (pair,) = made(tree(BAD, GOOD), GoldJudge()).pairs
    assert pair.chosen.action.content == GOOD[1]
    assert "wrong" in pair.reason


# --- sets of pairs --------------------------------------------------------------------------------------------


def test_balancing_cuts_groups_to_the_median_one() -> None:
    groups = ["query"] * 50 + ["answer"] * 10 + ["sub_answer"] * 4
    kept = balanced(groups, seed=1)
    assert Counter(groups[index] for index in kept) == {"query": 10, "answer": 10, "sub_answer": 4}
    assert kept == sorted(kept)
    assert kept == balanced(groups, seed=1) != balanced(groups, seed=2)
    assert balanced([], seed=0) == []


def test_questions_are_held_out_whole_whatever_their_order() -> None:
    ids = [f"q{number}" for number in range(50)] * 3
    held_out = dev_questions(ids, 0.1)
    assert len(held_out) == 5
    assert held_out == dev_questions(ids[::-1], 0.1)
    assert dev_questions(ids, 0.0) == frozenset()


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_of_few_questions_one_is_always_left_to_learn_from(count: int) -> None:
    assert len(dev_questions([f"q{number}" for number in range(count)], 0.99)) == max(count - 1, 0)


def pair(chosen: float | None, rejected: float | None, question: str = "q", value: float | None = 0.5) -> Pair:
    sides = [
        replace(side, value=worth, scores={} if grade is None else {"gold": grade})
        for side, grade, worth in zip(_sides(), (chosen, rejected), (value, 0.0))
    ]
    return Pair(question, "prorag", (PROMPT,), sides[0], sides[1], 2, "mc")


def _sides() -> list[Any]:
    (found,) = made(tree(GOOD, BAD)).pairs
    return [found.chosen, found.rejected]


@pytest.fixture
def counted() -> Callable[..., PairStats]:
    def count(*pairs: Pair) -> PairStats:
        stats = PairStats()
        for each in pairs:
            stats.add(each)
        return stats

    return count


def test_agreement_counts_the_pairs_that_gold_tells_apart(counted: Callable[..., PairStats]) -> None:
    stats = counted(pair(1, 0), pair(1, 0), pair(1, 0, "r"), pair(0, 1, "r"), pair(1, 1), pair(None, 0))
    agreement = stats.agreement()
    assert agreement is not None
    assert {name: agreement[name] for name in ("graded", "chosen", "rejected", "neither", "agrees")} == {
        "graded": 5,
        "chosen": 3,
        "rejected": 1,
        "neither": 1,
        "agrees": 0.75,
    }
    assert agreement["low"] == 0.5
    assert agreement["high"] == 1.0


def test_without_grades_there_is_no_agreement(counted: Callable[..., PairStats]) -> None:
    assert counted(pair(None, None)).agreement() is None
    undecided = counted(pair(1, 1)).agreement()
    assert undecided is not None
    assert undecided["agrees"] is None


def test_statistics_by_kind_depth_and_margin(counted: Callable[..., PairStats]) -> None:
    values = (None, 0.5, 0.25, 0.05, 0.02)
    summary = counted(*(pair(1, 0, value=value) for value in values)).summary()
    assert summary["pairs"] == 5
    assert summary["kinds"] == {"query over query": 5}
    assert summary["depths"] == {"2": 5}
    groups = ["below 0.05", "below 0.10", "below 0.50", "0.50 and more", "only the order is known"]
    assert list(summary["margins"].items()) == [(group, 1) for group in groups], "the narrowest first"


def test_the_interval_is_that_of_questions_and_not_of_pairs(counted: Callable[..., PairStats]) -> None:
    """Twenty questions of which the judge is right about all pairs, or about none: as sure as twenty pairs would be."""
    alike = [pair(1, 0, f"q{n}") if n % 4 else pair(0, 1, f"q{n}") for n in range(20)]
    one, many = counted(*alike).agreement(), counted(*alike * 50).agreement()
    assert one is not None
    assert many is not None
    assert (many["graded"], many["agrees"]) == (1000, 0.75)
    assert (many["low"], many["high"]) == (one["low"], one["high"])
    assert many["high"] - many["low"] > 0.3
