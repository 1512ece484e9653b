"""SVG from matplotlib: the same bytes each time, readable in light and dark, and imported only when it is needed."""

import re
import subprocess
import sys

import matplotlib
import pytest

from stepladder.evaluation.svg_figure import INK, SERIES, STYLE, Tooltips, plot_area, svg_element, svg_file
from tests.support.svg_pictures import Picture


def paint(figure: "matplotlib.figure.Figure") -> Tooltips:
    axes = plot_area(figure, left=40, right=10, top=90, bottom=30)
    axes.fill_between([0, 1], [0, 0], [1, 2], color=SERIES[0], alpha=0.2)
    (dot,) = axes.plot(1, -2, "o", color=INK)
    yield dot, "at -2"


def test_the_same_figure_gives_the_same_bytes_whatever_the_user_has_set() -> None:
    first = svg_file("T", "s", 300, paint)
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30, "svg.fonttype": "path", "svg.hashsalt": "x"}):
        assert svg_file("T", "s", 300, paint) == first
        assert matplotlib.rcParams["lines.linewidth"] == 9, "what the user has set stays"


def test_colors_are_classes_with_a_light_and_a_dark_value() -> None:
    drawn = Picture(svg_file("T", "s", 300, paint))
    assert STYLE in "".join(drawn.root.find("style").itertext())  # type: ignore[union-attr]
    light, dark = STYLE.split("@media screen and (prefers-color-scheme:dark)")
    used = {name for each in drawn.root.iter() for name in each.get("class", "").split()} - {"chart"}
    assert {"fill-paper", "fill-ink", "fill-series0", "stroke-rule", "stroke-grid", "fill-quiet"} <= used
    for name in used:
        (day,), (night,) = (re.findall(rf"\.{name}{{\w+:(#\w+)}}", part) for part in (light, dark))
        assert day != night
    outside = drawn.svg.replace(STYLE, "")
    assert "#" not in outside.replace('href="#', ""), "no color is left that does not follow the mode"


def test_an_element_of_a_page_has_no_style_sheet_of_its_own() -> None:
    element = svg_element("T", 200, 150, paint)
    assert Picture(element).root.find("style") is None
    assert "://" not in element
    assert Picture(element).tooltips == ["at -2"]
    assert "−2" in Picture(element).texts, "a typographic minus"


def test_letters_that_the_font_of_matplotlib_lacks_are_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    assert "日本" in Picture(svg_file("日本", "", 300, paint)).texts
    assert not recwarn


def test_matplotlib_is_imported_with_the_first_chart() -> None:
    modules = "stepladder, stepladder.reporting.charts.figures, stepladder.evaluation.prm.plots"
    code = f"import sys, {modules}; print('matplotlib' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
