"""What a run brought: a table of its evaluations, paired differences, the time each stage took.

In: a `RunReport`. Out: text on a console, or the same as plain data.
"""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stepladder.evaluate.runner import compare, load_scores
from stepladder.evaluate.stats import Comparison, Interval
from stepladder.evaluate.table import interval_text
from stepladder.narrate import shown
from stepladder.run.folder import StageRecord
from stepladder.run.runner import RunReport
from stepladder.stages.evaluation import EVALUATION
from stepladder.workshop import BASE, GOLD

_COMPARED = ("em", "f1")


@dataclass(frozen=True, slots=True)
class Difference:
    """One evaluation less another, on the same questions."""

    stage: str
    against: str
    metric: str
    comparison: Comparison


def differences(report: RunReport) -> list[Difference]:
    """Every evaluation of a model against the first one, where both are of the same questions. No oracle takes part."""
    played = [stage for stage in _evaluations(report) if stage.inputs["policy"] != GOLD]
    if len(played) < 2:
        return []
    first, *others = played
    scores = {stage.name: load_scores(report.folder / stage.name / EVALUATION) for stage in played}
    asked = {name: {row.question_id for row in rows} for name, rows in scores.items()}
    return [
        Difference(stage.name, first.name, metric, compare(scores[stage.name], scores[first.name], metric))
        for stage in others
        if asked[stage.name] == asked[first.name]
        for metric in _COMPARED
    ]


def as_json(report: RunReport) -> dict[str, Any]:
    """The report as plain data."""
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
    """Tables and lines for a person."""
    evaluations = _evaluations(report)
    if evaluations:
        legend = "mean [95% interval]; EM: exact match, valid: no malformed step"
        console.print(f"\n[bold]{shown(report.recipe.name)}[/], {legend}", highlight=False, soft_wrap=True)
        console.print(_scores(evaluations, Path(report.recipe.shared.policy).name))
        for stage in evaluations:
            if failed := stage.summary["failed"]:
                console.print(f"{stage.name}: {failed:,} episodes failed, counted as wrong", style="red")
        for each in differences(report):
            change = each.comparison.difference
            console.print(
                f"{each.stage} - {each.against}: {each.metric} {change.mean:+.3f} [{change.low:+.3f}, "
                f"{change.high:+.3f}], p = {each.comparison.p_value:.4f} (paired)",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
        hops = sorted({hops for stage in evaluations for hops in stage.summary["by_hops"]} - {"0"}, key=int)
        if hops:
            console.print("\n[bold]F1 by searches needed[/]", highlight=False)
            console.print(_by_hops(evaluations, hops))
    for stage in report.stages:
        if stage.kind == "explore":
            console.print(f"\n[bold]{stage.name}[/]: {_explored(stage.summary)}", highlight=False, soft_wrap=True)
    judged = [stage for stage in report.stages if stage.kind == "pairs"]
    if judged:
        legend = "which step the gold judge prefers, and in how many of those it is the chosen one"
        console.print(f"\n[bold]Preference pairs[/]: {legend}", highlight=False, soft_wrap=True)
        console.print(_pairs(judged))
        for stage in judged:
            _print_details(console, stage)
    seconds = ", ".join(f"{stage.name} {stage.seconds:,.0f} s" for stage in report.stages)
    console.print(f"\ntime: {seconds}", highlight=False, soft_wrap=True)
    if report.policy is not None and evaluations:
        console.print(f"trained policy: {shown(str(report.policy))}", highlight=False, soft_wrap=True)
        folder = shlex.quote(str(report.folder))
        console.print(f"next: stepladder ask --run {shown(folder)}", highlight=False, soft_wrap=True)


def _evaluations(report: RunReport) -> list[StageRecord]:
    return [stage for stage in report.stages if stage.kind == "eval"]


def _scores(evaluations: list[StageRecord], base: str) -> Table:
    who = {BASE: base, GOLD: "oracle"}
    table = _table("stage", "policy", "questions", "EM", "F1", "valid", "searches")
    for stage in evaluations:
        numbers = stage.summary
        table.add_row(
            stage.name,
            shown(who.get(stage.inputs["policy"], stage.inputs["policy"])),
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


def _explored(numbers: Mapping[str, Any]) -> str:
    failed = f"; {numbers['failed']:,} failed: {next(iter(numbers['failures']))}" if numbers["failed"] else ""
    written = "" if numbers["tokens_written"] is None else f"{numbers['tokens_written']:,} tokens written, "
    return (
        f"{numbers['trees']:,} trees, on average {numbers['nodes']:.1f} nodes and {numbers['simulations']:.1f} "
        f"simulations, F1 {numbers['mean_f1']:.2f}; {numbers['solved']:.0%} of the questions were answered rightly at "
        f"least once; {written}{numbers['shared']:.0%} of all requests answered from cache{failed}"
    )


def _pairs(stages: list[StageRecord]) -> Table:
    table = _table("stage", "judge", "pairs", "questions", "chosen", "other", "neither", "agrees")
    for stage in stages:
        numbers, gold = stage.summary, stage.summary["gold"] or {}
        known = gold.get("agrees") is not None
        table.add_row(
            stage.name,
            numbers["judge"],
            f"{numbers['pairs']:,}",
            f"{numbers['questions']:,}",
            *(f"{gold[each]:,}" if gold else "-" for each in ("chosen", "rejected", "neither")),
            interval_text(Interval(gold["agrees"], gold["low"], gold["high"]), 2) if known else "-",
        )
    return table


def _print_details(console: Console, stage: StageRecord) -> None:
    """Of what kinds, how deep and how clear the pairs of a stage are, and what it cost to judge them."""
    numbers = stage.summary
    lines = {name: _listed(numbers[name]) for name in ("kinds", "depths", "margins", "dropped") if numbers[name]}
    lines["split"] = f"train {numbers['train']:,}, dev {numbers['dev']:,}"
    if "asked" in numbers:
        lines["judge"] = _listed(numbers["asked"])
    if "spend" in numbers:
        lines["spend"] = _listed({name: value for name, value in numbers["spend"].items() if value is not None})
    for name, line in lines.items():
        console.print(f"  {name}: {shown(line)}", highlight=False, soft_wrap=True)


def _listed(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _table(first: str, *others: str) -> Table:
    """Where there is little room, names are broken and numbers are not."""
    table = Table(box=None, pad_edge=False)
    table.add_column(first, overflow="fold")
    for column in others:
        if column == "policy":
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, justify="right", no_wrap=True)
    return table
