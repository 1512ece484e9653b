"""A comparison on a terminal: one table that fits, and below it what has to be known to read it.

In: a `Compared`. Out: text on a console. Columns stand in the order of their importance; where there is no room for all
of them, the last ones are left out and named, so that no line is broken.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepladder.core.trace_printer import printable
from stepladder.evaluate.statistics import Interval
from stepladder.reporting.compare.comparison import NOISE, Compared, Difference, Line

#: Metrics, as a person says them; others are called as they are.
_NAMES = {"f1": "F1", "em": "EM"}
_UNKNOWN = "-"
#: Labels longer than this are broken; where there is little room, those longer than the second.
_LABEL, _LABEL_AT_LEAST = 28, 18
#: Columns that are always there: the label and the metric.
_ALWAYS = 2


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: its header in one or two lines, what it is called where it is left out, and a cell a line."""

    header: str
    name: str
    cells: tuple[str, ...]

    @property
    def width(self) -> int:
        return max(map(cell_len, (*self.header.split("\n"), *self.cells)))


def print_compared(console: Console, compared: Compared) -> None:
    """The table, and how to read it."""
    columns = _columns(compared)
    kept = _fitting(columns, console.width)
    lead = metric_name(compared.metric)
    over = f"{compared.questions:,} questions that all have"
    console.print(f"[bold]{len(compared.lines)} lines[/] on {over}, mean \\[95% interval]", highlight=False)
    console.print(_table(kept, console.width))
    if left := [column.name for column in columns[len(kept) :]]:
        _say(console, f"no room for: {', '.join(left)} (a wider terminal, --html and --json have them)")
    for note in notes(compared):
        _say(console, note)
    if compared.differences:
        count = len(compared.differences)
        holm = f", corrected by Holm over {count} lines" if count > 1 else ""
        _say(
            console,
            f"difference: {lead} less that of {compared.reference}, paired by question; p: of a sign-flip test{holm}; "
            f"*: p below {NOISE:g}, beyond noise",
        )
    if any(len(line.seeds) > 1 for line in compared.lines):
        _say(
            console,
            "xN: N seeds; a question's score is its mean over them, intervals are over questions. They do not say what "
            "another seed would bring",
        )


def notes(compared: Compared) -> Iterator[str]:
    """What a reader has to know of single lines: seeds, questions left out, failures, figures that are not known."""
    lead = metric_name(compared.metric)
    for line in compared.lines:
        if (over := line.range(compared.metric)) is not None:
            seeds = ", ".join(_UNKNOWN if seed.seed is None else str(seed.seed) for seed in line.seeds)
            low, high = (decimal(each) for each in over)
            yield f"{line.label}: {len(line.seeds)} seeds ({seeds}), {lead} from {low} to {high}"
        for seed in line.seeds:
            where = line.label if len(line.seeds) == 1 else seed.place
            if seed.left_out:
                yield f"{where}: {seed.left_out:,} more questions left out, which not all others have"
            if seed.cancelled:
                yield f"{where}: {seed.cancelled:,} questions were not reached and are not compared"
            if seed.failed:
                yield f"{where}: {seed.failed:,} episodes failed, counted as wrong"
            for stage, problem in seed.problems.items():
                yield f"{where}: training questions of the stage '{stage}' are not known: {problem}"
    if compared.known < compared.questions:
        yield f"{lead} is known for {compared.known:,} of the {compared.questions:,} questions"


# --- numbers ----------------------------------------------------------------------------------------------------


def metric_name(metric: str) -> str:
    """A metric as a person says it.

    >>> metric_name("f1"), metric_name("tokens_read")
    ('F1', 'tokens read')
    """
    return _NAMES.get(metric, metric.replace("_", " "))


def decimal(value: float | None, digits: int = 2) -> str:
    """A number with so many digits, large ones with none; a dash where it is not known."""
    if value is None:
        return _UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.{digits}f}"


def brief(count: float | None) -> str:
    """A count in few characters.

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
    return f"{mean} [{low} {high}]{'*' if each.beyond_noise else ' '}"


def _bound(value: float, digits: int = 2, sign: str = "-") -> str:
    """A number without the 0 before its point, which costs room and says nothing."""
    text = f"{value:{sign},.0f}" if abs(value) >= 100 else f"{value:{sign}.{digits}f}"
    return text.replace("0.", ".", 1) if text.lstrip("+-").startswith("0.") else text


# --- the table --------------------------------------------------------------------------------------------------


def _columns(compared: Compared) -> list[_Column]:
    lines, lead = compared.lines, compared.metric
    found = [
        _Column("line", "line", tuple(_label(line) for line in lines)),
        _score_column(lead, lines),
    ]
    if compared.differences:
        given = [compared.differences.get(line.label) for line in lines]
        found += [
            _Column(
                "difference", "difference", tuple("reference" if each is None else _signed(each) for each in given)
            ),
            _Column("p", "p", tuple("" if each is None else p_text(each.corrected) for each in given)),
        ]
    found += [_score_column(metric, lines) for metric in ("f1", "em") if metric != lead]
    malformed = [line.mean("malformed") for line in lines]
    return [
        *found,
        _Column("search-\nes", "searches a question", tuple(decimal(line.mean("searches_made"), 1) for line in lines)),
        _Column("read", "tokens read a question", tuple(brief(line.mean("tokens_read")) for line in lines)),
        _Column("wrote", "tokens written a question", tuple(brief(line.mean("tokens_written")) for line in lines)),
        _Column(
            "mal-\nformed",
            "episodes with a malformed step",
            tuple(_UNKNOWN if each is None else f"{each:.0%}" for each in malformed),
        ),
        _Column("train-\ned on", "training questions", tuple(brief(line.training_questions) for line in lines)),
        _Column("tokens\nwrote", "tokens written in training", tuple(brief(line.training_tokens) for line in lines)),
        _Column("min", "minutes of training", tuple(_minutes(line.training_minutes) for line in lines)),
    ]


def _score_column(metric: str, lines: Sequence[Line]) -> _Column:
    name = metric_name(metric)
    return _Column(name, name, tuple(_interval(line.scores[metric]) for line in lines))


def _label(line: Line) -> str:
    """The label as it will be seen, so that its width is known, and how many seeds it has."""
    label = Text.from_markup(printable(line.label)).plain
    return label if len(line.seeds) == 1 else f"{label} x{len(line.seeds)}"


def _minutes(minutes: float | None) -> str:
    return _UNKNOWN if minutes is None else f"{minutes:.1f}" if minutes < 9.95 else f"{minutes:,.0f}"


def _fitting(columns: Sequence[_Column], width: int) -> list[_Column]:
    """As many of the columns as there is room for, the label as short as it may be."""
    label = min(columns[0].width, _LABEL_AT_LEAST)
    kept = list(columns)
    while len(kept) > _ALWAYS and label + sum(each.width for each in kept[1:]) + len(kept) - 1 > width:
        kept.pop()
    return kept


def _table(columns: Sequence[_Column], width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), collapse_padding=True)
    room = width - sum(each.width for each in columns[1:]) - len(columns) + 1
    label = min(columns[0].width, _LABEL, max(room, 1))
    table.add_column(columns[0].header, overflow="fold", width=label, vertical="bottom")
    for column in columns[1:]:
        table.add_column(column.header, justify="right", no_wrap=True, min_width=column.width)
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, row))
    return table


def _say(console: Console, line: str) -> None:
    console.print(printable(line), highlight=False)
