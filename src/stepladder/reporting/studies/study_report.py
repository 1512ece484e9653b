"""The report of a study: tables on the console, `study.json`, and a plot with bands.

In: `StudyResults`. Out: files in the study's folder, text on a console.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stepladder.core.io.files import atomic_file
from stepladder.evaluation.statistics import Interval
from stepladder.evaluation.svg_figure import SERIES
from stepladder.reporting.charts.figures import Point, bands_svg
from stepladder.reporting.studies.study_results import StudyResults, curve_differences, questions_to_reach, study_curves

RESULTS, PLOT = "study.json", "study.svg"


def write_results(results: StudyResults, folder: Path) -> Path | None:
    """Write study.json and, if there are curves, the plot; returns the path of the plot."""
    with atomic_file(folder / RESULTS) as file:
        json.dump(results.plain(), file, indent=2)
    svg = plot(results)
    if svg is None:
        return None
    with atomic_file(folder / PLOT) as file:
        file.write(svg)
    return folder / PLOT


def plot(results: StudyResults) -> str | None:
    """Test F1 by the x of the arms, else dev F1 by update; None without curves, or with too many."""
    study, seeds = results.study, len(results.seeds)
    subtitle = f"mean of {seeds} seeds; bands: 95% CI of the mean" if seeds > 1 else "one seed"
    if study.points:
        return bands_svg(
            study.name,
            study_curves(results),
            across=study.x_label,
            up="F1 on test questions",
            subtitle=subtitle,
            log=True,
            marks={"initial policy": results.start.mean},
        )
    curves = {arm.name: arm.curve for arm in results.arms if arm.curve}
    if not 1 <= len(curves) <= len(SERIES):
        return None
    return bands_svg(study.name, curves, across="update", up="F1 on dev questions", subtitle=subtitle)


def print_results(console: Console, results: StudyResults) -> None:
    """Print the tables; if the arms are points on curves, also how many questions each curve needs."""
    study, several = results.study, len(results.seeds) > 1
    _say(console, f"{study.name}: {study.about}")
    table = _table("arm", "F1 on test questions", "questions", "updates", "tokens")
    table.add_row("initial policy", _text(results.start, several), "", "", "")
    for arm in results.arms:
        cost = (_count(arm.cost.get(name)) for name in ("questions", "steps", "tokens_sampled"))
        table.add_row(arm.name, _text(arm.mean, several), *cost)
    console.print(table, highlight=False)
    compared = [arm for arm in results.arms if arm.difference is not None]
    if compared:
        _say(console, "\nDelta F1, paired by seed")
        table, by_seed = _table("mean", ""), _table("by seed", *map(str, results.seeds))
        for arm in compared:
            assert arm.difference is not None
            pair = f"{arm.name} vs. {arm.against}"
            table.add_row(pair, _text(arm.difference, several, "+"))
            by_seed.add_row(pair, *(f"{arm.differences[seed]:+.3f}" for seed in results.seeds))
        for pair, found in curve_differences(results).items():
            table.add_row(f"{pair}, mean over the curve", _text(found, several, "+"))
        console.print(table, highlight=False)
        _say(console, "")
        console.print(by_seed, highlight=False)
    if study.points:
        _print_needed(console, results)


def _print_needed(console: Console, results: StudyResults) -> None:
    """The x at which each curve first reaches the scores above the initial policy."""
    curves = study_curves(results)
    levels = sorted({point.mean for points in curves.values() for point in points if point.mean > results.start.mean})
    _say(console, f"\n{results.study.x_label} needed to reach a score (mean over seeds)")
    table = _table("F1", *curves)
    for level in levels:
        table.add_row(f"{level:.3f}", *(_needed(level, points) for points in curves.values()))
    console.print(table, highlight=False)


def _needed(level: float, points: Sequence[Point]) -> str:
    found = questions_to_reach(level, points)
    if found is None:
        return f"more than {points[-1].x:g}"
    return f"{found:,.0f}" if found > points[0].x else f"{points[0].x:g} or fewer"


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _text(found: Interval, several: bool, sign: str = "") -> str:
    """A mean, with its interval if there are several seeds."""
    mean = f"{found.mean:{sign}.3f}"
    return f"{mean} [{found.low:{sign}.3f}, {found.high:{sign}.3f}]" if several else mean


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True, markup=False)
