"""Estimators of credit against examples worked by hand: weights, deviations, the format apart, the first error."""

import math

import pytest

from stepladder.core.errors import StepladderError
from stepladder.train.grpo.credit.base import Evidence
from stepladder.train.grpo.credit.credit_group import credit_group
from stepladder.train.grpo.credit.first_error import until_first_error
from tests.support.credit import ANSWER, MALFORMED, QUERY, answered, broken, ended, logits, settings, step


def advantages(rows: object) -> list[list[float]]:
    return [list(row.advantages) for row in rows]  # type: ignore[attr-defined]


# --- the outcome


def test_the_deviation_of_a_sample_makes_smaller_advantages() -> None:
    group = [answered("Velm"), answered("Oss"), answered("Oss"), answered("Oss")]
    population = advantages(credit_group(group, settings(mode="outcome")))
    sample = advantages(credit_group(group, settings(mode="outcome", std="sample")))
    # Rewards 3, 1, 1, 1: deviations 1.5, -.5, -.5, -.5; squares sum to 3, so the deviations are sqrt(3/4) and 1.
    assert sample == [pytest.approx([1.5] * 3), *[pytest.approx([-0.5] * 3)] * 3]
    for one, other in zip(population, sample):
        assert one == pytest.approx([each * math.sqrt(4 / 3) for each in other])


def test_a_difference_of_format_alone_is_scaled_up_together_and_stays_small_apart() -> None:
    group = [answered("Oss"), answered("Oss"), answered("Oss"), broken()]
    together = advantages(credit_group(group, settings(mode="outcome")))
    apart = advantages(credit_group(group, settings(mode="outcome", normalize_rewards="apart")))
    # 1, 1, 1, -1: mean 0.5, deviation sqrt(3)/2. Apart: 0.1 times the distance from the mean.
    assert together[3] == pytest.approx([-math.sqrt(3)] * 2)
    assert apart == [*[pytest.approx([0.1 * 0.5] * 3)] * 3, pytest.approx([-0.1 * 1.5] * 2)]


def test_apart_answers_are_compared_with_answers_whatever_their_format() -> None:
    forced = ended(step(QUERY), step(ANSWER, "Velm"), stop=answered("Velm").stop.FORCED)  # type: ignore[union-attr]
    group = [answered("Velm"), forced, answered("Oss"), answered("Oss")]
    rows = credit_group(group, settings(mode="outcome", normalize_rewards="apart", format_weight=0))
    assert [row.reward for row in rows] == [3, 1, 1, 1]
    assert advantages(rows) == [pytest.approx([each] * n) for each, n in ((1, 3), (1, 2), (-1, 3), (-1, 3))]


def test_the_outcome_has_a_weight_beside_steps() -> None:
    group = [ended(step(QUERY), step(ANSWER, "Velm")), ended(step(QUERY), step(ANSWER, "Oss"))]
    evidence = Evidence([logits(1, 0), logits(1, 0)])
    rows = credit_group(group, settings(mode="dual", outcome_weight=0.25, process_weight=0.5), evidence)
    assert advantages(rows) == [pytest.approx([0.75, -0.25]), pytest.approx([0.25, -0.75])]
    alone = settings(mode="dual", outcome_weight=0, process_weight=1)
    only_steps = credit_group(group, settings(mode="process"), evidence)
    assert advantages(credit_group(group, alone, evidence)) == advantages(only_steps)


# --- steps


def test_the_format_of_steps_is_scaled_up_together_and_stays_small_apart() -> None:
    # Equal scores, one step of four without a format: +0.5, +0.5, +0.5, -0.5.
    group = [ended(step(QUERY), step(ANSWER, "Velm")), ended(step(QUERY), step(MALFORMED))]
    evidence = Evidence([logits(0.5, 0.5), logits(0.5, 0.5)])
    together = advantages(credit_group(group, settings(mode="process"), evidence))
    apart = advantages(credit_group(group, settings(mode="process", normalize_rewards="apart"), evidence))
    assert together == [pytest.approx([3**-0.5] * 2), pytest.approx([3**-0.5, -(3**0.5)])]
    assert apart == [pytest.approx([0.1 * 0.25] * 2), pytest.approx([0.1 * 0.25, -0.1 * 0.75])]


