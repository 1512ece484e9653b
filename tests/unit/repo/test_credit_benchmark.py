"""benchmarks/credit_estimators.py: what its columns mean, and the evidence that it gives to estimators."""

import importlib
import sys
from typing import Any

import numpy as np
import pytest

from tests.support import ROOT


@pytest.fixture(scope="module")
def benchmark() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module("credit_estimators")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def test_every_estimator_has_settings_that_grpo_accepts(benchmark: Any) -> None:
    assert len(benchmark.ESTIMATORS) >= 8
    for name in benchmark.ESTIMATORS:
        settings, leaves = benchmark.settings_of(name)
        assert settings.num_generations >= leaves >= 1


TRUTH = np.array([[0.3, -0.1, -0.2, 0.0], [0.5, -0.5, 0.2, -0.2]])


def test_a_perfect_estimator_at_another_scale_has_neither_bias_nor_deviation(benchmark: Any) -> None:
    found = benchmark.summary(np.repeat(7 * TRUTH[:, :, None], 3, axis=2), TRUTH, 100.0, 10.0)
    assert found["correlation"] == pytest.approx(1)
    assert (found["bias"], found["deviation"], found["cost"]) == pytest.approx((0, 0, 0), abs=1e-9)
    assert found["sign"] == 1


def test_an_estimator_that_says_the_same_everywhere_knows_nothing(benchmark: Any) -> None:
    found = benchmark.summary(np.zeros((2, 4, 3)), TRUTH, 100.0, 10.0)
    assert found["correlation"] == found["deviation"] == 0
    assert found["sign"] == 0.5
    assert found["bias"] == pytest.approx(np.sqrt((TRUTH**2).mean()))


def test_without_a_clear_advantage_no_sign_is_right_or_wrong(benchmark: Any) -> None:
    assert benchmark.summary(np.ones((2, 4, 3)), TRUTH / 10, 100.0, 10.0)["sign"] == 0.5


def test_a_baseline_of_its_own_does_not_count(benchmark: Any) -> None:
    found = benchmark.summary(np.repeat(TRUTH[:, :, None] - 3.0, 2, axis=2), TRUTH, 100.0, 10.0)
    assert found["correlation"] == pytest.approx(1)
    assert found["bias"] == pytest.approx(0, abs=1e-9)


def test_noise_is_deviation_and_not_bias(benchmark: Any) -> None:
    noise = np.random.default_rng(0).normal(0, 0.3, (2, 4, 4000))
    found = benchmark.summary(TRUTH[:, :, None] + noise, TRUTH, 1000.0, 0.0)
    # Relative to the mean of four actions; the best scale is the share of the squares that is signal.
    variance = 0.09 * 3 / 4
    scale = (TRUTH**2).mean() / ((TRUTH**2).mean() + variance)
    assert found["deviation"] == pytest.approx(variance**0.5 * scale, rel=0.02)
    assert found["bias"] == pytest.approx((1 - scale) * np.sqrt((TRUTH**2).mean()), rel=0.05)
    assert found["cost"] == pytest.approx(found["deviation"] ** 2)


def test_evidence_is_known_before_and_after_the_action_only(benchmark: Any) -> None:
    assert benchmark.at_action(1, 4, ("before", "after"), None) == [None, "before", "after", None]
    assert benchmark.at_action(3, 4, ("before", "after"), None) == [None, None, None, "before"]


def test_a_tree_shares_the_beginning_and_equal_actions(benchmark: Any) -> None:
    state = benchmark.State(2, [], [], [])
    trajectory = type("Trajectory", (), {"steps": (0,) * 4})()
    one, same, other = (benchmark.nodes_of(state, *each, trajectory) for each in ((0, 0), (0, 1), (1, 0)))
    assert one[:2] == same[:2] == other[:2]
    assert one[2] == same[2] != other[2]
    assert len({one[3], same[3], other[3]}) == 3


def test_every_estimator_has_settings_that_exist(benchmark: Any) -> None:
    for options in benchmark.ESTIMATORS.values():
        benchmark.GRPOConfig(**{key: value for key, value in options.items() if key != "leaves"})
