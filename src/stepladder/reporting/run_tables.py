"""The results of a run on the console: evaluations, paired differences, stage summaries, time.

In: a `RunReport`. Out: text, or the same as JSON-compatible data. Stages declare their own summaries.
"""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from stepladder.core.trace_printer import printable
from stepladder.evaluation.evaluator import compare, load_scores
from stepladder.evaluation.statistics import Comparison, Interval, interval_text
from stepladder.pipeline.resources import BASE, ORACLE
from stepladder.pipeline.run_folder import StageRecord
from stepladder.pipeline.runner import RunReport
from stepladder.pipeline.stage import EVALUATION, PAIRS, TREES
from stepladder.reporting.stage_summaries import pair_lines, stage_summary

_METRICS = ("em", "f1")

if TYPE_CHECKING:
    from stepladder.reporting.interactive.run import Run, RunScores


@dataclass(frozen=True, slots=True)
class Difference:
    """The paired difference between two evaluations, on the same questions."""

    stage: str
    against: str
    metric: str
    comparison: Comparison


def differences(report: RunReport) -> list[Difference]:
    """Every evaluation of a model vs. the first one and vs. the previous one on the same questions.

    The oracle is not compared.
    """
    names = [stage.name for stage in _evaluations(report) if stage.inputs["policy"] != ORACLE]
    if len(names) < 2:
        return []
    scores = {name: load_scores(report.folder / name / EVALUATION) for name in names}
    questions = {name: {row.question_id for row in rows} for name, rows in scores.items()}
    found = []
    for index, name in enumerate(names):
        comparable = [each for each in names[:index] if questions[each] == questions[name]]
        for against in dict.fromkeys([*comparable[:1], *comparable[-1:]]):
            for metric in _METRICS:
                found.append(Difference(name, against, metric, compare(scores[name], scores[against], metric)))
    return found


def as_json(report: RunReport) -> dict[str, Any]:
    """The report as JSON-compatible data."""
    return {
        "name": report.recipe.name,
        "seed": report.recipe.seed,
        "folder": str(report.folder),
        "policy": None if report.policy is None else str(report.policy),
        "stages": [
            {
                "name": stage.name,
                "kind": stage.kind,
                **stage.inputs,
                "seconds": round(stage.seconds, 1),
                "attempts": stage.attempts,
                "skipped": stage.name in report.skipped,
                "summary": stage.summary,
                "outputs": {role: str(report.folder / stage.name / path) for role, path in stage.outputs.items()},
            }
            for stage in report.stages
        ],
        "differences": [asdict(each) for each in differences(report)],
    }