def test_behind_the_first_faulty_step_only_the_outcome_counts() -> None:
    group = [
        ended(step(QUERY), step(QUERY), step(ANSWER, "Oss")),
        ended(step(QUERY), step(ANSWER, "Velm")),
    ]
    # The second step of the first episode is faulty: .9, .1 count, and the .8 behind it does not.
    evidence = Evidence([logits(0.9, 0.1, 0.8), logits(0.9, 0.9)])
    rows = credit_group(group, settings(mode="first-error", process_weight=1), evidence)
    # Scores .9, .1, .9, .9: mean .7, deviation sqrt(.12).
    good, bad = 0.2 / math.sqrt(0.12), -0.6 / math.sqrt(0.12)
    assert advantages(rows) == [pytest.approx([-1 + good, -1 + bad, -1]), pytest.approx([1 + good, 1 + good])]
    dual = credit_group(group, settings(mode="dual", process_weight=1), evidence)
    assert dual[0].advantages[2] != pytest.approx(-1)


def test_a_step_at_one_half_or_without_a_verdict_is_no_error() -> None:
    assert until_first_error([0.0, None, 1.0]) == [0.0, None, 1.0]
    assert until_first_error([None, -0.1, 1.0, -2.0]) == [None, -0.1, None, None]
    assert until_first_error([]) == []


# --- trees


def test_episodes_may_share_all_their_steps_in_a_tree() -> None:
    """Equal answers of two branches are one node: its value is the mean of both, and it is in the loss once."""
    group = [answered("Velm"), answered("Velm"), answered("Oss")]
    evidence = Evidence(nodes=[[1, 2, 3], [1, 2, 3], [1, 2, 4]])
    rows = credit_group(group, settings(mode="tree", tree={"credit": "gains"}), evidence)
    # Rewards 3, 3, 1: mean 7/3, deviation sqrt(8)/3.
    spread = math.sqrt(8) / 3
    right, wrong = (3 - 7 / 3) / spread, (1 - 7 / 3) / spread
    assert advantages(rows) == [
        pytest.approx([0, 0, right]),
        pytest.approx([0, 0, right]),
        pytest.approx([0, 0, wrong]),
    ]
    assert [row.loss_mask for row in rows] == [(True,) * 3, (False,) * 3, (False, False, True)]


def test_a_tree_keeps_format_and_answers_apart() -> None:
    group = [answered("Oss"), broken()]
    evidence = Evidence(nodes=[[1, 2, 3], [1, 4]])
    apart = {"mode": "tree", "normalize_rewards": "apart", "format_weight": 0.2}
    gains = credit_group(group, settings(**apart, tree={"credit": "gains"}), evidence)
    assert advantages(gains) == [pytest.approx([0, 0.2, 0]), pytest.approx([0, -0.2])]
    branches = credit_group(group, settings(**apart, tree={"credit": "branches"}), evidence)
    # 1 above and below the mean of all, and as much in the only tree.
    assert advantages(branches) == [pytest.approx([0.4] * 3), pytest.approx([-0.4] * 2)]


# --- what is refused


@pytest.mark.parametrize("mode", ["dual", "process", "first-error", "gain", "tree"])
def test_evidence_that_was_not_fetched_is_an_error(mode: str) -> None:
    missing = "nodes" if mode == "tree" else "step_scores"
    with pytest.raises(ValueError, match=f"mode '{mode}' needs the evidence {missing}"):
        credit_group([answered("Velm")], settings(mode=mode))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "gain", "scorer": "gold"}, "potential: prm reads a reward model, not scorer: gold"),
        ({"mode": "gain", "potential": "recall", "scorer": "prm"}, "scorer has no effect with potential: recall"),
        ({"mode": "gain", "normalize": "peers"}, "normalize has no effect with mode: gain"),
        ({"mode": "gain", "potential": "agreement", "num_continuations": 1}, "num_continuations must be 2 or more"),
        ({"mode": "gain", "potential": "likelihood", "num_continuations": 2}, "nothing is continued"),
        ({"mode": "gain", "outcome_weight": 0, "std": "sample"}, "std has no effect"),
        ({"mode": "outcome", "outcome_weight": 0.5}, "outcome_weight has no effect with mode: outcome"),
        ({"mode": "dual", "potential": "recall"}, "potential has no effect with mode: dual"),
        ({"mode": "dual", "format_weight": 0.5}, "format_weight has no effect with normalize_rewards: together"),
        ({"mode": "dual", "outcome_weight": 0, "rewards": {"min_f1": 0.5}}, "rewards.min_f1 has no effect"),
        ({"mode": "gains"}, "unknown mode 'gains'. Did you mean 'gain'?"),
    ],
)
def test_settings_without_effect_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(StepladderError, match=message.replace("?", r"\?")):
        settings(**changes)


def test_settings_that_came_later_do_not_make_older_runs_stale() -> None:
    later = {
        "center_gains",
        "outcome_weight",
        "potential",
        "num_continuations",
        "normalize_rewards",
        "format_weight",
        "std",
    }
    assert later <= settings(mode="dual").inert()
    assert "outcome_weight" not in settings(mode="dual", outcome_weight=0.5).inert()
