"""A study for its readers: a table, `study.json`, and a picture with bands.

In: `Results`. Out: files in the study's folder, lines on a console.
"""

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stepladder.evaluate.table import interval_text
from stepladder.files import atomic_file
from stepladder.studies.plot import bands_svg
from stepladder.studies.results import Results, curves_of, questions_to_reach

RESULTS, PICTURE = "study.json", "study.svg"


def write_results(results: Results, folder: Path) -> Path:
    """Write the numbers and the picture; returns the picture's path."""
    with atomic_file(folder / RESULTS) as file:
        json.dump(results.plain(), file, indent=2)
    with atomic_file(folder / PICTURE) as file:
        file.write(picture(results))
    return folder / PICTURE


def picture(results: Results) -> str:
    """Test F1 along the places of the arms, or else dev F1 along the updates."""
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
    return bands_svg(study.name, curves, across="update", up="F1 on dev questions", subtitle=subtitle)


def print_results(console: Console, results: Results) -> None:
    """The table, and where arms are curves how many questions each needs."""
    study = results.study
    console.print(f"{study.name}: {study.about}", highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("arm")
    for name in ("F1", f"less {study.baseline}", "by seed", "updates", "tokens"):
        table.add_column(name, justify="right")
    table.add_row("where all begin", interval_text(results.start, 3))
    for arm in results.arms:
        table.add_row(
            arm.name,
            interval_text(arm.mean, 3),
            "" if arm.difference is None else _signed(arm.difference.mean, arm.difference.low, arm.difference.high),
            " ".join(f"{value:.3f}" for value in arm.f1.values())
            if arm.differences is None
            else " ".join(f"{value:+.3f}" for value in arm.differences.values()),
            f"{arm.cost.get('steps', 0):,.0f}",
            f"{arm.cost.get('tokens_sampled', 0):,.0f}",
        )
    console.print(table, highlight=False, soft_wrap=True)
    if study.places:
        _print_needed(console, results)


def _print_needed(console: Console, results: Results) -> None:
    """For every score on the baseline's curve, where the other curves come to it."""
    curves = curves_of(results)
    base, _ = results.study.places[results.study.baseline]
    for name, points in curves.items():
        if name == base:
            continue
        for point in curves[base]:
            needed = questions_to_reach(point.mean, points)
            told = "not within these" if needed is None else f"{needed:,.0f}"
            console.print(
                f"F1 {point.mean:.3f}, which {base} has at {point.x:g}: {name} at {told}",
                highlight=False,
                soft_wrap=True,
            )


def _signed(mean: float, low: float, high: float) -> str:
    return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"
