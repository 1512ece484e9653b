"""Intervals and tests, against numbers worked out by hand, by brute force and by simulation."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, strategies as st

from stepladder.evaluation import statistics as stats
from stepladder.evaluation.statistics import Interval, mean_interval, paired_difference


def test_an_interval_by_hand() -> None:
    # The bootstrap mean of 50 zeros and 50 ones is Binomial(100, 1/2) / 100, whose quantiles are in every table:
    # P(X <= 39) = 0.018, P(X <= 40) = 0.028, and the same from above.
    interval = mean_interval([0.0] * 50 + [1.0] * 50)
    assert interval.mean == 0.5
    assert interval.low == pytest.approx(0.40, abs=0.011)
    assert interval.high == pytest.approx(0.60, abs=0.011)


def test_an_interval_agrees_with_every_possible_resample() -> None:
    values = [0.0, 0.1, 0.5, 1.0, 2.0]
    every_mean = [sum(draw) / 5 for draw in product(values, repeat=5)]
    low, high = np.quantile(every_mean, (0.025, 0.975))
    interval = mean_interval(values)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=0.02), pytest.approx(high, abs=0.02))


def test_the_interval_covers_the_truth_about_95_times_in_100() -> None:
    generator = np.random.default_rng(7)
    samples = [generator.random(80) < 0.3 for _ in range(200)]
    intervals = [mean_interval(sample.astype(float).tolist(), seed=i) for i, sample in enumerate(samples)]
    covered = sum(each.low <= 0.3 <= each.high for each in intervals) / len(intervals)
    assert 0.90 <= covered <= 0.99


def test_the_same_seed_gives_the_same_interval_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).random(37).tolist()
    interval = mean_interval(values, seed=3)
    assert mean_interval(values, seed=3) == interval
    assert mean_interval(values, seed=4) != interval
    monkeypatch.setattr(stats, "CHUNK", 1000)
    assert mean_interval(values, seed=3) == interval


def test_no_chunk_holds_all_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "CHUNK", 64)
    asked: list[int] = []

    def draw(rows: int) -> np.ndarray:
        asked.append(rows)
        return np.zeros(rows)

    assert len(stats.in_chunks(100, 10, draw)) == 100
    assert max(asked) * 10 <= 64
    assert len(stats.in_chunks(3, 1000, draw)) == 3  # even one row is more than a chunk


def test_one_value_and_equal_values_give_an_interval_of_no_width() -> None:
    assert mean_interval([0.1]) == Interval(0.1, 0.1, 0.1)
    assert mean_interval([0.1] * 7) == Interval(0.1, 0.1, 0.1)


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_values_that_are_not_numbers_are_refused_by_position(bad: float) -> None:
    with pytest.raises(ValueError, match=rf"values\[1\] is {bad}"):
        mean_interval([1.0, bad])
    with pytest.raises(ValueError, match=rf"b\[0\] is {bad}"):
        paired_difference([1.0], [bad])


def test_empty_and_unequal_input_is_refused() -> None:
    with pytest.raises(ValueError, match="values is empty"):
        mean_interval([])
    with pytest.raises(ValueError, match="a is empty"):
        paired_difference([], [])
    with pytest.raises(ValueError, match="2 and 1"):
        paired_difference([1.0, 0.0], [1.0])


# --- Two systems ----------------------------------------------------------------------------------------


def brute_force(differences: list[float]) -> float:
    """The share of all sign patterns, zeros included, whose sum is at least as far from 0 as the observed one."""
    observed = abs(sum(differences))
    signed = product(*((each, -each) for each in differences))
    return sum(abs(sum(pattern)) >= observed - 1e-9 for pattern in signed) / 2 ** len(differences)


def test_a_p_value_by_hand() -> None:
    # Five wins, no loss: only +++++ and ----- are as extreme, 2 of 32.
    assert paired_difference([1] * 5 + [0], [0] * 5 + [0]).p_value == 2 / 32
    # Two wins, one loss: every pattern of three has a sum of at least 1.
    assert paired_difference([1, 1, 0], [0, 0, 1]).p_value == 1


@given(st.lists(st.sampled_from([-1.0, -0.7, -0.1, 0.0, 0.1, 0.2, 0.3, 1.0]), min_size=1, max_size=9))
def test_small_samples_are_enumerated_exactly(differences: list[float]) -> None:
    result = paired_difference(differences, [0.0] * len(differences))
    assert result.p_value == pytest.approx(brute_force(differences))


def test_large_samples_are_drawn_and_agree_with_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.random.default_rng(5).random((2, 14)).tolist()
    exact = paired_difference(a, b).p_value
    monkeypatch.setattr(stats, "EXACT_UP_TO", 0)
    drawn = paired_difference(a, b).p_value
    assert drawn != exact
    assert drawn == pytest.approx(exact, abs=0.02)


def test_zeros_do_not_count_towards_enumeration() -> None:
    a = [1.0] * 6 + [0.5] * 500
    assert paired_difference(a, [0.0] * 6 + [0.5] * 500).p_value == 2 / 2**6


def test_a_drawn_p_value_is_never_zero() -> None:
    assert paired_difference([1.0] * 200, [0.0] * 200).p_value == 1 / (1 + stats.RESAMPLES)


def test_equal_systems() -> None:
    result = paired_difference([0.2, 1.0], [0.2, 1.0])
    assert result.difference == Interval(0, 0, 0)
    assert result.p_value == 1


def test_p_values_of_interchangeable_systems_are_uniform() -> None:
    generator = np.random.default_rng(11)
    p_values = [paired_difference(*generator.random((2, 12)).tolist(), seed=i).p_value for i in range(200)]
    assert 0.02 <= np.mean(np.array(p_values) <= 0.1) <= 0.18
    assert 0.4 <= np.mean(p_values) <= 0.6


def test_swapping_the_systems_turns_the_difference_round() -> None:
    a, b = np.random.default_rng(2).random((2, 60)).tolist()
    one, other = paired_difference(a, b), paired_difference(b, a)
    assert one.difference.mean == pytest.approx(np.mean(a) - np.mean(b))
    assert one.difference.low == pytest.approx(-other.difference.high)
    assert one.p_value == other.p_value


def test_pairing_sees_what_the_separate_intervals_do_not() -> None:
    hardness = np.random.default_rng(3).random(100)
    better, worse = (hardness + 0.02).tolist(), hardness.tolist()
    assert mean_interval(worse).high > mean_interval(better).low  # they overlap widely
    result = paired_difference(better, worse)
    assert result.difference.low > 0
    assert result.p_value < 0.001
