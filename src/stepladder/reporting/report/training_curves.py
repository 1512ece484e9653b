"""Learning curves and alarms: one small chart per metric that a stage logged during training, and what monitors found.

In: a `RunData`. Out: the charts of each stage that wrote `curves.jsonl`, finished or not; the alarms of each monitored
stage. Every numeric column is drawn, so a new kind of stage needs no change here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from stepladder.core.config import Config
from stepladder.pipeline.run_folder import StageRecord
from stepladder.reporting.charts.figures import Points, curve_svg
from stepladder.reporting.report.run_data import RunData
from stepladder.reporting.run_tables import stage_summary
from stepladder.train.grpo.monitors import ALARMS, Alarm, read_alarms
from stepladder.train.loop.metrics_log import Row, read_metrics
from stepladder.train.prm.config import PRMConfig

CURVES = "curves.jsonl"
#: The kind of stage whose alarms are always listed.
_MONITORED = "grpo"

_DEV = "dev_"
#: Longer series are downsampled to this many points by averaging neighbors.
_MAX_POINTS = 160
#: Series of at least this many points get a smoothed line: a moving average over this share of them.
_MIN_SMOOTHED, _SMOOTHING_WINDOW = 24, 1 / 12
#: Columns that locate a row; not metrics.
_INDEX_COLUMNS = frozenset({"step", "epoch"})
#: Metrics that are folded away, as are all that end with `seconds`.
_SECONDARY = frozenset({"lr", "tokens", "policy_tokens"})
#: Display names of columns; others are shown as they are.
_NAMES = {
    "f1": "F1",
    "em": "EM",
    "lr": "learning rate",
    "grad_norm": "gradient norm",
    "kl": "KL from the initial policy",
    "valid": "valid transcripts",
    "step_limit": "stopped by the step limit",
    "repeated": "repeated queries",
    "logp_chosen": "log-prob of chosen",
    "logp_rejected": "log-prob of rejected",
    "logprob_gap_mean": "log-prob gap, mean",
    "logprob_gap_max": "log-prob gap, largest",
}


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one stage."""

    name: str
    #: First and last value.
    caption: str
    #: Why training and dev values are not comparable, if they are not.
    note: str
    #: Number of values that are not finite and not drawn.
    not_finite: int
    chart: Markup


@dataclass(frozen=True, slots=True)
class StageCurves:
    """The curves of one stage."""

    stage: StageRecord
    updates: int
    done: bool
    #: The stage summary: a headline, and lines by name.
    headline: str
    lines: Mapping[str, str]
    curves: list[Curve]
    #: Curves that are folded away.
    secondary: list[Curve]
    #: Metrics with a single value.
    constants: Mapping[str, str]


def curves_of(run: RunData) -> list[StageCurves]:
    """The curves of every training stage."""
    done = {stage.name for stage in run.report.stages}
    settings = {stage.name: stage.settings for stage in run.report.recipe.stages}
    paths = [(stage, run.folder / stage.name / CURVES) for stage in run.known_stages]
    return [
        _stage_curves(stage, settings[stage.name], read_metrics(path), done=stage.name in done)
        for stage, path in paths
        if path.is_file()
    ]


def alarms_of(run: RunData) -> dict[str, list[Alarm]]:
    """Alarms by stage, ordered by update, for stages that have any or are always monitored."""
    paths = [(stage, run.folder / stage.name / ALARMS) for stage in run.known_stages]
    return {
        stage.name: list(read_alarms(path)) if path.is_file() else []
        for stage, path in paths
        if path.is_file() or stage.kind == _MONITORED
    }


