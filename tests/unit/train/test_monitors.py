"""Runs made by hand: which of them raise an alarm, how soon, and which checkpoint is still good."""

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from stepladder.core.errors import StepladderError
from stepladder.train.grpo.config import MonitorConfig
from stepladder.train.grpo.monitors import Alarm, AlarmName, Monitors, Row, last_good, read_alarms, write_alarms

#: A healthy update, and how much a single episode differs from the next in each column.
HEALTHY = {
    "reward": 1.4, "f1": 0.5, "valid": 0.95, "step_score": 0.6, "entropy": 0.4, "kl": 0.02, "searches": 2.4,
    "step_limit": 0.03, "repeated": 0.05, "logprob_gap_mean": 0.01, "logprob_gap_max": 0.3,
}  # fmt: skip
SPREAD = {
    "reward": 1.2, "f1": 0.45, "valid": 0.22, "step_score": 0.2, "entropy": 0.15, "kl": 0.02, "searches": 1.0,
    "step_limit": 0.17, "repeated": 0.2, "logprob_gap_mean": 0.01, "logprob_gap_max": 0.5,
}  # fmt: skip
SHARES = ("f1", "valid", "step_score", "step_limit", "repeated")

#: What a column is at an update.
Course = Callable[[int], float]


def run(updates: int, *, seed: int = 0, episodes: int = 64, **courses: Course) -> list[Row]:
    """The rows of a healthy run but for the columns in `courses`, with the noise of so many episodes an update."""
    generator = np.random.default_rng(seed)
    rows: list[Row] = []
    for step in range(1, updates + 1):
        row: dict[str, float] = {"step": step}
        for column, level in HEALTHY.items():
            mean = courses[column](step) if column in courses else level
            value = max(0.0, generator.normal(mean, SPREAD[column] / math.sqrt(episodes)))
            row[column] = min(1.0, value) if column in SHARES else value
        rows.append(row)
    return rows


def line(*points: tuple[int, float]) -> Course:
    """Straight from point to point, level before the first and after the last."""
    steps, values = zip(*points)
    return lambda step: float(np.interp(step, steps, values))


def alarms_of(rows: Iterable[Row], **limits: object) -> list[Alarm]:
    return Monitors(MonitorConfig.read(limits), rows).raised


def names_of(rows: Iterable[Row], **limits: object) -> list[str]:
    return [alarm.name.value for alarm in alarms_of(rows, **limits)]


@pytest.mark.parametrize("episodes", [64, 512])
@pytest.mark.parametrize("seed", range(4))
def test_noise_alone_raises_nothing(seed: int, episodes: int) -> None:
    assert alarms_of(run(200, seed=seed, episodes=episodes)) == []


@given(
    seed=st.integers(0, 2**32 - 1),
    level=st.fixed_dictionaries({column: st.floats(0.05, 0.95) for column in SHARES}),
)
@settings(max_examples=20, derandomize=True)  # by chance, once in thousands of runs, noise is a trend
def test_noise_raises_nothing_wherever_a_run_began(seed: int, level: dict[str, float]) -> None:
    courses = {column: line((1, value)) for column, value in level.items()}
    assert alarms_of(run(60, seed=seed, **courses)) == []


@pytest.mark.parametrize("seed", range(5))
def test_slow_honest_learning_raises_nothing(seed: int) -> None:
    rows = run(
        200,
        seed=seed,
        f1=line((1, 0.3), (120, 0.6)),  # comes to a rest while step scores go on rising
        reward=line((1, 0.9), (120, 1.9)),
        step_score=line((1, 0.5), (200, 0.85)),
        valid=line((1, 0.8), (60, 0.98)),
        entropy=line((1, 0.5), (200, 0.2)),
        kl=line((1, 0.0), (200, 0.4)),
        searches=line((1, 3.0), (200, 1.8)),
        repeated=line((1, 0.05), (200, 0.15)),
        step_limit=line((1, 0.2), (200, 0.02)),
    )
    assert alarms_of(rows) == []


