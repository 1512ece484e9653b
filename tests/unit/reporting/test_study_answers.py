"""The answers of a study: intervals and tests over seeds, power, and when there is a verdict."""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from stepladder import cli
from stepladder.core.errors import StepladderError
from stepladder.evaluation.statistics import Interval
from stepladder.reporting.charts.figures import Point
from stepladder.reporting.studies import Study
from stepladder.reporting.studies.study_arms import prepare
from stepladder.reporting.studies.study_json import plain_results
from stepladder.reporting.studies.study_ledger import Ledger
from stepladder.reporting.studies.study_power import plan_power, print_power
from stepladder.reporting.studies.study_registration import Amendment, Registration
from stepladder.reporting.studies.study_report import notes, plot, print_results
from stepladder.reporting.studies.study_results import (
    ArmResult,
    StudyResults,
    Unfinished,
    compare_arms_by_seed,
    curve_differences,
    point_of,
    questions_to_reach,
)
from stepladder.reporting.studies.study_statistics import holm, paired_p, power, seeds_needed, spread, t_interval
from stepladder.reporting.studies.study_verdict import breaches, verdicts
from tests.support import ROOT


def study(**changes: Any) -> Study:
    """Three arms of a short recipe."""
    definition = {
        "name": "example",
        "question": "Is more better?",
        "recipe": "warmup-nano",
        "arms": {"less": {}, "more": {"stages.sft.num_train_epochs": 8}, "most": {"stages.sft.num_train_epochs": 9}},
        "baseline": "less",
        "estimand": {"stage": "eval-sft"},
    }
    return Study.read({**definition, **changes})


def results(
    defined: Study, by_arm: Mapping[str, list[float]], ledgers: Mapping[str, Ledger] | None = None
) -> StudyResults:
    """Results of seeds 0, 1, 2 ... of each arm."""
    used = ledgers or {}
    arms = tuple(
        ArmResult(
            name,
            dict(enumerate(by_arm.get(name, []))),
            {seed: used.get(name, Ledger()) for seed in range(len(by_arm.get(name, [])))},
        )
        for name in defined.arms
    )
    return StudyResults(defined, arms, compare_arms_by_seed(defined, arms))


def printed(found: StudyResults) -> str:
    told = StringIO()
    found = replace(found, study=prepare(found.study))
    print_results(Console(file=told, width=120), found)
    return told.getvalue()


LESS = [0.50, 0.52, 0.48, 0.51, 0.49]
#: Differences from LESS: 0.1, 0.2, 0.3, 0.2, 0.2: mean 0.2, SD 0.0707.
MORE = [0.60, 0.72, 0.78, 0.71, 0.69]
#: Differences: 0.1, -0.1, 0, 0.05, -0.05.
MOST = [0.60, 0.42, 0.48, 0.56, 0.44]


# --- statistics ---------------------------------------------------------------------------------------------------


def test_the_interval_over_seeds_is_student_s() -> None:
    # mean 2, standard deviation 1, standard error 1/sqrt(3), quantile 4.303
    found = t_interval([1, 2, 3])
    assert (found.mean, found.high - found.mean) == (2, pytest.approx(4.3027 / 3**0.5, abs=1e-4))
    assert t_interval([0.4]) == Interval(0.4, 0.4, 0.4)
    many = t_interval([float(n) for n in range(40)])  # 39 degrees of freedom: 2.023
    assert (many.high - many.mean) / (np.std(range(40), ddof=1) / 40**0.5) == pytest.approx(2.0227, abs=1e-4)


def test_the_paired_test_is_student_s() -> None:
    # mean 2, standard error 1/sqrt(3): t = 3.4641 with 2 degrees of freedom. There p = 1 - t / sqrt(t^2 + 2).
    assert paired_p([1, 2, 3]) == pytest.approx(1 - 12**0.5 / 14**0.5)
    assert paired_p([-1, -2, -3]) == pytest.approx(paired_p([1, 2, 3]))
    assert paired_p([0.1, 0.1, 0.1]) == 0


def test_holm_s_correction_never_decreases() -> None:
    assert holm({"a": 0.01, "b": 0.011, "c": 0.9}) == {"a": 0.03, "b": 0.03, "c": 0.9}
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}