def _stage_curves(stage: StageRecord, settings: Config, rows: list[Row], *, done: bool) -> StageCurves:
    headline, lines = (stage_summary(stage) if done else None) or ("", {})
    charts: dict[str, Curve] = {}
    constants: dict[str, str] = {}
    for name, columns in _metrics(rows).items():
        values = [value for points in columns for _, value in points]
        if len(set(values)) == 1 and math.isfinite(values[0]):
            constants[metric_name(name)] = f"{_number(values[0])} ({'constant' if len(values) > 1 else 'one value'})"
        else:
            charts[name] = _curve(name, *columns, note_on(name, settings) if all(columns) else "")
    secondary = {name for name in charts if is_secondary(name)}
    return StageCurves(
        stage,
        max((row["step"] for row in rows), default=0),
        done,
        headline.replace("->", "→"),
        {name: line.replace("->", "→") for name, line in lines.items() if line},
        [curve for name, curve in charts.items() if name not in secondary],
        [curve for name, curve in charts.items() if name in secondary],
        constants,
    )


def _metrics(rows: list[Row]) -> dict[str, tuple[Points, Points]]:
    """Values in training and on dev questions, by metric. A metric with both becomes one chart."""
    found: dict[str, tuple[list[tuple[float, float]], list[tuple[float, float]]]] = {}
    for row in rows:
        for column, value in row.items():
            if is_metric(column, value):
                name, dev = metric_of(column)
                found.setdefault(name, ([], []))[dev].append((float(row["step"]), float(value)))
    return dict(found)


def is_metric(column: str, value: object) -> bool:
    """Whether a value in a row is drawn."""
    return column not in _INDEX_COLUMNS and not isinstance(value, bool) and isinstance(value, int | float)


def metric_of(column: str) -> tuple[str, bool]:
    """The metric of a column, and whether it was measured on dev questions."""
    # Seconds per update and seconds per dev evaluation are different metrics.
    name = column if column.endswith("seconds") else column.removeprefix(_DEV)
    return name, column.startswith(_DEV)


def is_secondary(metric: str) -> bool:
    """Whether a metric is folded away."""
    return metric in _SECONDARY or metric.endswith("seconds")


def note_on(metric: str, settings: Config) -> str:
    """Why training and dev values of a metric are not comparable; empty if they are."""
    if not isinstance(settings, PRMConfig) or metric not in ("loss", "error"):
        return ""
    reasons = {
        "includes every token of a step, not only the last": metric == "loss" and settings.dense > 0,
        "includes gold and corrupted chains": settings.chains > 0,
    }
    found = "; ".join(reason for reason, holds in reasons.items() if holds)
    return f"Line and dots are not comparable: the training {metric} {found}." if found else ""


def _curve(name: str, updates: Points, dev: Points, note: str) -> Curve:
    drawn, dots = ([point for point in points if math.isfinite(point[1])] for points in (updates, dev))
    line = downsampled(drawn)
    smooth = smoothed(line)
    chart = curve_svg(metric_name(name), line, smooth, dots) if line or dots else ""
    ends = [f"{split}{_ends(points)}" for split, points in (("", smooth or line), ("dev ", dots)) if points]
    not_finite = len(updates) + len(dev) - len(drawn) - len(dots)
    return Curve(metric_name(name), " · ".join(ends), note, not_finite, Markup(chart))


def downsampled(points: Points) -> Points:
    """At most `_MAX_POINTS` points, each the mean of its neighbors."""
    if len(points) <= _MAX_POINTS:
        return points
    groups = np.array_split(np.asarray(points, dtype=np.float64), _MAX_POINTS)
    return [(float(step), float(value)) for step, value in (group.mean(axis=0) for group in groups)]


def smoothed(points: Points) -> Points:
    """A centered moving average; empty if there are too few points."""
    if len(points) < _MIN_SMOOTHED:
        return []
    reach = max(round(len(points) * _SMOOTHING_WINDOW / 2), 1)
    values = [value for _, value in points]
    return [
        (step, float(np.mean(values[max(index - reach, 0) : index + reach + 1])))
        for index, (step, _) in enumerate(points)
    ]


def _ends(points: Points) -> str:
    """The first and the last value."""
    first, last = _number(points[0][1]), _number(points[-1][1])
    return f"{first} → {last}" if len(points) > 1 else first


def _number(value: float) -> str:
    return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}").replace("-", "−")


def metric_name(column: str) -> str:
    """The display name of a metric."""
    return _NAMES.get(column, column.replace("_", " "))
