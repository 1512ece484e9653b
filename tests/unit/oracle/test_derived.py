"""Blame ends at the first error: what follows from it is derived, and every consumer of verdicts knows it."""

from dataclasses import replace

import pytest

from stepladder import Question, Trajectory, Tree
from stepladder.core.trace import Hop, Node, Passage
from stepladder.evaluation.prm.calibration import graded_steps
from stepladder.judges.base import JudgeOptions, ScorerOptions
from stepladder.judges.registry import make_judge, make_scorer
from stepladder.oracle.step_judge import GoldJudge, GoldScorer, judge
from stepladder.oracle.step_verdicts import Derived
from stepladder.preferences.pairs import PairRules, tree_pairs
from stepladder.train.prm.prm_data import gold_verdicts
from tests.support.judged_steps import answer, evidence, faults, finished, last, malformed, query, sub_answer
from tests.support.samples import PASSAGES, QUESTION

TOWER, ARCHITECT, CITY = PASSAGES
BO = Passage("p9", "Bo Lind", "Bo Lind is a painter who was born in Kolm.")
#: The sub-answer is the error; the next query and its sub-answer follow from it faithfully, and so does the answer.
ASTRAY = (
    query("Who designed Orm Tower?", TOWER),
    sub_answer("Bo Lind"),
    query("Where was Bo Lind born?", BO),
    sub_answer("Kolm"),
)


def test_what_follows_faithfully_from_a_wrong_sub_answer_is_derived() -> None:
    assert faults(*ASTRAY, answer("Kolm")) == ["ok", "wrong", "derived", "derived", "derived"]


@pytest.mark.parametrize("text", ["the birthplace of Bo Lind", "Bo Lind birth place", "Bo Lind"])
def test_a_derived_query_may_be_worded_freely(text: str) -> None:
    assert last(*ASTRAY[:2], query(text, BO)) == "derived"


def test_a_new_error_after_an_error_is_blamed() -> None:
    assert last(*ASTRAY[:2], query("Who is the wife of Bo Lind?", BO)) == "wrong"
    assert last(*ASTRAY[:2], query("Where was Cid Voss born?", BO)) == "wrong"
    assert last(*ASTRAY[:2], query("Which river flows through Velm?", CITY)) == "wrong"
    assert last(*ASTRAY[:3], malformed("hm")) == "malformed"
    assert last(*ASTRAY, answer("Oss")) == "premature"
    assert last(*ASTRAY, query("Where was Bo Lind born?", BO)) == "redundant", "the same query"


def test_a_reply_that_is_in_no_passage_cannot_be_judged() -> None:
    assert last(*ASTRAY[:3], sub_answer("Velm Hills")) == "?"
    assert last(*ASTRAY[:3], sub_answer("unknown")) == "ok", "honest"


def test_a_way_back_is_good() -> None:
    steps = (*ASTRAY[:2], query("Where was Ada Tarn born?", ARCHITECT), sub_answer("Velm"), answer("Velm"))
    assert faults(*steps) == ["ok", "wrong", "ok", "ok", "ok"]


def test_hops_that_refer_to_all_earlier_ones_take_no_time() -> None:
    hops = [Hop("Who designed Orm Tower?", "Ada Tarn", ("p1",))]
    hops += [Hop(" ".join(f"#{each}" for each in range(1, number + 1)), f"Name {number}") for number in range(1, 40)]
    question = replace(QUESTION, hops=tuple(hops))
    found = judge(Trajectory(question, "prorag-brief", (*ASTRAY[:2], answer("yes"))))
    assert found[-1] is not None
    assert found[-1].derived


def test_evidence_names_what_it_claims() -> None:
    steps = (query("Who designed Orm Tower?", TOWER), evidence("It says that Bo Lind built the tower."))
    assert faults(*steps, query("Where was Bo Lind born?", BO)) == ["ok", "wrong", "derived"]


def test_replies_to_a_query_for_nothing_needed_are_claims_too() -> None:
    needless = (query("Who owned Orm Tower?", TOWER), sub_answer("Bo Lind"))
    steps = (*needless, query("Where was Bo Lind born?", BO), sub_answer("Kolm"), answer("Kolm"))
    assert faults(*steps) == ["wrong", "?", "derived", "derived", "derived"]


def test_asking_again_for_what_was_overlooked_is_derived() -> None:
    overlooked = (query("Who designed Orm Tower?", TOWER), sub_answer("unknown"))
    assert faults(*overlooked, query("the architect of Orm Tower", TOWER))[1:] == ["wrong", "derived"]
    assert last(*overlooked, query("Who designed Orm Tower?", TOWER)) == "redundant", "the same query"