def test_power_is_that_of_the_tables() -> None:
    # Cohen's tables for the paired t test, alpha .05 two-sided, power .80: d = 1 needs 10, 0.8 needs 15, 0.5 needs 34.
    assert [seeds_needed(effect, 1.0) for effect in (1.0, 0.8, 0.5)] == [10, 15, 34]
    assert seeds_needed(2.0, 4.0) == 34, "of the ratio alone"
    assert power(10, 1.0, 1.0) == pytest.approx(0.8031, abs=1e-3)
    assert power(1, 1.0, 1.0) == 0
    assert power(5, 1e-9, 1.0) == pytest.approx(0.05, abs=1e-3), "without an effect: alpha"
    assert power(500, 1.0, 0.01) == 1
    assert seeds_needed(100.0, 1.0) == 5, "fewer are no result"


def test_power_is_what_simulated_studies_find() -> None:
    differences = np.random.default_rng(0).normal(0.8, 1.0, size=(2_000, 8))
    found = np.mean([paired_p(row.tolist()) < 0.05 for row in differences])
    assert found == pytest.approx(power(8, 0.8, 1.0), abs=0.03)


def test_the_spread_of_a_pilot_is_uncertain() -> None:
    # SD 1 of 3 values; chi-squared with 2 degrees of freedom: quantiles 0.0506 and 7.3778.
    found = spread([1, 2, 3])
    assert found.mean == 1
    assert (found.low, found.high) == pytest.approx((math.sqrt(2 / 7.3778), math.sqrt(2 / 0.0506)), rel=1e-3)


# --- verdicts -----------------------------------------------------------------------------------------------------


def test_differences_are_paired_by_seed_and_between_the_right_arms() -> None:
    found = results(study(), {"less": LESS, "more": MORE, "most": MOST})
    more, most = found.contrasts
    assert (more.first, more.second) == ("more", "less")
    assert list(more.differences.values()) == pytest.approx([0.1, 0.2, 0.3, 0.2, 0.2])
    assert more.interval is not None
    assert more.interval.high - 0.2 == pytest.approx(2.7764 * 0.0707107 / 5**0.5, abs=1e-5)
    assert (most.p, most.p_holm) == (1.0, pytest.approx(1.0))
    assert more.p is not None
    assert more.p_holm == pytest.approx(2 * more.p), "the smaller of two"
    answers = verdicts(found)
    assert answers["more - less"].startswith("more is higher than less in f1 of eval-sft: +0.200 [+0.112, +0.288]")
    assert answers["most - less"].startswith("undecided: Holm p 1.000; the study states no smallest effect")
    told = printed(found)
    assert "0.500 [0.480, 0.520]" in told
    assert "+0.300" in told, "each seed is shown"


def test_an_undecided_contrast_says_how_many_seeds_it_needs() -> None:
    found = results(study(smallest_effect=0.05), {"less": LESS, "more": MORE, "most": MOST})
    needed = seeds_needed(0.05, float(np.std([0.1, -0.1, 0, 0.05, -0.05], ddof=1)), 0.025)
    assert verdicts(found)["most - less"] == (
        f"undecided: {needed - 5} more seeds would be needed for a difference of 0.05 (power 80%)"
    )


def test_a_narrow_interval_rules_out_the_smallest_effect() -> None:
    same = [value + change for value, change in zip(LESS, (0.001, -0.001, 0, 0.002, -0.002), strict=True)]
    found = results(study(smallest_effect=0.05), {"less": LESS, "more": MORE, "most": same})
    assert verdicts(found)["most - less"].startswith("no difference of 0.05 or more: the 97.5% interval")


def test_fewer_than_five_seeds_have_no_interval_and_no_verdict() -> None:
    found = results(study(seeds=4), {"less": LESS[:4], "more": MORE[:4], "most": MOST[:4]})
    assert verdicts(found)["more - less"] == "no verdict: 4 of at least 5 seeds"
    told = printed(found)
    assert "no interval from 4" in told
    assert "0.780" in told, "the values are shown"
    assert "fewer than 5 seeds say nothing about a method" in told
    plain = plain_results(found)["arms"]["more"]
    assert (plain["mean"], plain["low"]) == (None, None)
    assert plain["reason"] == "4 seeds; an interval needs at least 5"
    assert point_of(1.0, [0.1, 0.3]) == Point(1.0, 0.2, 0.2, 0.2, 2), "no band either"