#: A healthy run of 40 updates, then this; and after how many updates at most its alarm is due.
COLLAPSES = {
    "format, in one update": ("format_collapse", 2, {"valid": line((40, 0.95), (41, 0.05))}),
    "format, in ten updates": ("format_collapse", 8, {"valid": line((40, 0.95), (50, 0.4))}),
    "steps that please": (
        "reward_hacking",
        18,
        {"f1": line((40, 0.5), (60, 0.15)), "step_score": line((40, 0.6), (60, 0.95))},
    ),
    "steps that repeat": ("reward_hacking", 8, {"repeated": line((40, 0.05), (45, 0.7))}),
    "always the same text": ("entropy_collapse", 10, {"entropy": line((40, 0.4), (46, 0.01))}),
    "far away": ("kl_blow_up", 6, {"kl": line((40, 0.02), (45, 3.0))}),
    "from memory": ("no_searches", 10, {"searches": line((40, 2.4), (46, 0.05))}),
    "never an answer": ("endless", 8, {"step_limit": line((40, 0.03), (45, 0.9))}),
    "two different policies": ("logprob_mismatch", 2, {"logprob_gap_mean": line((40, 0.01), (41, 0.6))}),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", COLLAPSES)
def test_every_collapse_raises_its_own_alarm_soon_and_no_other(case: str, seed: int) -> None:
    name, due, courses = COLLAPSES[case]
    (alarm,) = alarms_of(run(80, seed=seed, **courses))
    assert alarm.name == name
    assert 40 < alarm.step <= 40 + due


def test_hacking_is_noticed_after_a_long_honest_rise() -> None:
    # F1 ends far above where it began; against the first window nothing would be wrong.
    rows = run(
        140,
        f1=line((1, 0.2), (100, 0.7), (120, 0.4)),
        reward=line((1, 1.0)),
        step_score=line((1, 0.5), (100, 0.7), (120, 0.95)),
    )
    (alarm,) = alarms_of(rows)
    assert alarm.name is AlarmName.REWARD_HACKING
    assert 100 < alarm.step <= 120
    assert "while step scores rose" in alarm.message
    good = last_good(rows, [alarm])
    assert good is not None
    assert 80 <= good <= 102  # where F1 was best


def test_an_outcome_that_falls_with_its_step_scores_is_no_hacking() -> None:
    assert names_of(run(80, f1=line((40, 0.5), (60, 0.15)), step_score=line((40, 0.6), (60, 0.3)))) == []


def test_reward_stands_in_where_f1_is_not_measured() -> None:
    rows = run(80, reward=line((40, 1.4), (60, 0.2)), step_score=line((40, 0.6), (60, 0.95)))
    assert names_of(rows) == []  # F1 held
    assert names_of({key: value for key, value in row.items() if key != "f1"} for row in rows) == ["reward_hacking"]


def plain(column: str, values: Iterable[float], start: int = 1) -> list[Row]:
    """Updates of which only one column was measured."""
    return [{"step": step, column: value} for step, value in enumerate(values, start)]


def test_an_alarm_worked_out_by_hand() -> None:
    rows = plain("valid", [0.9, 1.0, 0.9, 1.0, 0.9] + [0.45] * 8)
    # There are two windows at update 10: means 0.94 and 0.45. Of nine differences four are 0.1, one is 0.45 and four
    # are 0, so the variance is (4 * 0.1^2 + 0.45^2) / 9 / 2 = 0.0135, the error of the difference sqrt(0.0135 * 2 / 5)
    # = 0.073, and five times that is less than 0.49.
    (alarm,) = alarms_of(rows)
    assert alarm == Alarm(
        step=10,
        name=AlarmName.FORMAT_COLLAPSE,
        message="the share of valid transcripts fell from 0.94 in updates 1-5 to 0.45 in updates 6-10: lower "
        "learning_rate, raise beta, or raise rewards.format_bonus",
        value=pytest.approx(0.45),
        limit=pytest.approx(0.69),
        since=6,
        stopped=True,
    )


def test_trends_wait_for_two_windows_and_absolute_limits_do_not() -> None:
    assert alarms_of(plain("entropy", [0.5, 0.5, 0.5] + [0.001] * 6)) == []
    assert [alarm.step for alarm in alarms_of(plain("kl", [0.0, 7.0, 7.0]))] == [3]
    assert [alarm.step for alarm in alarms_of(plain("valid", [0.9, 0.1, 0.1]))] == [3]
    assert alarms_of(plain("valid", [0.4, 0.1, 0.1])) == []  # began too close to the floor


def test_one_strange_update_is_not_enough_for_an_absolute_limit() -> None:
    for column, fine, strange in (("kl", 0.02, 90.0), ("logprob_gap_mean", 0.01, 5.0), ("valid", 0.9, 0.0)):
        assert alarms_of(plain(column, [fine] * 10 + [strange] + [fine] * 10)) == [], column


def test_what_is_not_a_number_is_above_every_limit() -> None:
    (alarm,) = alarms_of(plain("kl", [0.02, 0.02, math.nan, math.nan]))
    assert (alarm.name, alarm.since) == (AlarmName.KL_BLOW_UP, 3)
    # Elsewhere it was not measured: it must not blind the guard to what comes after.
    rows = plain("entropy", [0.5, math.nan] + [0.5] * 8 + [0.001] * 10)
    assert names_of(rows) == ["entropy_collapse"]


def test_columns_that_were_not_measured_are_gaps() -> None:
    whole = run(80, **COLLAPSES["from memory"][2])
    gaps = [row if row["step"] % 3 else {"step": row["step"]} for row in whole]
    assert names_of(gaps) == ["no_searches"]
    assert alarms_of({"step": step} for step in range(1, 50)) == []


def test_an_agent_that_never_searched_cannot_stop_searching() -> None:
    assert alarms_of(plain("searches", [0.0] * 30)) == []


def test_the_most_searches_can_be_set() -> None:
    rows = run(80, searches=line((40, 2.4), (46, 5.8)))
    assert names_of(rows) == []
    assert names_of(rows, most_searches=5) == ["endless"]


def two_troubles() -> list[Row]:
    """Valid transcripts vanish, come back, and vanish again."""
    return run(120, valid=line((30, 0.95), (32, 0.1), (45, 0.1), (48, 0.95), (80, 0.95), (82, 0.1)))


def test_an_alarm_is_raised_once_until_the_trouble_has_passed() -> None:
    first, second = alarms_of(two_troubles())
    assert first.name == second.name == "format_collapse"
    assert 30 < first.step < 36
    assert 80 < second.step < 86


def test_trouble_that_comes_and_goes_around_its_limit_is_one_alarm() -> None:
    rows = plain("kl", [0.1] * 5 + [1.2, 1.2, 0.9] * 10)
    assert len(alarms_of(rows)) == 1


def test_standing_alarms_are_those_whose_trouble_has_not_passed() -> None:
    rows = two_troubles()
    assert Monitors(MonitorConfig(), rows[:30]).active == set()
    assert len(Monitors(MonitorConfig(), rows[:45]).active) == 1
    assert Monitors(MonitorConfig(), rows[:75]).active == set()
    assert Monitors(MonitorConfig(), rows).active == {AlarmName.FORMAT_COLLAPSE}


@pytest.mark.parametrize("cut", [0, 1, 7, 31, 33, 50, 79, 83, 120])
def test_a_resumed_run_raises_what_an_uninterrupted_one_does(cut: int) -> None:
    rows = two_troubles()
    guards = Monitors(MonitorConfig())
    raised = [alarm for row in rows for alarm in guards.check(row)]
    assert raised == guards.raised
    resumed = Monitors(MonitorConfig(), rows[:cut])
    assert [alarm for row in rows[cut:] for alarm in resumed.check(row)] == [a for a in raised if a.step > cut]
    assert (resumed.raised, resumed.active) == (raised, guards.active)


SWITCHES = {
    "format, in one update": ("valid_drop", "valid_floor"),
    "steps that please": ("f1_drop",),
    "steps that repeat": ("repeated_rise",),
    "always the same text": ("entropy_share",),
    "far away": ("kl",),
    "from memory": ("searches_share",),
    "never an answer": ("step_limit",),
    "two different policies": ("logprob_gap",),
}


@pytest.mark.parametrize("case", SWITCHES)
def test_every_alarm_can_be_switched_off(case: str) -> None:
    rows = run(80, **COLLAPSES[case][2])
    assert names_of(rows) == [COLLAPSES[case][0]]
    assert names_of(rows, **dict.fromkeys(SWITCHES[case])) == []


def test_each_limit_of_the_format_works_alone() -> None:
    rows = run(80, **COLLAPSES["format, in one update"][2])
    assert names_of(rows, valid_drop=None) == names_of(rows, valid_floor=None) == ["format_collapse"]


def test_settings_are_checked() -> None:
    with pytest.raises(StepladderError, match="entropy_share: expected less than 1, found 3"):
        MonitorConfig.read({"entropy_share": 3})
    with pytest.raises(StepladderError, match="Did you mean 'window'"):
        MonitorConfig.read({"windows": 4})


def test_the_last_good_update_is_the_one_whose_weights_were_seen_to_do_well() -> None:
    rows = plain("kl", [0.1, 0.1, 0.1, 0.1, 7.0, 7.0])
    alarms = alarms_of(rows)
    # Row 5 was sampled with the weights that update 4 left, row 4 with those of update 3.
    assert last_good(rows, alarms) == 3
    assert last_good(rows, []) == 6
    assert last_good([], []) is None
    early = plain("kl", [7.0, 7.0])
    assert last_good(early, alarms_of(early)) is None


def test_the_last_good_update_is_before_the_window_of_a_trend_and_before_the_earliest_trouble() -> None:
    rows = plain("entropy", [0.5] * 12 + [0.01] * 8)
    (alarm,) = alarms_of(rows)
    assert last_good(rows, [alarm]) == alarm.since - 2 == alarm.step - 6
    earlier = alarms_of(plain("kl", [0.1] * 5 + [7.0, 7.0]))
    assert last_good(rows, [alarm, *earlier]) == 4


def test_alarms_are_kept_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "alarms.jsonl"
    alarms = alarms_of(two_troubles(), stop=False)
    write_alarms(path, alarms)
    assert read_alarms(path) == alarms
    first, _ = (json.loads(text) for text in path.read_text().splitlines())
    assert first == {
        "step": alarms[0].step, "name": "format_collapse", "message": alarms[0].message, "value": alarms[0].value,
        "limit": alarms[0].limit, "since": alarms[0].since, "stopped": False,
    }  # fmt: skip
    write_alarms(path, [])
    assert read_alarms(path) == []


def test_an_alarm_about_what_is_not_a_number_survives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "alarms.jsonl"
    write_alarms(path, alarms_of(plain("kl", [0.02, math.nan, math.nan])))
    (alarm,) = read_alarms(path)
    assert math.isnan(alarm.value)


def test_a_spoilt_file_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "alarms.jsonl"
    assert read_alarms(path) == []
    write_alarms(path, alarms_of(two_troubles()))
    path.write_text(path.read_text() + '{"step": 3, "name": "fire"}\n')
    with pytest.raises(StepladderError, match=r"alarms.jsonl:3: not an alarm: name: Input should be 'format_collapse'"):
        read_alarms(path)
