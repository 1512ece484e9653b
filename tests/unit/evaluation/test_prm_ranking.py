"""How well scores rank steps and how well they are calibrated: by hand, by brute force and by simulation."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from stepladder.core.errors import StepladderError
from stepladder.evaluation import statistics
from stepladder.evaluation.prm.ranking import (
    Bin,
    as_probabilities,
    auc,
    auc_interval,
    brier,
    calibration_error,
    platt,
    reliability,
)
from stepladder.evaluation.statistics import Interval

# Few different numbers, so that there are ties.
NUMBERS = st.integers(-4, 4).map(float) | st.floats(-1e6, 1e6)
STEPS = st.lists(st.tuples(NUMBERS, st.booleans()), min_size=2, max_size=40)
BOTH_CLASSES = STEPS.filter(lambda steps: len({good for _, good in steps}) == 2)


def auc_by_pairs(scores: list[float], labels: list[bool]) -> float:
    """Every good step against every faulty one."""
    pairs = [
        (good > faulty) + (good == faulty) / 2
        for good, is_good in zip(scores, labels)
        for faulty, other_is_good in zip(scores, labels)
        if is_good and not other_is_good
    ]
    return sum(pairs) / len(pairs)


# --- ranking


def test_auc_by_hand() -> None:
    assert auc([3, 2, 1, 0], [True, True, False, False]) == 1.0
    assert auc([0, 1, 2, 3], [True, True, False, False]) == 0.0
    assert auc([3, 2, 1, 0], [True, False, True, False]) == 0.75  # 3 beats both, 1 beats one of two
    assert auc([5, 5, 5], [True, False, False]) == 0.5
    assert auc([1e308, -1e308], [True, False]) == 1.0


@given(BOTH_CLASSES)
def test_auc_is_the_share_of_pairs_in_the_right_order(steps: list[tuple[float, bool]]) -> None:
    scores, labels = map(list, zip(*steps))
    assert auc(scores, labels) == pytest.approx(auc_by_pairs(scores, labels))
    assert auc([-score for score in scores], labels) == pytest.approx(1 - auc(scores, labels))


@pytest.mark.parametrize(("label", "word"), [(True, "good"), (False, "faulty")])
def test_one_class_has_no_auc(label: bool, word: str) -> None:
    with pytest.raises(StepladderError, match=f"all 3 steps are {word}"):
        auc([1.0, 2.0, 3.0], [label] * 3)
    with pytest.raises(StepladderError, match=f"all 3 steps are {word}"):
        auc_interval([1.0, 2.0, 3.0], [label] * 3, "abc")


def test_an_interval_agrees_with_every_possible_resample_of_the_questions() -> None:
    # Four questions of different sizes; the last has faulty steps only.
    steps = {"a": [(2.0, True), (0.5, False)], "b": [(0.0, True), (1.0, False), (1.5, True)]}
    steps |= {"c": [(3.0, True), (0.5, True), (-1.0, False)], "d": [(0.2, False)]}
    every = []
    for drawn in product(steps, repeat=4):
        scores, labels = map(list, zip(*(step for question in drawn for step in steps[question])))
        if len(set(labels)) == 2:  # d d d d has no AUC
            every.append(auc_by_pairs(scores, labels))
    low, high = np.quantile(every, (0.025, 0.975))

    flat = [(score, good, question) for question, inside in steps.items() for score, good in inside]
    scores, labels, groups = map(list, zip(*flat))
    interval = auc_interval(scores, labels, groups)
    assert interval.mean == auc(scores, labels)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=0.03), pytest.approx(high, abs=0.03))
    shuffled = sorted(flat, key=lambda step: (step[0], step[2]))
    assert auc_interval(*map(list, zip(*shuffled))).mean == pytest.approx(interval.mean)


def test_steps_of_one_question_are_not_independent() -> None:
    generator = np.random.default_rng(3)
    labels = (generator.random(60) < 0.5).tolist()
    scores = (np.array(labels) + generator.normal(size=60)).tolist()
    by_question = auc_interval(scores * 20, labels * 20, list(range(60)) * 20)
    by_step = auc_interval(scores * 20, labels * 20, list(range(1200)))
    # Twenty copies of every step tell no more than one of each; only the resampling of questions knows that.
    alone = auc_interval(scores, labels, range(60))
    assert (by_question.low, by_question.high) == (
        pytest.approx(alone.low, abs=0.01),
        pytest.approx(alone.high, abs=0.01),
    )
    assert by_step.high - by_step.low < (by_question.high - by_question.low) / 3


def test_one_question_shows_no_variation() -> None:
    assert auc_interval([2.0, 1.0], [True, False], ["q", "q"]) == Interval(1.0, 1.0, 1.0)


def test_the_same_seed_gives_the_same_interval_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(1)
    scores, labels = generator.normal(size=50).tolist(), (generator.random(50) < 0.4).tolist()
    groups = [number // 3 for number in range(50)]
    interval = auc_interval(scores, labels, groups, seed=5)
    assert interval == auc_interval(scores, labels, groups, seed=5) != auc_interval(scores, labels, groups, seed=6)
    monkeypatch.setattr(statistics, "CHUNK", 1000)
    assert auc_interval(scores, labels, groups, seed=5) == interval


# --- calibration


def test_reliability_by_hand() -> None:
    chances = [0.0, 0.05, 0.1, 0.3, 0.95, 1.0]
    labels = [False, True, False, True, True, False]
    assert reliability(chances, labels) == (
        Bin(0.0, 0.1, 2, pytest.approx(0.025), 0.5),
        Bin(0.1, 0.2, 1, 0.1, 0.0),  # an edge belongs to the bin above it
        Bin(0.3, 0.4, 1, 0.3, 1.0),
        Bin(0.9, 1.0, 2, 0.975, 0.5),  # except for the last: it has 1 as well
    )
    assert calibration_error(chances, labels) == pytest.approx((2 * 0.475 + 0.1 + 0.7 + 2 * 0.475) / 6)
    assert brier(chances, labels) == pytest.approx((0 + 0.95**2 + 0.01 + 0.49 + 0.05**2 + 1) / 6)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60), st.integers(1, 12))
def test_every_step_is_in_the_bin_of_its_probability(steps: list[tuple[float, bool]], bins: int) -> None:
    chances, labels = map(list, zip(*steps))
    found = reliability(chances, labels, bins)
    for each in found:
        inside = [
            (chance, good) for chance, good in steps if each.low <= chance and (chance < each.high or each.high == 1)
        ]
        assert each.count == len(inside) > 0
        assert each.probability == pytest.approx(np.mean([chance for chance, _ in inside]))
        assert each.good == pytest.approx(np.mean([good for _, good in inside]))
    assert sum(each.count for each in found) == len(steps)
    assert 0 <= calibration_error(chances, labels, bins) <= 1


def test_probabilities_that_are_true_have_hardly_any_calibration_error() -> None:
    generator = np.random.default_rng(0)
    chances = generator.random(20_000)
    labels = (generator.random(20_000) < chances).tolist()
    assert calibration_error(chances.tolist(), labels) < 0.02
    assert calibration_error((chances**3).tolist(), labels) > 0.2


def test_platt_by_hand() -> None:
    # With two different scores the regression can meet the mean target of both. Of 4 good and 4 faulty steps the
    # targets are 5/6 and 1/6. At score 3 stand three good steps and a faulty one: (3 * 5/6 + 1/6) / 4 = 2/3, whose
    # logit is log 2; at score 1 it is the other way round, -log 2.
    scores = [3.0] * 4 + [1.0] * 4
    labels = [True, True, True, False, True, False, False, False]
    assert platt(scores, labels) == (pytest.approx(math.log(2)), pytest.approx(-2 * math.log(2)))


def test_platt_recovers_the_distortion_of_a_calibrated_score() -> None:
    generator = np.random.default_rng(2)
    logits = generator.normal(0.5, 2, size=20_000)
    labels = (generator.random(20_000) < 1 / (1 + np.exp(-logits))).tolist()
    scores = (3 * logits + 4).tolist()  # overconfident, and too kind
    scale, offset = platt(scores, labels)
    assert (scale, offset) == (pytest.approx(1 / 3, rel=0.05), pytest.approx(-4 / 3, rel=0.05))
    before, after = as_probabilities(scores), as_probabilities(scores, scale, offset)
    assert calibration_error(after, labels) < 0.02 < 0.1 < calibration_error(before, labels)
    assert brier(after, labels) < brier(before, labels)
    assert auc(after, labels) == pytest.approx(auc(scores, labels))


@given(STEPS, st.floats(1e-3, 1e3))
def test_nothing_near_the_platt_scaling_fits_better(steps: list[tuple[float, bool]], unit: float) -> None:
    assume(len({score for score, _ in steps}) > 1)  # the scale of equal scores is not determined
    scores, labels = [score * unit for score, _ in steps], [good for _, good in steps]
    positive, negative = sum(labels), len(labels) - sum(labels)
    target = [(positive + 1) / (positive + 2) if good else 1 / (negative + 2) for good in labels]

    def loss(scale: float, offset: float) -> float:
        logits = scale * np.array(scores) + offset
        return float(np.sum(np.logaddexp(0, logits) - np.array(target) * logits))

    scale, offset = platt(scores, labels)
    spread = max(np.std(scores), 1e-9)
    for turn, shift in product((-1e-3, 0, 1e-3), repeat=2):
        # Turned around the mean score, where scale and offset do not compensate each other.
        centre = float(np.mean(scores))
        assert loss(scale, offset) <= loss(scale + turn / spread, offset - turn / spread * centre + shift) + 1e-6


def test_scores_that_separate_the_classes_have_a_finite_scaling() -> None:
    scale, offset = platt([-2.0, -1.0, 1.0, 2.0], [False, False, True, True])
    assert 0 < scale < 10
    assert offset == pytest.approx(0, abs=1e-9)
    assert platt([1.0, 1.0], [True, True]) == (0.0, pytest.approx(math.log(3)))  # the target of two good steps is 3/4


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ValueError, match="found 2 and 1"):
        auc([1.0, 2.0], [True])
    with pytest.raises(ValueError, match="2 steps and 1 groups"):
        auc_interval([1.0, 2.0], [True, False], ["q"])
    with pytest.raises(ValueError, match=r"scores\[1\] is nan"):
        auc([1.0, float("nan")], [True, False])
    with pytest.raises(ValueError, match=r"labels\[0\] is 0\.5; leave out steps without a verdict"):
        platt([1.0, 2.0], [0.5, True])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"labels\[1\] is None"):
        platt([1.0, 2.0], [True, None])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"probabilities\[0\] is 1\.5"):
        brier([1.5], [True])
    with pytest.raises(ValueError, match="bins is 0"):
        reliability([0.5], [True], bins=0)
    with pytest.raises(ValueError, match="no steps"):
        brier([], [])
