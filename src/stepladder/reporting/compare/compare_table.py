"""A comparison on a terminal: one table that fits its width, and notes below it.

In: a `RunComparison`. Out: text on a console. Columns are ordered by importance. If they do not fit, EM loses
its interval; then columns are omitted from the right and listed below the table. Names wrap between words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepladder.core.trace_printer import printable
from stepladder.evaluation.statistics import Interval
from stepladder.reporting.compare.comparison import ALPHA, Difference, RunComparison
from stepladder.reporting.number_text import UNKNOWN, brief, counted, decimal

#: Display names of metrics; others are shown as they are.
_NAMES = {"f1": "F1", "em": "EM"}
#: Maximum width of the column of names.
_MAX_LABEL = 28
#: Columns that are never omitted: name, number of questions and metric.
_MIN_COLUMNS = 3


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: header (one or two lines), name if omitted, and one cell per arm."""

    header: str
    name: str
    cells: Sequence[str]
    #: Cells for a narrow terminal.
    short: Sequence[str] = ()

    @property
    def width(self) -> int:
        return max(map(cell_len, (*self.header.split("\n"), *self.cells)))


def print_comparison(console: Console, comparison: RunComparison) -> None:
    """The table and its notes."""
    marked = [f"{arm.label} ({arm.worse})" if arm.worse else arm.label for arm in comparison.arms]
    labels = [Text.from_markup(printable(each)).plain for each in marked]  # as printed: width is known
    narrowest = _narrowest(labels)
    columns, omitted = _fitting(_columns(comparison), console.width - narrowest)
    lead = metric_name(comparison.metric)
    title = f"[bold]{len(comparison.arms)} arms[/] on {comparison.questions:,} shared questions, mean \\[95% CI]"
    console.print(title, highlight=False)
    console.print(_table(labels, columns, console.width, ["red" if arm.worse else "" for arm in comparison.arms]))
    if omitted:
        names = ", ".join(column.name for column in omitted)
        needed = narrowest + sum(column.width + 1 for column in (*columns, *omitted))
        _say(console, f"columns omitted: {names} (use a terminal of {needed} columns, --json or --html FILE)")
    for note in notes(comparison):
        _say(console, note)
    if comparison.differences:
        count = len(comparison.differences)
        holm = f", Holm-corrected over {count} tests" if count > 1 else ""
        _say(
            console,
            f"delta {lead}: vs. {comparison.reference}, paired by question; p: sign-flip test{holm}; "
            f"*: statistically significant (p < {ALPHA:g})",
        )
    if any(len(arm.seeds) > 1 for arm in comparison.arms):
        _say(
            console,
            "n xN: N seeds; scores are means over seeds, intervals are over questions and do not include the variance "
            "over seeds",
        )


def notes(comparison: RunComparison) -> Iterator[str]:
    """Notes on single arms: seeds, regressions, excluded questions, failures, unknown values."""
    lead = metric_name(comparison.metric)
    for arm in comparison.arms:
        if (over := arm.range(comparison.metric)) is not None:
            seeds = ", ".join(UNKNOWN if seed.seed is None else str(seed.seed) for seed in arm.seeds)
            low, high = (decimal(each) for each in over)
            yield f"{arm.label}: {len(arm.seeds)} seeds ({seeds}), {lead} from {low} to {high}"
        for seed in arm.seeds:
            where = arm.label if len(arm.seeds) == 1 else seed.path
            if seed.excluded:
                yield f"{where}: {seed.excluded:,} questions excluded, which are not in all evaluations"
            if seed.cancelled:
                yield f"{where}: {seed.cancelled:,} questions were not evaluated (interrupted)"
            if seed.worse:
                yield f"{where}: {seed.worse.stage} is {seed.worse}"
            if seed.failed:
                yield f"{where}: {counted(seed.failed, 'episode')} failed, counted as wrong"
            for stage, problem in seed.problems.items():
                yield f"{where}: training questions of the stage '{stage}' are unknown: {problem}"
    if comparison.scored < comparison.questions:
        yield f"{lead} is known for {comparison.scored:,} of the {comparison.questions:,} questions"


def metric_name(metric: str) -> str:
    """The display name of a metric.

    >>> metric_name("f1"), metric_name("tokens_read")
    ('F1', 'tokens read')
    """
    return _NAMES.get(metric, metric.replace("_", " "))


def _interval(interval: Interval) -> str:
    return f"{decimal(interval.mean)} [{_bound(interval.low)} {_bound(interval.high)}]"


