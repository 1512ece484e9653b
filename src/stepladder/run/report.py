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
from stepladder.pair_stats import listed
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
            console.print(
                f"\n[bold]{stage.name}[/]: {shown(_explored(stage.summary))}", highlight=False, soft_wrap=True
            )
            _print_lines(console, _judge_lines(stage.summary))
    judged = [stage for stage in report.stages if stage.kind == "pairs"]
    if judged:
        legend = "where the gold judge prefers one of the two steps, how often it agrees [95% interval]"
        console.print(f"\n[bold]Preference pairs[/]: {legend}", highlight=False, soft_wrap=True)
        console.print(_pairs(judged))
        for stage in judged:
            if len(judged) > 1:
                console.print(f"\n[bold]{stage.name}[/]", highlight=False)
            _print_lines(console, _pair_lines(stage.summary))
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
    broken = f"; {numbers['broken']:,} simulations broke" if numbers.get("broken") else ""
    written = "" if numbers["tokens_written"] is None else f"{numbers['tokens_written']:,} tokens written, "
    return (
        f"{numbers['trees']:,} trees, on average {numbers['nodes']:.1f} nodes and {numbers['simulations']:.1f} "
        f"simulations, F1 {numbers['mean_f1']:.2f}; {numbers['solved']:.0%} of the questions were answered rightly at "
        f"least once; {written}{numbers['shared']:.0%} of all requests answered from cache{broken}{failed}"
    )


def _pairs(stages: list[StageRecord]) -> Table:
    table = _table("stage", "judge", "pairs", "questions", "agrees")
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


def _pair_lines(numbers: Mapping[str, Any]) -> dict[str, str]:
    """How right, of what kinds, how deep and how clear the pairs of a stage are, and what it took to judge them."""
    gold = {f"prefers {each}": (numbers["gold"] or {}).get(each, 0) for each in ("chosen", "rejected", "neither")}
    counts = {"gold judge": gold, **{name: numbers[name] for name in ("kinds", "depths", "margins", "dropped")}}
    counts["split"] = {name: numbers[name] for name in ("train", "dev")}
    return {**{name: listed(each) for name, each in counts.items()}, **_judge_lines(numbers)}


def _judge_lines(numbers: Mapping[str, Any]) -> dict[str, str]:
    """What became of what a model was asked as judge, and what it cost."""
    problems = "; ".join(f"{count:,} times {problem}" for problem, count in numbers.get("problems", {}).items())
    spend = {name: value for name, value in numbers.get("spend", {}).items() if value is not None}
    return {"judge": listed(numbers.get("asked", {})), "problems": problems, "spend": listed(spend)}


def _print_lines(console: Console, lines: Mapping[str, str]) -> None:
    for name, line in lines.items():
        if line:
            console.print(f"  {name}: {shown(line)}", highlight=False, soft_wrap=True)


#: Columns of names: where there is little room, these are broken and numbers are not.
_NAMES = ("stage", "policy", "judge")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        if column in _NAMES:
            table.add_column(column, overflow="fold", min_width=len(column))
        else:
            table.add_column(column, justify="right", no_wrap=True)
    return table