def test_a_contrast_of_fewer_than_five_common_seeds_has_no_verdict() -> None:
    found = results(study(seeds=6), {"less": [*LESS, 0.5], "more": MORE[:4], "most": MOST})
    assert verdicts(found)["more - less"] == "no verdict: 4 of at least 5 seeds"


def test_unfinished_seeds_are_listed_and_hold_back_the_verdict() -> None:
    found = results(study(seeds=6), {"less": [*LESS, 0.5], "more": MORE, "most": [*MOST, 0.5]})
    found = replace(found, unfinished=(Unfinished(5, "more", "not started"),))
    answers = verdicts(found)
    assert answers["more - less"] == "no verdict yet: not all planned runs are finished (missing: seed 5)"
    assert answers["most - less"].startswith("undecided")
    assert "unfinished: seed 5 more (not started)" in printed(found)
    assert plain_results(found)["unfinished"] == [{"seed": 5, "arm": "more", "state": "not started"}]


def test_arms_that_differ_in_tokens_get_no_verdict() -> None:
    ledgers = {
        "less": Ledger(tokens_read=900, tokens_sampled=100),
        "more": Ledger(tokens_read=1000, tokens_sampled=200),
        "most": Ledger(tokens_read=900, tokens_sampled=140),
    }
    values = {"less": LESS, "more": MORE, "most": MOST}
    found = results(study(budget={"tokens": "equal"}), values, ledgers)
    assert [str(each) for each in breaches(found)] == ["more: 1,200 tokens instead of 1,000 (+20%)"]
    answers = verdicts(found)
    assert answers["more - less"] == (
        "no verdict: the arms are not comparable. more: 1,200 tokens instead of 1,000 (+20%)"
    )
    assert answers["most - less"].startswith("undecided"), "within the tolerance"
    assert "budget not kept: more: 1,200 tokens" in printed(found)
    allowed = results(study(budget={"tokens": "equal", "unequal": "remark"}), values, ledgers)
    assert "more is higher than less" in verdicts(allowed)["more - less"]
    assert "The budgets differ: more: 1,200 tokens" in verdicts(allowed)["more - less"]
    stated = results(study(budget={"tokens": 1100, "tolerance": 0.1}), values, ledgers)
    assert [each.arm for each in breaches(stated)] == [], "all within a tenth of 1,100"
    unknown = results(study(budget={"judge_calls": "equal"}), values, ledgers)
    assert [str(each) for each in breaches(unknown)] == [
        "more: judge calls were not counted",
        "most: judge calls were not counted",
    ]


def test_the_arms_of_each_contrast_may_share_a_budget_of_their_own() -> None:
    """`most` spends as much as `more`, and both twice as much as the baseline."""
    ledgers = {name: Ledger(tokens_read=read, tokens_sampled=0) for name, read in (("less", 1000), ("more", 2000))}
    ledgers["most"] = Ledger(tokens_read=2050, tokens_sampled=0)
    contrasts = {"same": "most - more", "double": "more - less"}
    values = {"less": LESS, "more": MORE, "most": MOST}
    budget = {"tokens": "equal", "between": "contrasts", "unequal": "remark"}
    found = results(study(budget=budget, contrasts=contrasts), values, ledgers)
    assert [(each.contrast, str(each)) for each in breaches(found)] == [
        ("double", "more: 2,000 tokens instead of 1,000 (+100%)")
    ]
    answers = verdicts(found)
    assert "The budgets differ" not in answers["same"], "`more` differs from `less`, and not from `most`"
    assert "The budgets differ: more: 2,000 tokens instead of 1,000 (+100%)." in answers["double"]
    kept = results(study(budget=budget, contrasts={"same": "most - more"}), values, ledgers)
    assert "budget kept: tokens equal, within 5%, between the arms of each contrast" in notes(
        replace(kept, study=prepare(kept.study))
    )
    assert "evaluation" not in study(budget={**budget, "evaluation": True}).budget.amounts()  # type: ignore[union-attr]


