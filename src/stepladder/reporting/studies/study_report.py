"""A study for its readers: a table, `study.json`, and a picture with bands.

In: `Results`. Out: files in the study's folder, lines on a console.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stepladder.core.io.files import atomic_file
from stepladder.core.svg import SERIES
from stepladder.evaluate.statistics import Interval
from stepladder.reporting.charts.band_plot import Point, bands_svg
from stepladder.reporting.studies.study_results import Results, curves_of, over_places, questions_to_reach

RESULTS, PICTURE = "study.json", "study.svg"


def write_results(results: Results, folder: Path) -> Path | None:
    """Write the numbers, and the picture if there is something to draw; returns the picture's path."""
    with atomic_file(folder / RESULTS) as file:
        json.dump(results.plain(), file, indent=2)
    drawn = picture(results)
    if drawn is None:
        return None
    with atomic_file(folder / PICTURE) as file:
        file.write(drawn)
    return folder / PICTURE


def picture(results: Results) -> str | None:
    """Test F1 along the places of the arms, or else dev F1 along the updates; None without, or with too many curves."""
    study, seeds = results.study, len(results.seeds)
    subtitle = f"mean of {seeds} seeds; bands are 95% intervals of the mean" if seeds > 1 else "one seed"
    if study.places:
        return bands_svg(
            study.name,
            curves_of(results),
            across=study.across,
            up="F1 on test questions",
            subtitle=subtitle,
            log=True,
            marks={"where all begin": results.start.mean},
        )
    curves = {arm.name: arm.curve for arm in results.arms if arm.curve}
    if not 1 <= len(curves) <= len(SERIES):
        return None
    return bands_svg(study.name, curves, across="update", up="F1 on dev questions", subtitle=subtitle)


def print_results(console: Console, results: Results) -> None:
    """The tables; where arms are points of curves, also how many questions each curve needs."""
    study, several = results.study, len(results.seeds) > 1
    _say(console, f"{study.name}: {study.about}")
    table = _table("arm", "F1 on test questions", "questions", "updates", "tokens")
    table.add_row("where all begin", _text(results.start, several), "", "", "")
    for arm in results.arms:
        cost = (_count(arm.cost.get(name)) for name in ("questions", "steps", "tokens_sampled"))
        table.add_row(arm.name, _text(arm.mean, several), *cost)
    console.print(table, highlight=False)
    compared = [arm for arm in results.arms if arm.difference is not None]
    if compared:
        _say(console, "\nDifferences in F1, paired within each seed")
        table, by_seed = _table("mean", ""), _table("by seed", *map(str, results.seeds))
        for arm in compared:
            assert arm.difference is not None
            pair = f"{arm.name} - {arm.against}"
            table.add_row(pair, _text(arm.difference, several, "+"))
            by_seed.add_row(pair, *(f"{arm.differences[seed]:+.3f}" for seed in results.seeds))
        for pair, found in over_places(results).items():
            table.add_row(f"{pair}, all", _text(found, several, "+"))
        console.print(table, highlight=False)
        _say(console, "")
        console.print(by_seed, highlight=False)
    if study.places:
        _print_needed(console, results)


def _print_needed(console: Console, results: Results) -> None:
    """At which place each curve of means first comes to the scores that one of them has, above where all begin."""
    curves = curves_of(results)
    levels = sorted({point.mean for points in curves.values() for point in points if point.mean > results.start.mean})
    _say(console, f"\n{results.study.across.capitalize()} at which the mean first comes to a score")
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
    """A mean with its interval, or alone where one run is all there is."""
    mean = f"{found.mean:{sign}.3f}"
    return f"{mean} [{found.low:{sign}.3f}, {found.high:{sign}.3f}]" if several else mean


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True, markup=False)
