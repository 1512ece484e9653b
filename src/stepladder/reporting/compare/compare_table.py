"""A comparison on a terminal: one table that fits its width, and notes below it.

In: a `RunComparison`. Out: text on a console. Columns are ordered by importance; those that do not fit are omitted from
the right and listed below the table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepladder.core.trace_printer import printable
from stepladder.evaluation.statistics import Interval
from stepladder.reporting.compare.comparison import ALPHA, Arm, Difference, RunComparison

#: Display names of metrics; others are shown as they are.
_NAMES = {"f1": "F1", "em": "EM"}
_UNKNOWN = "-"
#: Maximum width of the label column, and on a narrow terminal.
_MAX_LABEL, _NARROW_LABEL = 28, 18
#: Columns that are never omitted: label and metric.
_MIN_COLUMNS = 2


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: header (one or two lines), name if omitted, and one cell per arm."""

    header: str
    name: str
    cells: tuple[str, ...]

    @property
    def width(self) -> int:
        return max(map(cell_len, (*self.header.split("\n"), *self.cells)))


def print_comparison(console: Console, comparison: RunComparison) -> None:
    """The table and its notes."""
    columns = _columns(comparison)
    kept = _fitting(columns, console.width)
    lead = metric_name(comparison.metric)
    title = f"[bold]{len(comparison.arms)} arms[/] on {comparison.questions:,} shared questions, mean \\[95% CI]"
    console.print(title, highlight=False)
    console.print(_table(kept, console.width))
    if omitted := [column.name for column in columns[len(kept) :]]:
        _say(console, f"columns omitted: {', '.join(omitted)} (use a wider terminal, --html or --json)")
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
            "xN: N seeds; scores are means over seeds, intervals are over questions and do not include the variance "
            "over seeds",
        )


def notes(comparison: RunComparison) -> Iterator[str]:
    """Notes on single arms: seeds, excluded questions, failures, unknown values."""
    lead = metric_name(comparison.metric)
    for arm in comparison.arms:
        if (over := arm.range(comparison.metric)) is not None:
            seeds = ", ".join(_UNKNOWN if seed.seed is None else str(seed.seed) for seed in arm.seeds)
            low, high = (decimal(each) for each in over)
            yield f"{arm.label}: {len(arm.seeds)} seeds ({seeds}), {lead} from {low} to {high}"
        for seed in arm.seeds:
            where = arm.label if len(arm.seeds) == 1 else seed.path
            if seed.excluded:
                yield f"{where}: {seed.excluded:,} questions excluded, which are not in all evaluations"
            if seed.cancelled:
                yield f"{where}: {seed.cancelled:,} questions were not evaluated (interrupted)"
            if seed.failed:
                yield f"{where}: {seed.failed:,} episodes failed, counted as wrong"
            for stage, problem in seed.problems.items():
                yield f"{where}: training questions of the stage '{stage}' are unknown: {problem}"
    if comparison.scored < comparison.questions:
        yield f"{lead} is known for {comparison.scored:,} of the {comparison.questions:,} questions"


# --- numbers ----------------------------------------------------------------------------------------------------


def metric_name(metric: str) -> str:
    """The display name of a metric.

    >>> metric_name("f1"), metric_name("tokens_read")
    ('F1', 'tokens read')
    """
    return _NAMES.get(metric, metric.replace("_", " "))


def decimal(value: float | None, digits: int = 2) -> str:
    """A number with `digits` decimals, large numbers with none; a dash if unknown."""
    if value is None:
        return _UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.{digits}f}"


def brief(count: float | None) -> str:
    """A count, abbreviated.

    >>> brief(None), brief(87.4), brief(1_234), brief(35_280), brief(1_250_000)
    ('-', '87', '1.2k', '35k', '1.2M')
    """
    if count is None:
        return _UNKNOWN
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size * 0.9995:
            return f"{count / size:.1f}{unit}" if count < 9.95 * size else f"{count / size:.0f}{unit}"
    return f"{count:.0f}"


def p_text(p: float) -> str:
    """A p-value."""
    return "<.001" if p < 0.001 else f"{p:.3f}"


