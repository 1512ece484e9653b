"""Self-contained HTML pages: the report of a run and the page of a comparison share layout and style sheet.

In: the package of a page, whose `templates/` folder has its template. Out: the rendered page. Text is escaped, so the
contents of transcripts, passages and labels are never interpreted.
"""

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from stepladder.core.unicode import readable
from stepladder.core.version import __version__
from stepladder.evaluation.statistics import signed_text
from stepladder.evaluation.svg_figure import STYLE
from stepladder.reporting.number_text import brief, decimal, interval, p_text, typeset, whole

#: Filters for numbers; None is shown as a dash.
_NUMBERS: dict[str, Callable[..., str]] = {
    "brief": brief,
    "decimal": decimal,
    "interval": interval,
    "p": p_text,
    "signed": signed_text,
    "whole": whole,
}


def render_page(
    package: str,
    template: str,
    filters: Mapping[str, Callable[..., str]] | None = None,
    styles: tuple[str, ...] = (),
    scripts: tuple[str, ...] = (),
    **content: Any,
) -> str:
    """Render a template that extends layout.html. `styles` and `scripts` are template files to inline."""
    environment = make_environment(package)
    environment.filters |= filters or {}
    loader = environment.loader
    assert loader is not None

    def inlined(name: str) -> Markup:
        return Markup(loader.get_source(environment, name)[0])  # our own CSS and JavaScript, which must not be escaped

    return environment.get_template(template).render(
        style=Markup("").join([*map(inlined, ("page.css", *styles)), Markup(STYLE)]),
        script=Markup("").join(map(inlined, scripts)),
        version=__version__,
        **content,
    )


def make_environment(*packages: str) -> Environment:
    """The environment of pages whose templates are in these packages: escaped, with filters for numbers and text."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(each) for each in (*packages, "stepladder.reporting")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name, to_text in _NUMBERS.items():
        environment.filters[name] = lambda *values, to_text=to_text: typeset(to_text(*values))
    environment.filters["readable"] = readable
    return environment