def _signed(each: Difference | None) -> str:
    if each is None:
        return "reference "
    change = each.difference
    mean, low, high = (_bound(value, 3, "+") for value in (change.mean, change.low, change.high))
    return f"{mean} [{low} {high}]{'*' if each.significant else ' '}"


def _bound(value: float, digits: int = 2, sign: str = "-") -> str:
    """A number without its leading 0, to save space."""
    text = f"{value:{sign},.0f}" if abs(value) >= 100 else f"{value:{sign}.{digits}f}"
    return text.replace("0.", ".", 1) if text.lstrip("+-").startswith("0.") else text


def _p(difference: Difference | None) -> str:
    if difference is None:
        return ""
    return "<.001" if difference.corrected < 0.001 else f"{difference.corrected:.3f}"


# --- the table --------------------------------------------------------------------------------------------------


def _columns(comparison: RunComparison) -> list[_Column]:
    """All columns but the names, the most important first."""
    arms, lead = comparison.arms, comparison.metric

    def score(metric: str) -> _Column:
        scores, name = [arm.scores[metric] for arm in arms], metric_name(metric)
        short = [decimal(each.mean) for each in scores] if metric != lead else ()
        return _Column(name, name, [_interval(each) for each in scores], short)

    counts = [f"{comparison.questions:,}" + (f" x{len(arm.seeds)}" if len(arm.seeds) > 1 else "") for arm in arms]
    found = [_Column("n", "questions", counts), score(lead)]
    if comparison.differences:
        given = [comparison.differences.get(arm.label) for arm in arms]
        found += [
            _Column(f"delta {metric_name(lead)}", "difference", [_signed(each) for each in given]),
            _Column("p", "p", [_p(each) for each in given]),
        ]
    minutes = [arm.training("minutes") for arm in arms]
    return [
        *found,
        *(score(metric) for metric in ("f1", "em") if metric != lead),
        _Column("tokens", "tokens per question", [brief(arm.tokens) for arm in arms]),
        _Column("search-\nes", "searches per question", [decimal(arm.mean("searches_made"), 1) for arm in arms]),
        _Column("read", "tokens read per question", [brief(arm.mean("tokens_read")) for arm in arms]),
        _Column("writ-\nten", "tokens written per question", [brief(arm.mean("tokens_written")) for arm in arms]),
        _Column("mal-\nformed", "episodes with a malformed step", [_share(arm.mean("malformed")) for arm in arms]),
        _Column("train\nqs", "training questions", [brief(arm.training("questions")) for arm in arms]),
        _Column("train\ntokens", "tokens generated in training", [brief(arm.training("tokens")) for arm in arms]),
        _Column("train\nmin", "minutes of training", [decimal(each, 1) for each in minutes]),
    ]


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"


def _fitting(columns: Sequence[_Column], width: int) -> tuple[list[_Column], list[_Column]]:
    """The columns that fit, and the others."""
    for short in (False, True):
        kept = [_Column(each.header, each.name, (short and each.short) or each.cells) for each in columns]
        if sum(each.width + 1 for each in kept) <= width:
            return kept, []
    count = len(kept)
    while count > _MIN_COLUMNS - 1 and sum(each.width + 1 for each in kept[:count]) > width:
        count -= 1
    return kept[:count], kept[count:]


def _narrowest(labels: Sequence[str]) -> int:
    """The width of the longest word of a name: names are only wrapped between words."""
    return min(max(cell_len(word) for label in ("arm", *labels) for word in label.split() or [""]), _MAX_LABEL)


def _table(labels: Sequence[str], columns: Sequence[_Column], width: int, styles: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), collapse_padding=True)
    available = width - sum(column.width + 1 for column in columns)
    room = min(max(map(cell_len, ("arm", *labels))), _MAX_LABEL, max(available, 1))
    table.add_column("arm", overflow="fold", width=room, vertical="bottom")
    for column in columns:
        table.add_column(column.header, justify="right", no_wrap=True, min_width=column.width)
    for label, style, *cells in zip(labels, styles, *(column.cells for column in columns), strict=True):
        hyphens = any(cell_len(word) > room for word in label.split())
        table.add_row(*map(Text, ("\n".join(wrap(label, room, break_on_hyphens=hyphens)), *cells)), style=style)
    return table


def _say(console: Console, line: str) -> None:
    console.print(printable(line), highlight=False)