def _interval(interval: Interval) -> str:
    return f"{decimal(interval.mean)} [{_bound(interval.low)} {_bound(interval.high)}]"


def _signed(each: Difference) -> str:
    change = each.difference
    mean, low, high = (_bound(value, 3, "+") for value in (change.mean, change.low, change.high))
    return f"{mean} [{low} {high}]{'*' if each.significant else ' '}"


def _bound(value: float, digits: int = 2, sign: str = "-") -> str:
    """A number without its leading 0, to save space."""
    text = f"{value:{sign},.0f}" if abs(value) >= 100 else f"{value:{sign}.{digits}f}"
    return text.replace("0.", ".", 1) if text.lstrip("+-").startswith("0.") else text


# --- the table --------------------------------------------------------------------------------------------------


def _columns(comparison: RunComparison) -> list[_Column]:
    arms, lead = comparison.arms, comparison.metric
    found = [
        _Column("arm", "arm", tuple(_label(arm) for arm in arms)),
        _score_column(lead, arms),
    ]
    if comparison.differences:
        given = [comparison.differences.get(arm.label) for arm in arms]
        found += [
            _Column(
                f"delta {metric_name(lead)}",
                "difference",
                tuple("reference" if each is None else _signed(each) for each in given),
            ),
            _Column("p", "p", tuple("" if each is None else p_text(each.corrected) for each in given)),
        ]
    found += [_score_column(metric, arms) for metric in ("f1", "em") if metric != lead]
    malformed = [arm.mean("malformed") for arm in arms]
    return [
        *found,
        _Column("search-\nes", "searches per question", tuple(decimal(arm.mean("searches_made"), 1) for arm in arms)),
        _Column("read", "tokens read per question", tuple(brief(arm.mean("tokens_read")) for arm in arms)),
        _Column("writ-\nten", "tokens written per question", tuple(brief(arm.mean("tokens_written")) for arm in arms)),
        _Column(
            "mal-\nformed",
            "episodes with a malformed step",
            tuple(_UNKNOWN if each is None else f"{each:.0%}" for each in malformed),
        ),
        _Column("train\nqs", "training questions", tuple(brief(arm.training_questions) for arm in arms)),
        _Column("train\ntokens", "tokens generated in training", tuple(brief(arm.training_tokens) for arm in arms)),
        _Column("train\nmin", "minutes of training", tuple(_minutes(arm.training_minutes) for arm in arms)),
    ]


def _score_column(metric: str, arms: Sequence[Arm]) -> _Column:
    name = metric_name(metric)
    return _Column(name, name, tuple(_interval(arm.scores[metric]) for arm in arms))


def _label(arm: Arm) -> str:
    """The label as printed, so that its width is known, and the number of seeds."""
    label = Text.from_markup(printable(arm.label)).plain
    return label if len(arm.seeds) == 1 else f"{label} x{len(arm.seeds)}"


def _minutes(minutes: float | None) -> str:
    return _UNKNOWN if minutes is None else f"{minutes:.1f}" if minutes < 9.95 else f"{minutes:,.0f}"


def _fitting(columns: Sequence[_Column], width: int) -> list[_Column]:
    """The leading columns that fit, with the label column as narrow as allowed."""
    label = min(columns[0].width, _NARROW_LABEL)
    kept = list(columns)
    while len(kept) > _MIN_COLUMNS and label + sum(each.width for each in kept[1:]) + len(kept) - 1 > width:
        kept.pop()
    return kept


def _table(columns: Sequence[_Column], width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), collapse_padding=True)
    available = width - sum(each.width for each in columns[1:]) - len(columns) + 1
    label = min(columns[0].width, _MAX_LABEL, max(available, 1))
    table.add_column(columns[0].header, overflow="fold", width=label, vertical="bottom")
    for column in columns[1:]:
        table.add_column(column.header, justify="right", no_wrap=True, min_width=column.width)
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, row))
    return table


def _say(console: Console, line: str) -> None:
    console.print(printable(line), highlight=False)
