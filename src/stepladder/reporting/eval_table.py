"""An evaluation on the console: a table of metrics with intervals, stop reasons and failures.

In: the `Summary` of an evaluation. Out: text.
"""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stepladder.evaluation.evaluator import Evaluation, Summary
from stepladder.evaluation.statistics import Comparison, interval_text, signed_text
from stepladder.preferences.pair_stats import format_counts

#: Follows the name of a policy whose answers used gold annotations.
UPPER_BOUND = " (upper bound)"
#: Rows of the table: metric, label, decimals.
_ROWS = (
    ("accuracy", "accuracy", 3),
    ("em", "exact match", 3),
    ("f1", "F1", 3),
    ("judged", "right by the judge", 3),
    ("precision", "precision", 3),
    ("recall", "recall", 3),
    ("cover_em", "cover EM", 3),
    ("gold_recall", "gold passage recall", 3),
    ("steps", "steps", 2),
    ("searches", "searches", 2),
    ("searches_made", "searches incl. discarded", 2),
    ("redundant_queries", "redundant queries", 2),
    ("over_search", "excess searches", 2),
    ("under_search", "answered too early", 3),
    ("malformed", "malformed", 3),
    ("format_errors", "format errors", 2),
    ("repaired", "steps read leniently", 2),
    ("forced", "forced answers", 3),
    ("tokens_read", "tokens read", 0),
    ("tokens_written", "tokens written", 0),
)

#: Metrics that equal accuracy where answers are right or wrong.
_OF_TEXTS = ("em", "f1", "precision", "recall", "cover_em")


def print_summary(console: Console, summary: Summary, title: str) -> None:
    """Print the table of an evaluation, and below it stop reasons, misses, EM by hops and failures."""
    console.print(f"[bold]{escape(title)}[/], {summary.questions:,} questions", highlight=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("per question")
    table.add_column("mean", justify="right")
    table.add_column("95% CI", justify="right")
    for name, label, digits in _ROWS:
        if name == "searches_made" and summary.metrics.get(name) == summary.metrics.get("searches"):
            continue  # nothing was discarded
        if name in _OF_TEXTS and summary.metrics.get(name) == summary.metrics.get("accuracy"):
            continue  # no answer is a text
        if name in summary.metrics:
            mean, _, bounds = interval_text(summary.metrics[name], digits).partition(" ")
            table.add_row(label, mean, bounds)
    console.print(table)
    console.print(f"stops:  {format_counts(summary.stops)}", highlight=False)
    if summary.misses:
        console.print(f"misses: {format_counts(summary.misses)}", highlight=False)
    if len(summary.by_hops) > 1:
        parts = [f"{hops}: {group['em']:.3f} ({group['questions']:,})" for hops, group in summary.by_hops.items()]
        console.print(f"EM by searches needed: {', '.join(parts)}", highlight=False)
    for reason, count in list(summary.failures.items())[:5]:
        console.print(f"failed {count}x: {reason}", style="red", highlight=False, markup=False)
    if summary.cancelled:
        console.print(
            f"interrupted: {summary.cancelled:,} questions not evaluated, excluded from all means", style="yellow"
        )


def print_evaluation(console: Console, evaluation: Evaluation) -> None:
    """The table of an evaluation in memory."""
    print_summary(console, evaluation.summary(), f"evaluation{UPPER_BOUND if evaluation.upper_bound else ''}")


def comparison_line(comparison: Comparison, metric: str) -> str:
    """A paired difference on one line."""
    return (
        f"{metric}: {signed_text(comparison.difference)} vs. the other run, "
        f"p = {comparison.p_value:.4f} (paired, {comparison.questions:,} questions in both)"
    )
