"""Gains: every potential against an example worked by hand, and their sum."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from stepladder.core.trace import StopReason
from stepladder.train.grpo.credit.base import Evidence
from stepladder.train.grpo.credit.credit_group import credit_group
from stepladder.train.grpo.credit.gain import step_gains
from stepladder.train.grpo.credit.potentials import agreement, closeness
from tests.support.credit import ANSWER, QUERY, SUB_ANSWER, answered, broken, ended, logits, settings, step
from tests.support.samples import PASSAGES

#: Alone: without an outcome beside the gains.
ALONE = {"mode": "gain", "outcome_weight": 0, "process_weight": 1}


def gains(group: Sequence[object], potential: str, evidence: Evidence, **changes: object) -> list[list[float]]:
    found = credit_group(group, settings(**{**ALONE, "potential": potential, **changes}), evidence)  # type: ignore[arg-type]
    return [list(row.advantages) for row in found]


def test_a_score_is_the_value_of_the_state_behind_its_step() -> None:
    group = [answered("Velm"), answered("Oss")]
    found = gains(group, "prm", Evidence([logits(0.8, 0.9, 0.1), logits(0.4, 0.2, 0.9)]))
    # The question has the mean of the states behind the first steps, 0.6. Scores of the answers do not matter.
    assert found == [pytest.approx([0.2, 0.1, 0.1]), pytest.approx([-0.2, -0.2, -0.2])]


def test_a_step_without_a_score_passes_its_credit_on() -> None:
    found = gains(
        [answered("Velm"), answered("Velm")], "prm", Evidence([logits(0.5, None, 0.5), logits(0.5, 0.7, 0.5)])
    )
    assert found == [pytest.approx([0, 0, 0.5]), pytest.approx([0, 0.2, 0.3])]


def test_the_likelihood_of_the_answer() -> None:
    logps = [[math.log(0.1), math.log(0.5), None], [math.log(0.1), math.log(0.1), math.log(0.2)]]
    found = gains([answered("Velm"), answered("Oss")], "likelihood", Evidence(answer_logps=logps))
    assert found == [pytest.approx([0.4, 0, 0.5]), pytest.approx([0, 0.1, -0.2])]


def test_the_share_of_gold_passages_that_were_found() -> None:
    right = ended(step(QUERY, found=PASSAGES[:1]), step(SUB_ANSWER), step(QUERY, found=PASSAGES), step(ANSWER, "Velm"))
    wrong = ended(step(QUERY, found=PASSAGES[2:]), step(QUERY, found=PASSAGES[1:2]), step(ANSWER, "Oss"))
    assert gains([right, wrong], "recall", Evidence()) == [
        pytest.approx([0.5, 0, 0.5, 0]),
        pytest.approx([0, 0.5, -0.5]),
    ]


def test_the_distance_to_the_answer() -> None:
    distances = {"p1": (3,), "p2": (0,), "p3": (None,)}
    right = ended(step(QUERY, found=PASSAGES[:1]), step(QUERY, found=PASSAGES[1:]), step(ANSWER, "Velm"))
    lost = ended(step(QUERY, found=PASSAGES[2:]), step(ANSWER, "Oss"))
    found = gains([right, lost], "graph", Evidence(distances=distances))
    assert found == [pytest.approx([0.25, 0.75, 0]), pytest.approx([0, 0])]
    # A question with two parts: one is stated by p1, the other is one fact away from it.
    assert closeness(PASSAGES[:1], {"p1": (0, 1)}) == pytest.approx(0.75)
    assert closeness(PASSAGES, {}) == closeness((), distances) == 0


def test_the_mean_f1_of_continuations() -> None:
    right, wrong = answered("Velm"), answered("Oss")
    before = [right, wrong, wrong, wrong]
    states = [[before, [right, wrong], [right]], [before, [], [wrong, wrong]]]
    found = gains([right, wrong], "monte-carlo", Evidence(continuations=states))
    assert found == [pytest.approx([0.25, 0.5, 0]), pytest.approx([0, -0.25, 0])]


def test_continuations_that_agree() -> None:
    one, same, other, none = answered("Velm"), answered("the velm"), answered("Oss"), broken()
    assert agreement([one, same, other]) == pytest.approx(1 / 3)
    assert agreement([one, same]) == 1
    assert agreement([none, none, one]) == 0, "episodes without an answer do not agree"
    assert agreement([one]) is agreement([]) is None
    states = [[[one, other], [one, same], [one, same]], [[one, other], [other, one], [other, other]]]
    found = gains([one, other], "agreement", Evidence(continuations=states))
    # They end in their true outcome, however much they agree.
    assert found == [pytest.approx([1, 0, 0]), pytest.approx([0, 1, -1])]


def test_gains_sum_to_the_outcome_in_the_range_of_potentials() -> None:
    """1 for a right answer, 0 for a wrong one, less for a broken format: (-1 - 1) / 2."""
    group = [answered("Velm"), answered("Oss"), broken()]
    logps = [[-1.0, -0.5, -0.1], [-1.0, -2.0, -3.0], [-1.0, -0.2]]
    found = gains(group, "likelihood", Evidence(answer_logps=logps))
    assert [sum(each) for each in found] == pytest.approx([each - math.exp(-1) for each in (1, 0, -1)])
    apart = gains(group, "likelihood", Evidence(answer_logps=logps), normalize_rewards="apart", format_weight=0)
    assert [sum(each) for each in apart] == pytest.approx([each - math.exp(-1) for each in (1, 0, 0)])


def test_apart_the_format_has_an_advantage_of_its_own() -> None:
    group = [answered("Oss"), broken()]
    known = Evidence(answer_logps=[[-math.inf] * 3, [-math.inf] * 2])
    found = gains(group, "likelihood", known, normalize_rewards="apart", format_weight=0.1)
    assert found == [pytest.approx([0.1] * 3), pytest.approx([-0.1] * 2)]


def test_centered_gains_are_relative_to_the_group_at_the_same_step() -> None:
    known = Evidence(answer_logps=[[math.log(0.5), math.log(0.7), math.log(0.9)], [math.log(0.5), math.log(0.1)]])
    group = [answered("Velm"), ended(step(QUERY), step(ANSWER, "Oss"))]
    assert gains(group, "likelihood", known) == [pytest.approx([0.2, 0.2, 0.1]), pytest.approx([-0.4, -0.1])]
    found = gains(group, "likelihood", known, center_gains=True)
    assert found == [pytest.approx([0.3, 0.15, 0.1]), pytest.approx([-0.3, -0.15])], "nothing is like the third step"


def test_a_group_of_failures_loses_nothing_by_centered_gains() -> None:
    known = Evidence(answer_logps=[[math.log(0.5)] * 2] * 3)
    assert gains([broken()] * 3, "likelihood", known) == [pytest.approx([0, -1.5])] * 3
    assert gains([broken()] * 3, "likelihood", known, center_gains=True) == [pytest.approx([0, 0])] * 3


def test_the_outcome_may_stand_beside_gains() -> None:
    group = [answered("Velm"), answered("Oss")]
    known = Evidence(answer_logps=[[math.log(0.5)] * 3] * 2)
    both = gains(group, "likelihood", known, outcome_weight=2, process_weight=0.5)
    assert both == [pytest.approx([2, 2, 2.25]), pytest.approx([-2, -2, -2.25])]


def test_a_question_alone_is_worth_what_its_episodes_come_to() -> None:
    # Nothing is known of the first episode but its end: 1. Of the others the first known potentials are 0.4 and 0.1.
    found = step_gains([[None, None], [None, 0.4], [0.1, None]], [1.0, 0.0, 0.0])
    assert [each.tolist() for each in found] == [
        pytest.approx([0, 0.5]),
        pytest.approx([-0.1, -0.4]),
        pytest.approx([0, -0.1]),
    ]
    assert step_gains([], []) == []


def test_an_episode_that_is_cut_off_pays_back_what_it_gained() -> None:
    cut = ended(step(QUERY, found=PASSAGES[:1]), step(QUERY, found=PASSAGES), stop=StopReason.STEP_LIMIT)
    (found,) = gains([cut], "recall", Evidence())
    # It found everything and ends without an answer: a wrong answer would have been worth 0, this is worth -1.
    assert found == pytest.approx([0.5, -1.5])
    assert np.sum(found) == pytest.approx(-1)
