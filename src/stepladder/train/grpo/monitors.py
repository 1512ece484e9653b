"""Monitors that detect the ways in which GRPO training of a search agent collapses.

In: one row of metrics per update, as in the metrics log. Out: named alarms, each with the value, the update at which
the trouble started, and what to try. Pure logic: the trainer measures, and decides what an alarm means.

    column              meaning                                             alarm
    valid               share of episodes without a malformed step          format_collapse
    f1, step_score      mean F1, or `reward`; mean score of a step, 0 to 1  reward_hacking
    repeated            share of steps that repeat a query or are empty     reward_hacking
    entropy             nats per policy token                               entropy_collapse
    kl                  KL divergence from the reference per token          kl_blow_up
    searches            searches per episode                                no_searches, endless
    step_limit          share of episodes that ended at the step limit      endless
    logprob_gap_mean    |log-prob in the engine - in the trainer|           logprob_mismatch

Trends compare the mean of the latest window of updates with that of an earlier one: the first, or for F1 the best. A
change raises an alarm if it passes its limit and is statistically significant. The noise of a metric is estimated from
the differences between neighboring updates, which a slow trend hardly affects. Absolute limits (kl, logprob_gap,
valid_floor) need two updates in a row, since one outlier token can distort one. Windows skip rows without the column.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import add, mul, sub
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from pydantic import ConfigDict, TypeAdapter, ValidationError

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.core.io.yaml_tables import read_table
from stepladder.train.grpo.config import MonitorConfig

#: The file of alarms in a stage's folder.
ALARMS = "alarms.jsonl"

#: The metrics of an update: its `step`, counted from 1, and what was measured.
Row = Mapping[str, float]


class AlarmName(StrEnum):
    """Every detected failure."""

    FORMAT_COLLAPSE = "format_collapse"  # the policy loses its agent's format
    REWARD_HACKING = "reward_hacking"  # step scores rise while answers get worse
    ENTROPY_COLLAPSE = "entropy_collapse"  # its outputs hardly vary
    KL_BLOW_UP = "kl_blow_up"  # it is far from the reference
    NO_SEARCHES = "no_searches"  # it answers from memory
    ENDLESS = "endless"  # it does not reach an answer
    LOGPROB_MISMATCH = "logprob_mismatch"  # the trained model is not the one that was sampled from


@dataclass(frozen=True, slots=True)
class Alarm:
    """A detected failure, and the update at which it was detected."""

    __pydantic_config__ = ConfigDict(extra="forbid", ser_json_inf_nan="constants")

    step: int
    name: AlarmName
    #: One sentence: the value, the earlier value, what to try.
    message: str
    value: float
    #: The limit that the value passed.
    limit: float
    #: The first update whose metrics show the failure.
    since: int
    #: Whether the alarm ended the run.
    stopped: bool


class Monitors:
    """Checks every update of a run. The same rows give the same alarms, however often the run was resumed."""

    def __init__(self, settings: MonitorConfig, rows: Iterable[Row] = ()) -> None:
        """Continue from the rows of earlier updates; their alarms are in `raised`."""
        self.settings = settings
        #: Every alarm so far.
        self.raised: list[Alarm] = []
        self._rows: list[Row] = []
        #: The alarms that are not over.
        self.active: set[AlarmName] = set()
        self._quiet: Counter[AlarmName] = Counter()
        for row in rows:
            self.check(row)

    def check(self, row: Row) -> list[Alarm]:
        """The alarms that the next update raises. An alarm is raised again after a window without a sign of it."""
        self._rows.append(row)
        new: list[Alarm] = []
        for name, rules in _RULES.items():
            sign = next(filter(None, (rule(self.settings, self._rows) for rule in rules)), None)
            self._quiet[name] = 0 if sign else self._quiet[name] + 1
            if self._quiet[name] >= self.settings.window:
                self.active.discard(name)
            if sign and name not in self.active:
                step, stops = int(row["step"]), self.settings.stop
                new.append(Alarm(step, name, sign.message, sign.value, sign.limit, sign.since, stops))
                self.active.add(name)
        self.raised += new
        return new


def last_good(rows: Iterable[Row], alarms: Iterable[Alarm]) -> int | None:
    """The newest update whose weights showed no failure: roll back to its checkpoint, or to the newest before it.

    The metrics of update n are of episodes that were sampled with the weights of update n - 1. If the first metrics
    that show the failure are those of update b, the weights after b - 1 are bad, and those after b - 2 are the newest
    known to be good. For a trend, b is the first update of its latest window; for a drop of F1 that indicates reward
    hacking, the one behind F1's best window. Of several alarms the earliest counts. Without alarms it is the last
    update; None if the failure is as old as the run.
    """
    steps = sorted({int(row["step"]) for row in rows})
    since = [alarm.since for alarm in alarms]
    if since:
        steps = [step for step in steps if step < min(since)][:-1]
    return steps[-1] if steps else None


# --- the file -------------------------------------------------------------------------------------------

_ALARM = TypeAdapter(Alarm)


def write_alarms(path: Path, alarms: Sequence[Alarm]) -> None:
    """Write all alarms of a run (`Monitors.raised`) to `alarms.jsonl`."""
    with atomic_file(path, what="alarms") as file:
        file.writelines(_ALARM.dump_json(alarm).decode() + "\n" for alarm in alarms)


def read_alarms(path: Path) -> list[Alarm]:
    """The alarms in a file; none if it does not exist."""
    alarms: list[Alarm] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.exists() else (), start=1):
        try:
            alarms.append(_ALARM.validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "line"
            raise StepladderError(f"{path}:{number}: not an alarm: {where}: {first['msg']}") from error
    return alarms


# --- changes -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sign:
    """A rule that applies."""

    value: float
    limit: float
    since: int
    message: str


#: Settings and all rows so far in, a sign out.
_Rule = Callable[[MonitorConfig, Sequence[Row]], _Sign | None]


@dataclass(frozen=True, slots=True)
class _Change:
    """The means of a column in an earlier and in the latest window."""

    before: float
    now: float
    #: A larger difference is statistically significant.
    noise: float
    #: First and last update of each window.
    updates_before: tuple[int, int]
    updates_now: tuple[int, int]

    def passed(self, limit: float, *, rising: bool) -> bool:
        """Whether the metric rose above a limit or fell below it, significantly."""
        sign = 1 if rising else -1
        return sign * (self.now - limit) > 0 and sign * (self.now - self.before) > self.noise

    def sign(self, limit: float, what: str, advice: str, *, rising: bool = False) -> _Sign | None:
        """The sign that the metric passed a limit, if it did."""
        if not self.passed(limit, rising=rising):
            return None
        (a, b), (c, d) = self.updates_before, self.updates_now
        means = f"from {self.before:.3g} in updates {a}-{b} to {self.now:.3g} in updates {c}-{d}"
        return _Sign(self.now, limit, c, f"{what} {'rose' if rising else 'fell'} {means}: {advice}")


def _measured(rows: Iterable[Row], *columns: str) -> list[Row]:
    """The rows with finite values in all the columns."""
    return [row for row in rows if all(math.isfinite(row.get(column, math.nan)) for column in columns)]


def _change(settings: MonitorConfig, measured: Sequence[Row], column: str, start: int = 0) -> _Change:
    """From the window that starts at row `start` to the latest; they must not overlap."""
    window = settings.window
    values = np.array([row[column] for row in measured])
    # Neighbors differ by two draws of the noise: half the mean square of their differences is its variance.
    variance = np.mean(np.diff(values) ** 2) / 2
    error = math.sqrt(variance * 2 / window)  # of the difference between the means of two windows
    steps = [int(row["step"]) for row in measured]
    return _Change(
        before=float(values[start : start + window].mean()),
        now=float(values[-window:].mean()),
        noise=settings.noise * error,
        updates_before=(steps[start], steps[start + window - 1]),
        updates_now=(steps[-window], steps[-1]),
    )


def best_window(values: Sequence[float], window: int) -> int:
    """The index at which the window with the highest mean starts, the latest of equals."""
    means = sliding_window_view(values, window).mean(axis=-1)
    return len(means) - 1 - int(np.argmax(means[::-1]))


# --- rules ----------------------------------------------------------------------------------------------

#: By setting: what its metric is called in a message, and what to try.
_TEXTS: dict[str, list[str]] = read_table(Path(__file__).with_suffix(".yaml"))


def _trend(setting: str, column: str, limit: Callable[[float, float], float], *, rising: bool = False) -> _Rule:
    """From the first window to the latest, a column passed `limit(its first mean, the setting)`."""

    def rule(settings: MonitorConfig, rows: Sequence[Row]) -> _Sign | None:
        measured, value = _measured(rows, column), getattr(settings, setting)
        if value is None or len(measured) < 2 * settings.window:
            return None
        change = _change(settings, measured, column)
        return change.sign(limit(change.before, value), *_TEXTS[setting], rising=rising)

    return rule


def _beyond(setting: str, column: str) -> _Rule:
    """Two updates in a row are above a limit. NaN is above every limit."""

    def rule(settings: MonitorConfig, rows: Sequence[Row]) -> _Sign | None:
        limit, last = getattr(settings, setting), [row for row in rows if column in row][-2:]
        if limit is None or len(last) < 2 or any(row[column] <= limit for row in last):
            return None
        value, (what, advice) = last[-1][column], _TEXTS[setting]
        return _Sign(value, limit, int(last[0]["step"]), f"{what} is {value:.3g}, above {limit:.3g}: {advice}")

    return rule


def _below_floor(settings: MonitorConfig, rows: Sequence[Row]) -> _Sign | None:
    """Two updates in a row are below the floor, and the first window was far above it."""
    measured, floor = _measured(rows, "valid"), settings.valid_floor
    if floor is None or len(measured) < 3:
        return None
    start = float(np.mean([row["valid"] for row in measured[:-2][: settings.window]]))
    value, since = measured[-1]["valid"], int(measured[-2]["step"])
    if start < 2 * floor or any(row["valid"] >= floor for row in measured[-2:]):
        return None
    what, advice = _TEXTS["valid_drop"]
    return _Sign(value, floor, since, f"{what} fell from {start:.3g} to {value:.3g}: {advice}")


def _scores_without_answers(settings: MonitorConfig, rows: Sequence[Row]) -> _Sign | None:
    """Step scores rise while F1 falls. F1 may have risen first, so it is compared with its best window."""
    outcome = "f1" if any("f1" in row for row in rows) else "reward"
    measured, window = _measured(rows, outcome, "step_score"), settings.window
    if settings.f1_drop is None or len(measured) < 2 * window:
        return None
    best = best_window([row[outcome] for row in measured[:-window]], window)
    scores = _change(settings, measured, "step_score", best)
    if not scores.passed(scores.before + settings.step_score_rise, rising=True):
        return None
    answers = _change(settings, measured, outcome, best)
    what = f"while step scores rose from {scores.before:.3g} to {scores.now:.3g}, {outcome}"
    advice = "lower process_weight, train the PRM on newer steps, or lower learning_rate"
    sign = answers.sign(answers.before - settings.f1_drop, what, advice)
    return sign and replace(sign, since=int(measured[best + window]["step"]))


_RULES: dict[AlarmName, tuple[_Rule, ...]] = {
    AlarmName.FORMAT_COLLAPSE: (_below_floor, _trend("valid_drop", "valid", sub)),
    AlarmName.REWARD_HACKING: (_scores_without_answers, _trend("repeated_rise", "repeated", add, rising=True)),
    AlarmName.ENTROPY_COLLAPSE: (_trend("entropy_share", "entropy", mul),),
    AlarmName.KL_BLOW_UP: (_beyond("kl", "kl"),),
    AlarmName.NO_SEARCHES: (_trend("searches_share", "searches", mul),),
    AlarmName.ENDLESS: (
        _trend("step_limit", "step_limit", lambda _, limit: limit, rising=True),
        _trend("most_searches", "searches", lambda _, limit: limit, rising=True),
    ),
    AlarmName.LOGPROB_MISMATCH: (_beyond("logprob_gap", "logprob_gap_mean"),),
}
