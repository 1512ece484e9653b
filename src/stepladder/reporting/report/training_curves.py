"""Learning curves: one small chart per metric that a stage logged during training.

In: a `RunData`. Out: the charts of each stage that wrote `curves.jsonl`, finished or not. Every numeric column is
drawn, so a new kind of stage needs no change here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from stepladder.core.config import Config
from stepladder.pipeline.run_folder import StageRecord
from stepladder.reporting.charts.line_chart import Points, curve_svg, first_and_last
from stepladder.reporting.report.run_data import RunData
from stepladder.reporting.stage_summaries import stage_summary
from stepladder.train.loop.metrics_log import Row, read_metrics
from stepladder.train.prm.config import PRMConfig

CURVES = "curves.jsonl"

_DEV = "dev_"
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

    stage: str
    kind: str
    updates: int
    done: bool
    #: The stage summary: a headline, and lines by name.
    headline: str
    lines: Mapping[str, str]
    curves: tuple[Curve, ...]
    #: Curves that are folded away.
    secondary: tuple[Curve, ...]
    #: Metrics with a single value.
    constants: Mapping[str, str]


def curves_of(run: RunData) -> tuple[StageCurves, ...]:
    """The curves of every training stage."""
    done = {stage.name for stage in run.report.stages}
    paths = {stage.name: run.folder / stage.name / CURVES for stage in run.known_stages}
    settings = {stage.name: stage.settings for stage in run.report.recipe.stages}
    return tuple(
        _stage_curves(stage, settings[stage.name], paths[stage.name], done=stage.name in done)
        for stage in run.known_stages
        if paths[stage.name].is_file()
    )


def _stage_curves(stage: StageRecord, settings: Config, path: Path, *, done: bool) -> StageCurves:
    rows = read_metrics(path)
    headline, lines = (stage_summary(stage) if done else None) or ("", {})
    charts: dict[str, Curve] = {}
    constants: dict[str, str] = {}
    for name, columns in _metrics(rows).items():
        values = [value for points in columns for _, value in points]
        if len(set(values)) == 1 and math.isfinite(values[0]):
            constants[_name(name)] = f"{_number(values[0])} ({'constant' if len(values) > 1 else 'one value'})"
        else:
            charts[name] = _curve(name, *columns, _note(name, settings) if all(columns) else "")
    secondary = {name for name in charts if name in _SECONDARY or name.endswith("seconds")}
    return StageCurves(
        stage.name,
        stage.kind,
        max((row["step"] for row in rows), default=0),
        done,
        headline.replace("->", "→"),
        {name: line.replace("->", "→") for name, line in lines.items() if line},
        tuple(curve for name, curve in charts.items() if name not in secondary),
        tuple(curve for name, curve in charts.items() if name in secondary),
        constants,
    )


def _metrics(rows: list[Row]) -> dict[str, tuple[Points, Points]]:
    """Values in training and on dev questions, by metric. A metric with both becomes one chart."""
    found: dict[str, tuple[list[tuple[float, float]], list[tuple[float, float]]]] = {}
    for row in rows:
        for column, value in row.items():
            if column in _INDEX_COLUMNS or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            # Seconds per update and seconds per dev evaluation are different metrics.
            name = column if column.endswith("seconds") else column.removeprefix(_DEV)
            found.setdefault(name, ([], []))[column.startswith(_DEV)].append((float(row["step"]), float(value)))
    return dict(found)


def _note(metric: str, settings: Config) -> str:
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
    drawn = [[point for point in points if math.isfinite(point[1])] for points in (updates, dev)]
    chart = curve_svg(_name(name), drawn[0], drawn[1]) if any(drawn) else ""
    caption = " · ".join(f"{split}{_span(points)}" for split, points in (("", drawn[0]), ("dev ", drawn[1])) if points)
    not_finite = len(updates) + len(dev) - len(drawn[0]) - len(drawn[1])
    return Curve(_name(name), caption, note, not_finite, Markup(chart))


def _span(points: Points) -> str:
    first, last = first_and_last(points)
    return f"{_number(first)} → {_number(last)}" if len(points) > 1 else _number(first)


def _number(value: float) -> str:
    return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}").replace("-", "−")


def _name(column: str) -> str:
    return _NAMES.get(column, column.replace("_", " "))