def print_report(console: Console, report: RunReport) -> None:
    """Print the tables and stage summaries."""
    evaluations = _evaluations(report)
    if evaluations:
        legend = "mean [95% CI]; EM: exact match, valid: share of transcripts without a malformed step"
        console.print(f"\n[bold]{printable(report.recipe.name)}[/], {legend}", highlight=False, soft_wrap=True)
        console.print(_scores(evaluations, Path(report.recipe.shared.policy).name))
        for stage in evaluations:
            if failed := stage.summary["failed"]:
                console.print(f"{stage.name}: {failed:,} episodes failed, counted as wrong", style="red")
        for each in differences(report):
            change = each.comparison.difference
            console.print(
                f"{each.stage} vs. {each.against}: {each.metric} {change.mean:+.3f} [{change.low:+.3f}, "
                f"{change.high:+.3f}], p = {each.comparison.p_value:.4f} (paired)",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
        hops = sorted({hops for stage in evaluations for hops in stage.summary["by_hops"]} - {"0"}, key=int)
        if hops:
            console.print("\n[bold]F1 by searches needed[/]", highlight=False)
            console.print(_by_hops(evaluations, hops))
    _print_summaries(console, report, before_pairs=True)
    with_pairs = [stage for stage in report.stages if PAIRS in stage.outputs]
    if with_pairs:
        legend = "agreement with the gold judge where it has a preference [95% CI]"
        console.print(f"\n[bold]Preference pairs[/]: {legend}", highlight=False, soft_wrap=True)
        console.print(_pairs(with_pairs))
        for stage in with_pairs:
            if len(with_pairs) > 1:
                console.print(f"\n[bold]{stage.name}[/]", highlight=False)
            _print_lines(console, pair_lines(stage.summary))
    _print_summaries(console, report, before_pairs=False)
    seconds = ", ".join(f"{stage.name} {stage.seconds:,.0f} s" for stage in report.stages)
    console.print(f"\ntime: {seconds}", highlight=False, soft_wrap=True)
    if report.policy is not None and (evaluations or any("policy" in stage.outputs for stage in report.stages)):
        console.print(f"trained policy: {printable(str(report.policy))}", highlight=False, soft_wrap=True)
        folder = shlex.quote(str(report.folder))
        console.print(f"next: stepladder ask --run {printable(folder)}", highlight=False, soft_wrap=True)


def print_run(console: Console, run: "Run") -> None:
    """The tables of a run in a folder."""
    print_report(console, run.report)


def print_scores(console: Console, scores: "RunScores") -> None:
    """The table of its evaluations."""
    console.print(_scores(list(scores.stages), Path(scores.report.recipe.shared.policy).name))


def _evaluations(report: RunReport) -> list[StageRecord]:
    return [stage for stage in report.stages if EVALUATION in stage.outputs]


def _scores(evaluations: list[StageRecord], base: str) -> Table:
    labels = {BASE: base, ORACLE: "oracle"}
    table = _table("stage", "policy", "questions", "EM", "F1", "valid", "searches")
    for stage in evaluations:
        numbers = stage.summary
        table.add_row(
            stage.name,
            printable(labels.get(stage.inputs["policy"], stage.inputs["policy"])),
            f"{numbers['questions']:,}",
            interval_text(Interval(**numbers["em"]), 2),
            interval_text(Interval(**numbers["f1"]), 2),
            f"{numbers['validity']:.2f}",
            f"{numbers['searches']:.2f}",
        )
    return table


def _by_hops(evaluations: list[StageRecord], hops: list[str]) -> Table:
    table = _table("stage", *hops)
    for stage in evaluations:
        groups = stage.summary["by_hops"]
        table.add_row(stage.name, *(f"{groups[each]['f1']:.2f}" if each in groups else "-" for each in hops))
    return table


def _pairs(stages: list[StageRecord]) -> Table:
    table = _table("stage", "judge", "pairs", "questions", "agreement")
    for stage in stages:
        numbers, gold = stage.summary, stage.summary["gold"] or {}
        known = gold.get("agrees") is not None
        table.add_row(
            stage.name,
            numbers["judge"],
            f"{numbers['pairs']:,}",
            f"{numbers['questions']:,}",
            interval_text(Interval(gold["agrees"], gold["low"], gold["high"]), 2) if known else "-",
        )
    return table


def _print_summaries(console: Console, report: RunReport, *, before_pairs: bool) -> None:
    """Stage summaries: before the pairs table those of stages that make trees, after it all others."""
    for stage in report.stages:
        summary = stage_summary(stage)
        if summary is not None and (TREES in stage.outputs) is before_pairs:
            headline, lines = summary
            console.print(f"\n[bold]{stage.name}[/]: {printable(headline)}", highlight=False, soft_wrap=True)
            _print_lines(console, lines)


def _print_lines(console: Console, lines: Mapping[str, str]) -> None:
    for name, line in lines.items():
        if line:
            console.print(f"  {name}: {printable(line)}", highlight=False, soft_wrap=True)


#: Columns that wrap on a narrow terminal; numbers never do.
_TEXT_COLUMNS = ("stage", "policy", "judge")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        if column in _TEXT_COLUMNS:
            table.add_column(column, overflow="fold", min_width=len(column))
        else:
            table.add_column(column, justify="right", no_wrap=True)
    return table