def test_the_ledger_says_if_it_counts_the_evaluation() -> None:
    values = {"less": LESS, "more": MORE, "most": MOST}
    assert "Consumed per seed, without evaluations" in printed(results(study(), values))
    counted = results(study(budget={"tokens": "equal", "evaluation": True}), values)
    assert "Consumed per seed, with the evaluation eval-sft" in printed(counted)


def test_weights_and_shares_may_be_0_on_the_axis() -> None:
    """There, fewer are not needed to reach a score, and an axis is not logarithmic."""
    values = {"less": LESS, "more": MORE, "most": MOST}
    points = {"less": ["a", 0], "more": ["a", 0.3], "most": ["a", 0.9]}
    told = printed(results(study(points=points, x_label="weight"), values))
    assert "needed to reach" not in told
    amounts = {"less": ["a", 1], "more": ["a", 2], "most": ["a", 4]}
    assert "weight needed to reach" in printed(results(study(points=amounts, x_label="weight"), values))
    drawn = plot(results(study(points=points, x_label="weight"), values))
    assert drawn is not None
    assert drawn.startswith("<svg")


def test_a_study_without_a_budget_says_so() -> None:
    found = results(study(), {"less": LESS, "more": MORE, "most": MOST})
    assert "budget: none stated; the arms may differ in what they consumed" in notes(
        replace(found, study=prepare(study()))
    )


def test_results_say_how_they_came_about() -> None:
    session = {
        "versions": {"stepladder": "0.2.0"},
        "git": {"revision": "abc", "dirty": False},
        "device": "cpu",
        "cores": 4,
    }
    found = results(study(), {"less": LESS, "more": MORE, "most": MOST})
    later = {**session, "git": {"revision": "def", "dirty": True}}
    found = replace(found, seconds=12.34, sessions={"seed-0/less": (session,), "seed-0/more": (session, later)})
    plain = plain_results(found)["provenance"]
    assert {"command", "commit", "versions", "hardware", "seconds"} <= plain.keys()
    assert plain["hardware"] == ["cpu, 4 CPU cores"]
    assert plain["seconds"] == 12.3
    assert plain["runs"]["seed-0/more"]["commits"] == ["abc", "def with changes"]
    assert "commit abc; Stepladder 0.2.0, commit def with changes (the runs differ)" in printed(found)


def test_p_values_after_an_amendment_are_said_to_be_uncorrected() -> None:
    found = results(study(), {"less": LESS, "more": MORE, "most": MOST})
    first = Registration("a" * 64, "2025-01-01", "0.2.0", None, {})
    added = Amendment("too wide", (0, 1), (0, 1, 2, 3, 4), "2025-01-02", "b" * 64)
    note = "p-values are not corrected for having looked at the results before seeds were added"
    assert note in printed(replace(found, registration=replace(first, amendments=(added,))))
    assert note not in printed(replace(found, registration=first))


def test_curves_are_compared_over_their_points() -> None:
    points = {"less": ["a", 1], "more": ["b", 1], "most": ["b", 2]}
    found = results(study(points=points), {"less": LESS, "more": MORE, "most": MOST})
    (pair,) = curve_differences(found)
    assert pair == "b - a"
    assert curve_differences(found)[pair][0] == pytest.approx(0.1)
    curve = [Point(x, y, y, y, 5) for x, y in ((32, 0.7), (64, 0.75), (128, 0.8))]
    assert questions_to_reach(0.6, curve) == 32, "from the beginning"
    assert questions_to_reach(0.8, curve) == 128
    assert questions_to_reach(0.81, curve) is None


# --- power from a pilot -------------------------------------------------------------------------------------------


def test_a_finished_study_is_a_pilot(tmp_path: Path) -> None:
    found = results(study(), {"less": LESS, "more": MORE, "most": MOST})
    (tmp_path / "study.json").write_text(json.dumps(plain_results(found)))
    plan = plan_power(study(smallest_effect=0.05, seeds=12), tmp_path)
    more, most = plan.contrasts
    deviation = 0.00125**0.5 * 2  # of 0.1, 0.2, 0.3, 0.2, 0.2: sqrt(0.02 / 4)
    assert more.deviation.mean == pytest.approx(deviation)
    assert more.seeds_needed == seeds_needed(0.05, deviation)
    assert more.seeds_needed_holm == seeds_needed(0.05, deviation, 0.025)
    assert most.power == pytest.approx(power(12, 0.05, most.deviation.mean))
    told = StringIO()
    print_power(Console(file=told, width=100), plan)
    assert str(more.seeds_needed) in told.getvalue()
    assert "power: of the 12 planned seeds" in told.getvalue()


