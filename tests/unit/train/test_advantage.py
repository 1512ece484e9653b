"""Advantages, against examples worked by hand."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from stepladder.train.grpo.advantage import (
    branch_advantages,
    dual_advantages,
    gain_advantages,
    node_values,
    outcome_advantages,
    process_advantages,
    standardize,
)


def test_an_answer_is_measured_against_those_of_its_group() -> None:
    # mean 1, deviations 2, -1, -1, 0: variance 6/4
    assert outcome_advantages([3, 0, 0, 1]).tolist() == pytest.approx(np.array([2, -1, -1, 0]) / 1.5**0.5)


def test_a_group_whose_answers_are_alike_teaches_nothing() -> None:
    assert outcome_advantages([2.0, 2.0, 2.0]).tolist() == [0, 0, 0]
    assert outcome_advantages([0.1 + 0.2, 0.3]).tolist() == [0, 0], "rounding is no difference"


def test_a_group_of_one_trajectory_of_one_step() -> None:
    assert process_advantages([[0.7]], [[12]]) == [np.array([0.0])]
    assert process_advantages([], []) == []


def test_steps_are_measured_over_the_tokens_of_the_group() -> None:
    # A step of 3 tokens with score 1, one of 1 token with score 0: mean 3/4, variance 3/4 * 1/16 + 1/4 * 9/16 = 3/16
    first, second = process_advantages([[1.0], [0.0]], [[3], [1]], over="tokens")
    assert first.tolist() == pytest.approx([0.25 / (3 / 16) ** 0.5])
    assert second.tolist() == pytest.approx([-0.75 / (3 / 16) ** 0.5])
    # Over steps both count the same: mean 1/2, deviation 1/2.
    assert [each.tolist() for each in process_advantages([[1.0], [0.0]], [[3], [1]], over="steps")] == [[1.0], [-1.0]]


def test_steps_are_measured_against_their_peers() -> None:
    # Two labels whose means are 0.8 and 0.3: distances 0.1 and -0.1 each; one without is 0.44 below the mean of all.
    scores, labels = [[0.9, 0.4], [0.7, 0.2], [0.0]], [["a", "b"], ["a", "b"], [None]]
    spread = ((4 * 0.1**2 + 0.44**2) / 5) ** 0.5
    found = process_advantages(scores, [[1, 1], [1, 1], [1]], "peers", labels)
    expected = [[0.1 / spread, 0.1 / spread], [-0.1 / spread, -0.1 / spread], [-0.44 / spread]]
    assert [each.tolist() for each in found] == [pytest.approx(each) for each in expected]
    with pytest.raises(ValueError, match="5 step scores, but 2 labels"):
        process_advantages(scores, [[1, 1], [1, 1], [1]], "peers", labels[:1])


def test_among_peers_long_steps_count_more() -> None:
    # Scores 1 and 0 of 3 tokens and 1: mean 3/4, distances 1/4 and -3/4, spread sqrt(3)/4.
    found = process_advantages([[1.0], [0.0]], [[3], [1]], "peers", [["a"], ["a"]])
    assert [each.tolist() for each in found] == [pytest.approx([3**-0.5]), pytest.approx([-(3**0.5)])]


def test_small_differences_stay_small() -> None:
    close = process_advantages([[0.52], [0.48]], [[1], [1]], min_std=0.2)
    assert [each.tolist() for each in close] == [pytest.approx([0.1]), pytest.approx([-0.1])]
    far = process_advantages([[1.0], [0.0]], [[1], [1]], min_std=0.2)
    assert [each.tolist() for each in far] == [[1], [-1]], "what spreads more is divided by its spread"


def test_trajectories_of_different_length_get_back_what_is_theirs() -> None:
    scores = [[0.9, 0.1, 0.5], [0.4], [0.6, 0.6]]
    found = process_advantages(scores, [[1, 1, 1], [1], [1, 1]], over="steps")
    assert [len(each) for each in found] == [3, 1, 2]
    assert np.concatenate(found).tolist() == standardize(np.concatenate([np.array(s) for s in scores])).tolist()


def test_scores_without_their_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="3 step scores, but 2 token counts"):
        process_advantages([[0.1, 0.2], [0.3]], [[1, 1], []])


def test_the_step_counts_beside_the_answer() -> None:
    found = dual_advantages([1.0, -1.0], [[1.0, -1.0], [0.5]], process_weight=0.3)
    assert [each.tolist() for each in found] == [pytest.approx([1.3, 0.7]), pytest.approx([-0.85])]


def test_tokens_without_any_weight_teach_nothing() -> None:
    assert standardize([1.0, 0.0], [0, 0]).tolist() == [0, 0]


#        0
#      /   \
#     1     2         rewards of the ends: 3 -> 1, 4 -> 0, 2 -> 0
#    / \
#   3   4
PARENTS = [None, 0, 0, 1, 1]
REWARDS = [None, None, 0.0, 1.0, 0.0]


def test_a_state_is_worth_the_mean_of_the_ends_below_it() -> None:
    assert node_values(PARENTS, REWARDS).tolist() == pytest.approx([1 / 3, 1 / 2, 0, 1, 0])


def test_a_step_is_worth_what_it_gains() -> None:
    spread = np.std([1, 0, 0])
    expected = np.array([0, 1 / 2 - 1 / 3, 0 - 1 / 3, 1 - 1 / 2, 0 - 1 / 2]) / spread
    assert gain_advantages(PARENTS, REWARDS).tolist() == pytest.approx(expected)


def test_a_step_is_worth_what_it_gains_and_where_it_stands() -> None:
    spread = np.std([1, 0, 0])
    gained = np.array([0, 1 / 2 - 1 / 3, 0 - 1 / 3, 1 - 1 / 2, 0 - 1 / 2])
    standing = np.array([1 / 3, 1 / 2, 0, 1, 0]) - 1 / 3
    expected = (gained + standing) / spread
    assert gain_advantages(PARENTS, REWARDS, relative_to_root=True).tolist() == pytest.approx(expected)


def test_behind_the_last_parting_of_branches_only_the_standing_is_left() -> None:
    parents, rewards = [*PARENTS, 3], [None, None, 0.0, None, 0.0, 1.0]  # 3 goes on to 5, where it ends
    assert gain_advantages(parents, rewards)[5] == 0
    assert gain_advantages(parents, rewards, relative_to_root=True)[5] == pytest.approx((1 - 1 / 3) / np.std([1, 0, 0]))


def test_a_tree_whose_ends_are_alike_teaches_nothing() -> None:
    assert not gain_advantages(PARENTS, [None, None, 1.0, 1.0, 1.0], relative_to_root=True).any()
    assert not gain_advantages(PARENTS, [None, None, 1.0, 1.0, 1.0]).any()
    assert not gain_advantages([None], [None]).any()


def test_a_branch_is_measured_against_its_tree_and_against_all() -> None:
    # Tree 0 has rewards 1 and 0, tree 1 has 1 and 1. All: mean 3/4, variance 3/16.
    found = branch_advantages([0, 0, 1, 1], [1.0, 0.0, 1.0, 1.0])
    inter = np.array([0.25, -0.75, 0.25, 0.25]) / (3 / 16) ** 0.5
    assert found.tolist() == pytest.approx((inter + np.array([1, -1, 0, 0])).tolist())


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20), st.data())
def test_advantages_have_mean_zero_and_spread_one_or_none(values: list[float], data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.integers(1, 50), min_size=len(values), max_size=len(values)))
    found = standardize(values, weights)
    assert np.average(found, weights=weights) == pytest.approx(0, abs=1e-6)
    assert np.average(found**2, weights=weights) == pytest.approx(1) or not found.any()
