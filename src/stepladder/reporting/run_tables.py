"""The results of a run on the console: evaluations, paired differences, stage summaries, time, the policy to use.

In: a `RunReport`. Out: text, or the same as JSON-compatible data. Stages declare their own summaries.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepladder.agents import is_agent_file
from stepladder.core.trace_printer import printable
from stepladder.evaluation.evaluator import compare, load_scores
from stepladder.evaluation.statistics import Comparison, Interval, interval_text, signed_text
from stepladder.pipeline.resources import BASE, ORACLE, SERVER
from stepladder.pipeline.run_folder import StageRecord
from stepladder.pipeline.runner import RunReport
from stepladder.pipeline.stage import EVALUATION, PAIRS, POLICY, TREES
from stepladder.pipeline.stage_summary import StageSummary, judge_lines
from stepladder.pipeline.stages import STAGES, get_stage
from stepladder.preferences.pair_stats import format_counts
from stepladder.reporting.eval_table import UPPER_BOUND
from stepladder.reporting.number_text import counted

_METRICS = ("em", "f1")


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
    names = [stage.name for stage in model_evaluations(report)]
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
        "policy_reason": None if report.choice is None else str(report.choice),
        "worse": {name: asdict(each) for name, each in report.worse.items()},
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


def policy_label(stage: StageRecord, report: RunReport) -> str:
    """The policy that an evaluation played, and whether its scores are an upper bound or it is worse than its input."""
    source = stage.inputs[POLICY]
    shared = report.recipe.shared
    name = Path(shared.policy).name if source == BASE else shared.served_model if source == SERVER else source
    if source == ORACLE or stage.summary.get("upper_bound"):
        return name + UPPER_BOUND
    if (worse := report.worse.get(source)) is not None:
        return f"{name}: worse than {worse.against} ({worse.comparison.difference.mean:+.3f})"
    return name


def print_report(console: Console, report: RunReport) -> None:
    """Print the tables and stage summaries."""
    evaluated = evaluations(report)
    if evaluated:
        legend = "mean [95% CI]; n: questions, EM: exact match, valid: share of transcripts without a malformed step"
        console.print(f"\n[bold]{printable(report.recipe.name)}[/], {legend}", highlight=False, soft_wrap=True)
        print_scores(console, report)
        for stage in evaluated:
            if failed := stage.summary["failed"]:
                console.print(f"{stage.name}: {counted(failed, 'episode')} failed, counted as wrong", style="red")
        for each in differences(report):
            p_value = f"p = {each.comparison.p_value:.4f} (paired)"
            change = f"{each.metric} {signed_text(each.comparison.difference)}, {p_value}"
            say(console, f"{each.stage} vs. {each.against}: {change}")
        hops = sorted({hops for stage in evaluated for hops in stage.summary["by_hops"]} - {"0"}, key=int)
        if hops:
            console.print("\n[bold]F1 by searches needed[/]", highlight=False)
            _print_table(console, ("stage", *hops), [_by_hops(stage, hops) for stage in evaluated])
    _print_summaries(console, report, before_pairs=True)
    with_pairs = [stage for stage in report.stages if PAIRS in stage.outputs]
    if with_pairs:
        legend = "agreement with the gold judge where it has a preference [95% CI]"
        console.print(f"\n[bold]Preference pairs[/]: {legend}", highlight=False, soft_wrap=True)
        columns = ("stage", "judge", "pairs", "questions", "agreement")
        _print_table(console, columns, [_pairs(stage) for stage in with_pairs])
        for stage in with_pairs:
            if len(with_pairs) > 1:
                console.print(f"\n[bold]{stage.name}[/]", highlight=False)
            _print_lines(console, _pair_lines(stage.summary))
    _print_summaries(console, report, before_pairs=False)
    console.print()
    say(console, "time: " + ", ".join(f"{stage.name} {stage.seconds:,.0f} s" for stage in report.stages))
    if report.choice is not None and (evaluated or any(POLICY in stage.outputs for stage in report.stages)):
        _print_choice(console, report)


def _print_choice(console: Console, report: RunReport) -> None:
    """The policy that `ask --run` uses, after the stages that made theirs worse."""
    for each in report.worse.values():
        say(console, f"{each.stage} ended {each}", style="red")
    assert report.choice is not None
    say(console, f"{report.choice}: {report.choice.path}")
    agent = report.recipe.shared.agent
    named = f" --agent {shlex.quote(agent)}" if is_agent_file(agent) else ""
    say(console, f"next: stepladder ask --run {shlex.quote(str(report.folder))}{named}    # uses {report.choice.stage}")


def evaluations(report: RunReport) -> list[StageRecord]:
    """The finished evaluations of a run."""
    return [stage for stage in report.stages if EVALUATION in stage.outputs]


def model_evaluations(report: RunReport) -> list[StageRecord]:
    """The finished evaluations of models, without the oracle."""
    return [stage for stage in evaluations(report) if stage.inputs[POLICY] != ORACLE]


def print_scores(console: Console, report: RunReport) -> None:
    """Print the table of the evaluations."""
    stages = evaluations(report)
    columns = ("stage", "policy", "n", "EM", "F1", "valid", "searches")
    marked = [stage.inputs[POLICY] in report.worse for stage in stages]
    _print_table(console, columns, [_score(stage, report) for stage in stages], marked)


def _score(stage: StageRecord, report: RunReport) -> tuple[str, ...]:
    numbers = stage.summary
    em, f1 = (interval_text(Interval(**numbers[metric]), 2) for metric in _METRICS)
    rates = f"{numbers['validity']:.2f}", f"{numbers['searches']:.2f}"
    return stage.name, policy_label(stage, report), f"{numbers['questions']:,}", em, f1, *rates


def _by_hops(stage: StageRecord, hops: list[str]) -> tuple[str, ...]:
    groups = stage.summary["by_hops"]
    return stage.name, *(f"{groups[each]['f1']:.2f}" if each in groups else "-" for each in hops)


def _pairs(stage: StageRecord) -> tuple[str, ...]:
    numbers, gold = stage.summary, stage.summary["gold"] or {}
    known = gold.get("agrees") is not None
    agreement = interval_text(Interval(gold["agrees"], gold["low"], gold["high"]), 2) if known else "-"
    return stage.name, numbers["judge"], f"{numbers['pairs']:,}", f"{numbers['questions']:,}", agreement


def _print_summaries(console: Console, report: RunReport, *, before_pairs: bool) -> None:
    """Stage summaries: before the pairs table those of stages that make trees, after it all others."""
    for stage in report.stages:
        summary = stage_summary(stage)
        if summary is not None and (TREES in stage.outputs) is before_pairs:
            headline, lines = summary
            console.print(f"\n[bold]{stage.name}[/]: {printable(headline)}", highlight=False, soft_wrap=True)
            _print_lines(console, lines)


def stage_summary(stage: StageRecord) -> StageSummary | None:
    """Headline and lines as the stage itself declares them; None without any, or if this version does not have it."""
    return get_stage(stage.kind).summarize(stage.summary) if stage.summary and stage.kind in STAGES else None


def _pair_lines(numbers: Mapping[str, Any]) -> dict[str, str]:
    """Agreement with the gold judge, kinds, depths, margins and judge cost of the pairs of a stage."""
    gold = {f"prefers {each}": (numbers["gold"] or {}).get(each, 0) for each in ("chosen", "rejected", "neither")}
    counts = {"gold judge": gold, **{name: numbers[name] for name in ("kinds", "depths", "margins", "dropped")}}
    counts["split"] = {name: numbers[name] for name in ("train", "dev")}
    return {**{name: format_counts(each) for name, each in counts.items()}, **judge_lines(numbers)}


def _print_lines(console: Console, lines: Mapping[str, str]) -> None:
    for name, line in lines.items():
        if line:
            say(console, f"  {name}: {line}")


def say(console: Console, line: str, style: str = "") -> None:
    """Print text without wrapping, safe from markup and control characters."""
    console.print(printable(line), style=style, highlight=False, soft_wrap=True)


#: Columns that wrap between words on a narrow terminal; numbers never do.
_TEXT_COLUMNS = ("stage", "policy", "judge")


def _print_table(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], marked: Sequence[bool] = ()
) -> None:
    """A table with `marked` rows in red. Words stay whole: columns that do not fit are omitted from the right."""
    widths = [
        max(len(word) for cell in cells for word in (cell.split() if name in _TEXT_COLUMNS else [cell]))
        for name, *cells in zip(columns, columns, *rows, strict=True)
    ]
    shown = len(columns)
    while shown > 2 and sum(widths[:shown]) + 2 * (shown - 1) > console.width:
        shown -= 1
    table = Table(box=None, pad_edge=False)
    for name, width in zip(columns[:shown], widths, strict=False):
        if name in _TEXT_COLUMNS:
            table.add_column(name, min_width=width)
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for row, mark in zip(rows, marked or [False] * len(rows), strict=True):
        table.add_row(*(Text.from_markup(printable(cell)) for cell in row[:shown]), style="red" if mark else None)
    console.print(table)
    if omitted := columns[shown:]:
        say(console, f"columns omitted: {', '.join(omitted)} (use a wider terminal)")