def test_a_standard_deviation_takes_the_place_of_a_pilot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = study(smallest_effect=0.05, seeds=12)
    plan = plan_power(planned, Path("0.06"))
    assert [each.seeds_needed for each in plan.contrasts] == [seeds_needed(0.05, 0.06)] * 2
    assert [each.power_holm for each in plan.contrasts] == pytest.approx([power(12, 0.05, 0.06, 0.025)] * 2)
    print_power(Console(file=(told := StringIO()), width=100), plan)
    assert "pilot" not in told.getvalue()
    for no_deviation in ("6", "0", "-0.1", "nan"):
        with pytest.raises(StepladderError, match=r"or a standard deviation such as 0\.06"):
            plan_power(planned, Path(no_deviation))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "0.06").mkdir()
    with pytest.raises(StepladderError, match="expected the folder of a finished study"):  # a folder comes first
        plan_power(planned, Path("0.06"))


def test_earlier_results_are_pilots_too() -> None:
    plan = plan_power(
        study(
            arms={"outcome": {}, "tree": {"search.k": 2}, "x": {"search.k": 3}},
            baseline="outcome",
            smallest_effect=0.03,
        ),
        ROOT / "docs" / "studies" / "rl-modes.json",
    )
    assert [each.contrast for each in plan.contrasts] == ["tree - outcome"]
    assert plan.not_in_pilot == ("x - outcome",)


def test_what_is_no_pilot_is_refused(tmp_path: Path) -> None:
    planned = study(smallest_effect=0.05)

    def refused(message: str, data: object, defined: Study = planned) -> None:
        path = tmp_path / "study.json"
        path.write_text(json.dumps(data))
        with pytest.raises(StepladderError, match=message):
            plan_power(defined, path)

    arms = {arm: {"by_seed": {"0": 0.5, "1": 0.6}} for arm in ("less", "more", "most")}
    refused("needs the smallest difference that matters: add smallest_effect", {"arms": arms}, study())
    refused("is not the results of a study", {"arms": []})
    refused("the difference more - less is the same in all seeds", {"arms": arms})
    refused("has no contrast of the study: unknown arm 'more'", {"arms": {"moer": arms["more"]}})
    refused("has 1 finished seeds", {"arms": {**arms, "more": {"by_seed": {"0": 0.5}}}})
    with pytest.raises(StepladderError, match="expected the folder of a finished study"):
        plan_power(planned, tmp_path / "none")


# --- a published study


def test_a_study_is_shown_from_the_results_that_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of process-only, whose registration still fits its file, without running anything."""
    folder = tmp_path / "process-only"
    shutil.copytree(ROOT / "docs" / "studies" / "process-only", folder)
    monkeypatch.setattr("stepladder.cli.reports.run_study", lambda *_, **__: pytest.fail("it runs"))
    assert cli.main(["study", "process-only", "--show", "--json", "--out", str(tmp_path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    published = json.loads((ROOT / "docs" / "studies" / "process-only.json").read_text())
    assert shown["arms"] == published["arms"]
    assert shown["contrasts"] == published["contrasts"]
    scores = json.loads((folder / "seed-3" / "scores.json").read_text())
    assert shown["start"]["by_seed"]["3"] == scores["curve"]["0"], "of GRPO before its first update"


def test_a_study_that_was_not_started_cannot_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["study", "process-only", "--show", "--out", str(tmp_path)]) == 2
    assert "the study was not started here" in capsys.readouterr().err


def test_a_curve_ends_where_the_first_run_of_its_arm_does() -> None:
    """A token budget ends runs at different updates."""
    found = results(study(), {"less": LESS})
    complete, rest = Point(5, 0.4, 0.3, 0.5, len(LESS)), Point(7, 0.91, 0.91, 0.91, 1)
    drawn = [
        plot(replace(found, arms=(replace(found.arms[0], curve=curve),)))
        for curve in ((complete,), (complete, rest), (rest,))
    ]
    assert drawn[0] == drawn[1]
    assert drawn[2] is None
