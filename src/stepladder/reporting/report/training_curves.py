"""Learning curves: a small chart for everything that a stage measured while it learnt.

In: a `Run`. Out: for each stage that wrote `curves.jsonl`, done or not, its charts. Whatever is a number in a row is
drawn, so that a new kind of stage needs nothing here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from stepladder.core.config import Config
from stepladder.pipeline.run_folder import StageRecord
from stepladder.reporting.charts.line_chart import Points, curve_svg, ends
from stepladder.reporting.report.run_data import Run
from stepladder.reporting.stage_summaries import stage_summary
from stepladder.train.loop.metrics_log import Row, read_curves
from stepladder.train.prm.config import PRMConfig

CURVES = "curves.jsonl"

_DEV = "dev_"
#: Where a row stands; not what was measured.
_PLACES = frozenset({"step", "epoch"})
#: Seldom looked at; what took `seconds` is too.
_ASIDE = frozenset({"lr", "tokens", "policy_tokens"})
#: Where the name of a column is not how one would say it.
_NAMES = {
    "f1": "F1",
    "em": "EM",
    "lr": "learning rate",
    "grad_norm": "gradient norm",
    "kl": "KL from where it began",
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
    """One measure of one stage."""

    name: str
    #: Where it begins and ends.
    told: str
    #: Why training and dev cannot be compared, where they cannot.
    note: str
    #: Values that were no finite numbers and could not be drawn.
    unusable: int
    chart: Markup


@dataclass(frozen=True, slots=True)
class StageCurves:
    """The curves of one stage."""

    stage: str
    kind: str
    updates: int
    done: bool
    #: What the stage tells of itself: a headline, and lines by name.
    headline: str
    lines: Mapping[str, str]
    curves: tuple[Curve, ...]
    #: Curves that are seldom looked at.
    aside: tuple[Curve, ...]
    #: Measures that were taken once or never changed, each with its value.
    undrawn: Mapping[str, str]


def curves_of(run: Run) -> tuple[StageCurves, ...]:
    """The curves of every stage that learnt."""
    done = {stage.name for stage in run.report.stages}
    paths = {stage.name: run.folder / stage.name / CURVES for stage in run.in_order}
    settings = {stage.name: stage.settings for stage in run.report.recipe.stages}
    return tuple(
        _stage_curves(stage, settings[stage.name], paths[stage.name], done=stage.name in done)
        for stage in run.in_order
        if paths[stage.name].is_file()
    )


def _stage_curves(stage: StageRecord, settings: Config, path: Path, *, done: bool) -> StageCurves:
    rows = read_curves(path)
    headline, lines = (stage_summary(stage) if done else None) or ("", {})
    charts: dict[str, Curve] = {}
    undrawn: dict[str, str] = {}
    for name, columns in _measures(rows).items():
        values = [value for points in columns for _, value in points]
        if len(set(values)) == 1 and math.isfinite(values[0]):
            undrawn[_name(name)] = f"{_number(values[0])} {'throughout' if len(values) > 1 else 'in the end'}"
        else:
            charts[name] = _curve(name, *columns, _note(name, settings) if all(columns) else "")
    aside = {name for name in charts if name in _ASIDE or name.endswith("seconds")}
    return StageCurves(
        stage.name,
        stage.kind,
        max((row["step"] for row in rows), default=0),
        done,
        headline.replace("->", "→"),
        {name: line.replace("->", "→") for name, line in lines.items() if line},
        tuple(curve for name, curve in charts.items() if name not in aside),
        tuple(curve for name, curve in charts.items() if name in aside),
        undrawn,
    )


def _measures(rows: list[Row]) -> dict[str, tuple[Points, Points]]:
    """By measure: its values in training and on dev questions. One that has both is one chart."""
    found: dict[str, tuple[list[tuple[float, float]], list[tuple[float, float]]]] = {}
    for row in rows:
        for column, value in row.items():
            if column in _PLACES or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            # What an update takes and what a dev score takes are different things.
            name = column if column.endswith("seconds") else column.removeprefix(_DEV)
            found.setdefault(name, ([], []))[column.startswith(_DEV)].append((float(row["step"]), float(value)))
    return dict(found)


def _note(measure: str, settings: Config) -> str:
    """Why a measure is one thing in training and another on dev questions; nothing where it is the same."""
    if not isinstance(settings, PRMConfig) or measure not in ("loss", "error"):
        return ""
    reasons = {
        "every token of a step counts, and not its end alone": measure == "loss" and settings.dense > 0,
        "gold chains and spoilt ones count as well": settings.chains > 0,
    }
    found = "; ".join(reason for reason, holds in reasons.items() if holds)
    return f"Line and dots are not comparable: in training {found}." if found else ""


def _curve(name: str, updates: Points, dev: Points, note: str) -> Curve:
    drawn = [[point for point in points if math.isfinite(point[1])] for points in (updates, dev)]
    chart = curve_svg(_name(name), drawn[0], drawn[1]) if any(drawn) else ""
    told = " · ".join(f"{who}{_ends(points)}" for who, points in (("", drawn[0]), ("dev ", drawn[1])) if points)
    unusable = len(updates) + len(dev) - len(drawn[0]) - len(drawn[1])
    return Curve(_name(name), told, note, unusable, Markup(chart))


def _ends(points: Points) -> str:
    first, last = ends(points)
    return f"{_number(first)} → {_number(last)}" if len(points) > 1 else _number(first)


def _number(value: float) -> str:
    return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}").replace("-", "−")


def _name(column: str) -> str:
    return _NAMES.get(column, column.replace("_", " "))