def test_a_wrong_answer_to_the_last_hop_is_repeated_in_good_faith() -> None:
    right = (
        query("Who designed Orm Tower?", TOWER),
        sub_answer("Ada Tarn"),
        query("Where was Ada Tarn born?", ARCHITECT),
    )
    assert faults(*right, sub_answer("Oss"), answer("Oss"))[-2:] == ["wrong", "derived"]
    assert faults(*right, sub_answer("Oss"), answer("Kolm"))[-2:] == ["wrong", "wrong"]
    assert faults(*ASTRAY[:2], answer("Bo Lind"))[-1] == "premature", "that is not what the question asks for"


def test_a_choice_by_a_wrong_value_is_derived() -> None:
    hops = (
        Hop("How high is Mount Orm?", "900 metres", ("p1",)),
        Hop("How high is Mount Tarn?", "800 metres", ("p2",)),
        Hop("Which is greater: #1 for Mount Orm, or #2 for Mount Tarn?", "Mount Orm"),
    )
    question = Question("c", "Which is higher, Mount Orm or Mount Tarn?", ("Mount Orm",), hops, (("p1",), ("p2",)))
    one, two = query("How high is Mount Orm?", TOWER), query("How high is Mount Tarn?", ARCHITECT)
    wrong = (one, sub_answer("700 metres"), two, sub_answer("800 metres"))
    assert faults(*wrong, answer("Mount Tarn"), question=question) == ["ok", "wrong", "ok", "ok", "derived"]
    assert last(*wrong, answer("Mount Velm"), question=question) == "wrong", "not one of the two"
    right = (one, sub_answer("900 metres"), two, sub_answer("800 metres"))
    assert last(*right, answer("Mount Tarn"), question=question) == "wrong"


# --- Consumers ------------------------------------------------------------------------------------------


@pytest.fixture
def tree() -> Tree:
    """After a wrong sub-answer: a query that follows from it, a good one, a faulty one, and a reply to the first."""
    chain = (Node(0, None, None), Node(1, 0, ASTRAY[0], 1), Node(2, 1, ASTRAY[1], 1))
    steps = [ASTRAY[2], query("Where was Ada Tarn born?", ARCHITECT), query("Who owned Velm?", CITY)]
    return Tree(QUESTION, "prorag", (*chain, *(Node(3 + number, 2, each, 1) for number, each in enumerate(steps))))


@pytest.mark.parametrize(
    ("derived", "expected"), [("unjudged", {(4, 5)}), ("good", {(3, 5), (4, 5)}), ("faulty", {(4, 3), (4, 5)})]
)
def test_pairs_of_the_gold_judge(tree: Tree, derived: Derived, expected: set[tuple[int, int]]) -> None:
    judge_by_name = make_judge("gold", JudgeOptions(derived=derived))
    found = finished(judge_by_name.prefer(tree, tree.nodes[3:]))
    assert {(each.chosen, each.rejected) for each in found} == expected
    made = finished(tree_pairs(tree, GoldJudge(derived), PairRules(derived=derived)))
    assert len(made.pairs) == len(expected)
    graded = {"unjudged": 2, "good": 3, "faulty": 3}[derived]
    assert made.graded == graded


@pytest.mark.parametrize(("derived", "value"), [("unjudged", None), ("good", 1.0), ("faulty", 0.0)])
def test_scores_and_labels(tree: Tree, derived: Derived, value: float | None) -> None:
    trajectory = Trajectory(QUESTION, "prorag", ASTRAY)
    scorer = make_scorer("gold", ScorerOptions(derived=derived))
    assert scorer.score([trajectory]) == [(1.0, 0.0, value, value)]
    assert GoldScorer(derived).score([trajectory]) == [(1.0, 0.0, value, value)]
    assert gold_verdicts(tree, derived)[1:] == [1.0, 0.0, value, 1.0, 0.0]
    graded = graded_steps([trajectory], [(0.1, 0.2, 0.3, 0.4)], derived)
    assert len(graded) == (2 if value is None else 4)
    assert [step.good for step in graded[2:]] == [] if value is None else [bool(value)] * 2
    assert {step.fault for step in graded} == ({"", "wrong"} if value is None else {"", "wrong", "derived"})


def test_verdicts_without_an_error_before_are_as_they_were() -> None:
    verdicts = judge(Trajectory(replace(QUESTION, hops=(), gold_passages=()), "prorag", ASTRAY))
    assert verdicts == (None,) * 4
