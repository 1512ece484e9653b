"""A comparison as a page: one HTML file that opens from disk and needs nothing else.

In: a `Compared`. Out: the page, with the style sheet of reports and a few rules of its own. Labels and paths are data:
whatever they hold is shown as text.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from stepladder import __version__
from stepladder.core.io.files import atomic_file
from stepladder.evaluate.statistics import Interval, interval_text
from stepladder.reporting.charts.interval_plots import Dot, Row, forest_svg, scatter_svg
from stepladder.reporting.compare.compare_table import brief, decimal, metric_name, notes, p_text
from stepladder.reporting.compare.comparison import NOISE, Compared, Difference, Line

_UNKNOWN = "–"


def write_page(compared: Compared, every_two: Sequence[Difference], out: Path) -> None:
    """Write the page. `every_two`: the differences between every two lines."""
    page = render(compared, every_two)
    with atomic_file(out, what="comparison") as file:
        file.write(page)


def render(compared: Compared, every_two: Sequence[Difference]) -> str:
    """The page of a comparison."""
    environment = Environment(
        loader=ChoiceLoader(
            [PackageLoader("stepladder.reporting.compare"), PackageLoader("stepladder.reporting.report")]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        decimal=lambda value: _page(decimal(value)), brief=lambda count: _page(brief(count)), p=_p
    )
    return environment.get_template("compare.html").render(
        compared=compared,
        lead=metric_name(compared.metric),
        extra=compared.metric if compared.metric not in ("f1", "em") else None,
        rows=[_row(line, compared) for line in compared.lines],
        forest=Markup(_scores(compared)),
        forest_of_differences=Markup(_changes(compared)) if compared.differences else None,
        scatter=_scatter(compared),
        uncounted=[line.label for line in compared.lines if line.tokens is None],
        matrix=_matrix(compared, every_two),
        tests=len(every_two),
        notes=list(notes(compared)),
        repeated=any(len(line.seeds) > 1 for line in compared.lines),
        noise=NOISE,
        version=__version__,
        # Ours, and not to be escaped: style sheets are no HTML.
        style=Markup(_source(environment, "page.css") + _source(environment, "compare.css")),
    )


def _row(line: Line, compared: Compared) -> dict[str, Any]:
    """A line as the table shows it."""
    difference = compared.differences.get(line.label)
    over = line.range(compared.metric)
    return {
        "line": line,
        "scores": {name: _interval(score) for name, score in line.scores.items()},
        "difference": None if difference is None else signed(difference.difference),
        "p": "" if difference is None else _p(difference.corrected),
        "beyond": difference is not None and difference.beyond_noise,
        "over": "" if over is None else f"{decimal(over[0])} to {decimal(over[1])}",
    }


def _scores(compared: Compared) -> str:
    metric = compared.metric
    rows = [
        Row(
            line.label,
            line.scores[metric],
            _interval(line.scores[metric]),
            tuple(value for seed in line.seeds if (value := seed.means[metric]) is not None)
            if len(line.seeds) > 1
            else (),
            strong=line.label != compared.reference,
        )
        for line in compared.lines
    ]
    reference = next(line for line in compared.lines if line.label == compared.reference)
    return forest_svg(
        f"{metric_name(metric)} of every line", rows, reference.scores[metric].mean if len(rows) > 1 else None
    )


def _changes(compared: Compared) -> str:
    rows = [
        Row(line.label, each.difference, signed(each.difference), strong=each.beyond_noise)
        for line in compared.lines
        if (each := compared.differences.get(line.label)) is not None
    ]
    return forest_svg(f"{metric_name(compared.metric)} less that of {compared.reference}", rows, 0.0)


def _scatter(compared: Compared) -> Markup | None:
    dots = [Dot(line.label, line.tokens, line.scores["f1"]) for line in compared.lines if line.tokens is not None]
    if not dots:
        return None
    return Markup(scatter_svg("F1 against tokens a question", dots, "tokens read and written a question", "F1"))


def _matrix(compared: Compared, every_two: Sequence[Difference]) -> list[list[dict[str, Any] | None]]:
    """A row a line: what it has more than the line of each column; None where the two are one."""

    found = {(each.of, each.less): each for each in every_two}

    def cell(ours: str, theirs: str) -> dict[str, Any] | None:
        if ours == theirs:
            return None
        turned = (ours, theirs) not in found
        each = found[(theirs, ours) if turned else (ours, theirs)]
        change = each.difference
        if turned:
            change = Interval(-change.mean, -change.high, -change.low)
        return {
            "mean": _page(f"{change.mean:+.3f}" if abs(change.mean) < 100 else f"{change.mean:+,.0f}"),
            "told": f"{ours} less {theirs}: {signed(change)}, p {_p(each.corrected)}",
            "sign": "" if not each.beyond_noise else "more" if change.mean > 0 else "less",
        }

    labels = [line.label for line in compared.lines]
    return [[cell(ours, theirs) for theirs in labels] for ours in labels]


def signed(change: Interval) -> str:
    """A difference with its interval."""
    digits = 0 if max(map(abs, (change.low, change.high))) >= 100 else 3
    return _page(f"{change.mean:+,.{digits}f} [{change.low:+,.{digits}f}, {change.high:+,.{digits}f}]")


def _interval(score: Interval) -> str:
    return interval_text(score, 0 if abs(score.mean) >= 100 else 2)


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else p_text(p)


def _page(words: str) -> str:
    """Numbers as they are printed: a dash for what is not known, and a true minus."""
    return _UNKNOWN if words == "-" else words.replace("-", "−")


def _source(environment: Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]
