"""The report of a study: tables on the console, `study.json`, and a plot with bands.

In: `StudyResults`. Out: files in the study's folder, text on a console.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stepladder.core.io.files import atomic_file
from stepladder.evaluation.statistics import Interval, interval_text, signed_text
from stepladder.evaluation.svg_figure import SERIES
from stepladder.reporting.charts.figures import Point, bands_svg
from stepladder.reporting.studies.study_arms import selecting_stages
from stepladder.reporting.studies.study_json import codes_of, plain_results
from stepladder.reporting.studies.study_results import (
    StudyResults,
    curve_differences,
    method_interval,
    questions_to_reach,
    study_curves,
)
from stepladder.reporting.studies.study_statistics import MIN_SEEDS
from stepladder.reporting.studies.study_verdict import breaches, p_text, verdicts

RESULTS, PLOT = "study.json", "study.svg"
#: The columns of the tables of the ledger: label, name in a `Ledger`.
_LABELS = (
    ("questions", "questions"),
    ("answers", "answers"),
    ("decompositions", "decompositions"),
    ("judge calls", "judge_calls"),
    ("updates", "updates"),
)
_COMPUTE = (
    ("tokens read", "tokens_read"),
    ("sampled", "tokens_sampled"),
    ("trained", "tokens_trained"),
    ("GPU s", "gpu_seconds"),
    ("CPU s", "cpu_seconds"),
)
#: The columns of the table by number of hops: label -> name of the number and its format.
_BY_HOPS = {
    "questions": ("questions", ",.0f"),
    "EM": ("em", ".3f"),
    "F1": ("f1", ".3f"),
    "found": ("found", ".0%"),
    "F1 where found": ("f1_found", ".3f"),
}


def write_results(results: StudyResults, folder: Path) -> Path | None:
    """Write study.json and, if there are curves, the plot; returns the path of the plot."""
    with atomic_file(folder / RESULTS) as file:
        json.dump(plain_results(results), file, indent=2)
        file.write("\n")
    svg = plot(results)
    if svg is None:
        return None
    with atomic_file(folder / PLOT) as file:
        file.write(svg)
    return folder / PLOT


def plot(results: StudyResults) -> str | None:
    """The estimand by the x of the arms, else F1 of checkpoints by update; None without curves, or with too many."""
    study = results.study
    seeds = max((len(arm.values) for arm in results.arms), default=0)
    bands = "; bands: 95% CI of the mean" if seeds >= MIN_SEEDS else ""
    subtitle = f"mean of {seeds} seeds{bands}" if seeds > 1 else "one seed"
    if curves := study_curves(results):
        start = _mean(results.start)
        return bands_svg(
            study.name,
            curves,
            across=study.x_label,
            up=str(study.estimand),
            subtitle=subtitle,
            log=_is_log(results),
            marks={} if start is None else {"initial policy": start},
        )
    # The updates that all runs of an arm evaluated: a mean over the few that went on longer would be of other runs.
    curves = {arm.name: tuple(point for point in arm.curve if point.runs == len(arm.values)) for arm in results.arms}
    curves = {name: points for name, points in curves.items() if points}
    if not 1 <= len(curves) <= len(SERIES):
        return None
    split = "test" if study.estimand.metric == "test_f1" else "dev"
    return bands_svg(study.name, curves, across="update", up=f"F1 on {split} questions", subtitle=subtitle)


def _is_log(results: StudyResults) -> bool:
    """Whether the arms are at amounts, of which more or fewer may be needed; a share or a weight may be 0."""
    return bool(results.study.points) and all(x > 0 for _, x in results.study.points.values())


def print_results(console: Console, results: StudyResults) -> None:
    """Print the answers, the tables, the ledger and what a reader must know about them."""
    study, answers = results.study, verdicts(results)
    say_line(console, f"{study.name}: {study.question}")
    for name, answer in answers.items():
        say_line(console, f"  {name}: {answer}")
    _print_values(console, results)
    _print_contrasts(console, results)
    _print_by_hops(console, results)
    _print_ledger(console, results)
    say_line(console, "")
    for line in notes(results):
        say_line(console, line)
    if _is_log(results):
        _print_needed(console, results)


def _print_values(console: Console, results: StudyResults) -> None:
    """Means with intervals, and the value of every seed."""
    seeds = results.study.seed_list
    say_line(console, f"\n{results.study.estimand}")
    table, by_seed = result_table("arm", "mean [95% CI]"), result_table("by seed", *map(str, seeds))
    rows = {"initial policy": results.start} if results.start else {}
    for name, values in {**rows, **{arm.name: arm.values for arm in results.arms}}.items():
        found = method_interval(list(values.values()))
        table.add_row(name, _few(values) if found is None else interval_text(found))
        by_seed.add_row(name, *_cells(seeds, values))
    for each in (table, by_seed):
        console.print(each, highlight=False)


def _print_contrasts(console: Console, results: StudyResults) -> None:
    """Paired differences with intervals, p-values and the value of every seed."""
    seeds = results.study.seed_list
    say_line(console, "\nDifferences, paired by seed")
    table = result_table("contrast", "mean [95% CI]", "p", "p (Holm)")
    by_seed = result_table("by seed", *map(str, seeds))
    for each in results.contrasts:
        p_values = ("" if p is None else p_text(p) for p in (each.p, each.p_holm))
        table.add_row(each.name, _change(each.interval, each.differences), *p_values)
        by_seed.add_row(each.name, *_cells(seeds, each.differences, "+"))
    for pair, found in curve_differences(results).items():
        table.add_row(f"{pair}, over the curve", _change(method_interval(list(found.values())), found), "", "")
        by_seed.add_row(f"{pair}, over the curve", *_cells(seeds, found, "+"))
    for each_table in (table, by_seed):
        console.print(each_table, highlight=False)


def _print_by_hops(console: Console, results: StudyResults) -> None:
    """What was found, and what was made of it."""
    arms = {arm.name: arm.by_hops for arm in results.arms if arm.by_hops}
    if not arms:
        return
    say_line(console, f"\n{results.study.by_hops} by number of hops, means over seeds (found: all gold passages)")
    table = result_table("arm", "hops", *_BY_HOPS)
    for arm, groups in arms.items():
        for hops, numbers in groups.items():
            cells = [f"{numbers[name]:{style}}" if name in numbers else "-" for name, style in _BY_HOPS.values()]
            table.add_row(arm, "not known" if hops == "0" else hops, *cells)
    console.print(table, highlight=False)


def _print_ledger(console: Console, results: StudyResults) -> None:
    """What a run consumed."""
    counts_it = results.study.budget is not None and results.study.budget.evaluation
    what = f"with the evaluation {results.study.estimand.stage}" if counts_it else "without evaluations"
    say_line(console, f"\nConsumed per seed, {what} (-: not counted)")
    shared = {} if results.shared is None else {f"shared, up to {results.study.shared}": results.shared}
    ledgers = {**shared, **{arm.name: arm.ledger for arm in results.arms}}
    for columns in (_LABELS, _COMPUTE):
        table = result_table("", *(label for label, _ in columns))
        for name, ledger in ledgers.items():
            found = [getattr(ledger, field) for _, field in columns]
            table.add_row(name, *("-" if value is None else f"{value:,.0f}" for value in found))
        console.print(table, highlight=False)


def notes(results: StudyResults) -> list[str]:
    """What a reader must know: unfinished runs, budgets, selection, amendments, versions of the code."""
    study, lines = results.study, list[str]()
    if results.unfinished:
        runs = ", ".join(f"seed {each.seed} {each.arm} ({each.state})" for each in results.unfinished)
        lines.append(f"unfinished: {runs}")
    few = [arm.name for arm in results.arms if len(arm.values) < MIN_SEEDS]
    if few:
        lines.append(f"no interval for {', '.join(few)}: fewer than {MIN_SEEDS} seeds say nothing about a method")
    if study.budget is None:
        lines.append("budget: none stated; the arms may differ in what they consumed")
    elif found := breaches(results):
        lines.append(f"budget not kept: {'; '.join(map(str, found))}")
    else:
        amounts = ", ".join(f"{name.replace('_', ' ')} {amount}" for name, amount in study.budget.amounts().items())
        between = ", between the arms of each contrast" if study.budget.between == "contrasts" else ""
        lines.append(f"budget kept: {amounts}, within {study.budget.tolerance:.0%}{between}")
    selecting = selecting_stages(study) if study.estimand.last_checkpoints is None else []
    if selecting:
        lines.append(f"selection: {', '.join(selecting)} keeps its best checkpoint by F1 on dev questions")
    for name, values in results.gates.items():
        listed = " ".join(f"{value:.3f}" for value in values.values()) or "not measured yet"
        lines.append(f"gate {name}: {listed} ({study.gates[name]})")
    lines += _registered(results)
    codes = codes_of(results)
    if codes:
        lines.append(f"code: {'; '.join(codes)}{' (the runs differ)' if len(codes) > 1 else ''}")
    return lines


def _registered(results: StudyResults) -> list[str]:
    """When the study was registered, and its amendments."""
    registration = results.registration
    if registration is None:
        return []
    lines = [f"registered {registration.registered}, definition {registration.sha256[:12]}, no exclusions"]
    for each in registration.amendments:
        lines.append(f"amended {each.when}: {len(each.seeds_before)} -> {len(each.seeds)} seeds, because: {each.why}")
    if registration.amendments:
        lines.append("p-values are not corrected for having looked at the results before seeds were added")
    return lines


def _print_needed(console: Console, results: StudyResults) -> None:
    """The x at which each curve first reaches the scores above the initial policy."""
    curves, start = study_curves(results), _mean(results.start)
    levels = {point.mean for points in curves.values() for point in points}
    levels = {level for level in levels if start is None or level > start}
    if not levels:
        return
    say_line(console, f"\n{results.study.x_label} needed to reach a score (mean over seeds)")
    table = result_table(str(results.study.estimand), *curves)
    for level in sorted(levels):
        table.add_row(f"{level:.3f}", *(_needed(level, points) for points in curves.values()))
    console.print(table, highlight=False)


def _needed(level: float, points: Sequence[Point]) -> str:
    found = questions_to_reach(level, points)
    if found is None:
        return f"more than {points[-1].x:g}"
    return f"{found:,.0f}" if found > points[0].x else f"{points[0].x:g} or fewer"


def result_table(first: str, *others: str) -> Table:
    """A table without lines; all columns but the first are numbers, which are never wrapped."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def say_line(console: Console, line: str) -> None:
    """Print a line as it is."""
    console.print(line, highlight=False, soft_wrap=True, markup=False)


def _change(found: Interval | None, values: Mapping[int, float]) -> str:
    return _few(values) if found is None else signed_text(found)


def _few(values: Mapping[int, float]) -> str:
    return f"no interval from {len(values)}" if values else "no seed finished"


def _cells(seeds: Sequence[int], values: Mapping[int, float], sign: str = "") -> list[str]:
    return [f"{values[seed]:{sign}.3f}" if seed in values else "-" for seed in seeds]


def _mean(values: Mapping[int, float]) -> float | None:
    return sum(values.values()) / len(values) if values else None
