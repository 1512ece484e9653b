"""Charts of reports, comparisons and studies: what they say, and that it stands in the right place."""

from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from stepladder.evaluation.statistics import Interval
from stepladder.evaluation.svg_figure import FONT, SERIES
from stepladder.reporting.charts.figures import Point, Row, bands_svg, curve_svg, forest_svg, scatter_svg
from tests.support.svg_pictures import Picture

DUAL = [Point(0, 0.72, 0.7, 0.74, 5), Point(40, 0.78, 0.75, 0.81, 5), Point(80, 0.8, 0.79, 0.82, 1)]
OUTCOME = [Point(0, 0.71, 0.7, 0.72, 5), Point(50, 0.74, 0.72, 0.78, 5)]
HOSTILE = "<b>$x_1$ _y & \x00"
SHOWN = "<b>$x_1$ _y & \N{REPLACEMENT CHARACTER}"


# --- bands over repeated runs


def test_a_line_a_band_a_name_and_tooltips_for_every_series() -> None:
    series = {"dual": DUAL, "outcome": OUTCOME}
    drawn = Picture(bands_svg("Credit", series, across="update", up="F1", subtitle="5 seeds"))
    assert {"Credit", "5 seeds", "update", "F1", "dual", "outcome"} <= set(drawn.texts)
    assert drawn.tooltips == [
        "dual, update 0: 0.72 [0.7, 0.74], 5 runs",
        "dual, update 40: 0.78 [0.75, 0.81], 5 runs",
        "dual, update 80: 0.8 [0.79, 0.82], 1 run",
        "outcome, update 0: 0.71 [0.7, 0.72], 5 runs",
        "outcome, update 50: 0.74 [0.72, 0.78], 5 runs",
    ]
    zero = drawn.dot(drawn.tooltips[0])
    for point, tooltip in zip(DUAL + OUTCOME, drawn.tooltips):
        x, y = drawn.dot(tooltip)
        assert x == pytest.approx(drawn.across("0", "80", point.x), abs=0.2)
        assert zero[1] - y == pytest.approx(drawn.up("0.72", "0.8", point.mean), abs=0.2)
    for name, points in zip(("series0", "series1"), (DUAL, OUTCOME)):
        band = max(drawn.lines(name), key=len)
        ends = [zero[1] - drawn.up("0.72", "0.8", y) for point in points for y in (point.low, point.high)]
        drawn_ends = {drawn.size[1] + y for _, y in band}  # a band is drawn from the bottom of the page
        assert sorted(drawn_ends) == pytest.approx(sorted(set(ends)), abs=0.2)


def test_points_are_drawn_from_left_to_right_however_they_come() -> None:
    one, other = (bands_svg("T", {"dual": each}, across="update", up="F1") for each in (DUAL, DUAL[::-1]))
    assert one == other


def test_a_single_point_is_a_dot_with_a_whisker() -> None:
    drawn = Picture(bands_svg("T", {"dual": [Point(40, 0.78, 0.75, 0.81, 5)]}, across="update", up="F1"))
    (tooltip,) = drawn.tooltips
    x, y = drawn.dot(tooltip)
    whisker = next(line for line in drawn.lines("series0") if len({round(each) for each, _ in line}) == 1 < len(line))
    assert whisker[0][0] == pytest.approx(x, abs=0.2)
    heights = [drawn.size[1] + height for _, height in whisker]
    assert min(heights) < y < max(heights)


def test_a_logarithmic_axis_has_equal_steps_between_the_numbers_that_occur() -> None:
    series = {"trees": [Point(x, 0.5, 0.4, 0.6, 3) for x in (32, 64, 128)], "chains": [Point(512, 0.5, 0.5, 0.5, 3)]}
    drawn = Picture(bands_svg("T", series, across="calls", up="F1", log=True))
    first, second, third, last = (drawn.at(each)[0] for each in ("32", "64", "128", "512"))
    assert second - first == pytest.approx(third - second, abs=0.2)
    assert last - third == pytest.approx(2 * (third - second), abs=0.3)
    assert [drawn.dot(tooltip)[0] for tooltip in drawn.tooltips[:3]] == [first, second, third]


def test_numbers_of_a_logarithmic_axis_that_would_overlap_are_left_out() -> None:
    points = [Point(x, 0, 0, 0, 1) for x in (100, 101, 1000)]
    drawn = Picture(bands_svg("T", {"a": points}, across="calls", up="F1", log=True))
    assert {"100", "1000"} <= set(drawn.texts)
    assert "101" not in drawn.texts
    assert len(drawn.tooltips) == 3


def test_between_whole_numbers_there_are_no_fractions() -> None:
    drawn = Picture(bands_svg("T", {"a": [Point(x, 5, 5, 5, 1) for x in (0, 1, 2)]}, across="epoch", up="loss"))
    assert [each for each in ("0", "0.5", "1", "1.5", "2") if each in drawn.texts] == ["0", "1", "2"]


def test_names_of_series_and_marks_at_one_height_do_not_overlap() -> None:
    series = {name: [Point(0, 0.1, 0.1, 0.1, 1), Point(1, 0.7, 0.7, 0.7, 1)] for name in ("dual", "outcome", "sum")}
    drawn = Picture(bands_svg("T", series, across="update", up="F1", marks={"gold": 0.7, "where all begin": 0.1}))
    names = ("dual", "outcome", "sum", "gold", "where all begin")
    assert all(lower - upper > FONT for upper, lower in pairwise(sorted(drawn.at(name)[1] for name in names)))
    assert len({drawn.at(name)[0] for name in names}) == 1
    dashed = [each.get("d", "") for each in drawn.root.iter("path") if "dasharray:5" in each.get("style", "")]
    lowest = max(float(path.split()[2]) for path in dashed)
    assert drawn.at("where all begin")[1] == pytest.approx(lowest + 4, abs=2), "where there is room"


def test_what_cannot_be_drawn_is_refused() -> None:
    for series in ({}, dict.fromkeys("abcdef", DUAL)):
        with pytest.raises(ValueError, match=f"cannot draw {len(series)} series: expected 1 to 5"):
            bands_svg("T", series, across="update", up="F1")


NUMBERS = st.floats(-1e9, 1e9)


@settings(max_examples=12)
@given(
    st.dictionaries(
        st.text(max_size=60),
        st.lists(
            st.builds(Point, st.floats(1e-3, 1e9), NUMBERS, NUMBERS, NUMBERS, st.integers(1, 9)), min_size=1, max_size=9
        ),
        min_size=1,
        max_size=len(SERIES),
    ),
    st.dictionaries(st.text(max_size=60), NUMBERS, max_size=25),
    st.booleans(),
)
def test_any_numbers_and_names_make_a_picture_that_keeps_to_its_page(
    series: dict[str, list[Point]], marks: dict[str, float], log: bool
) -> None:
    drawn = Picture(bands_svg("T", series, across="update", up="F1", marks=marks, log=log))
    width, height = drawn.size
    places = [(float(each.get("x", "")), float(each.get("y", ""))) for each in drawn.root.iter("use")]
    assert all(0 <= x <= width and 0 <= y <= height for x, y in places if y)
    assert len(drawn.tooltips) == sum(map(len, series.values()))


# --- charts of pages

ROWS = [Row("a", Interval(0.5, 0.4, 0.6), "0.50"), Row("b", Interval(0.7, 0.6, 0.8), "0.70", (0.65, 0.75), True)]


def test_a_forest_has_its_numbers_where_the_axis_says() -> None:
    drawn = Picture(forest_svg("F1", ROWS, mark=0.5))
    assert drawn.tooltips == ["a: 0.50", "b: 0.70"]
    (first, _), (second, y) = map(drawn.dot, drawn.tooltips)
    assert second == pytest.approx(drawn.across("0.4", "0.6", 0.7), abs=0.2)
    rings = [each for each in drawn.root.iter("use") if "stroke-quiet" in each.get("class", "")]
    assert [float(each.attrib["y"]) > y for each in rings[1:]] == [True, True], "a is hollow, b has a ring per seed"
    assert sum(float(each.attrib["x"]) for each in rings[1:]) / 2 == pytest.approx(second, abs=0.2)
    upright = next(line for line in drawn.lines("quiet") if line[0][0] == line[-1][0])
    assert upright[0][0] == pytest.approx(first, abs=0.2), "the mark"
    captions = [drawn.at(row.caption) for row in ROWS]
    assert captions[0][0] == captions[1][0] > second


def test_a_forest_with_limits_shows_all_of_them() -> None:
    drawn = Picture(forest_svg("F1", ROWS, width=480, limits=(0, 1)))
    assert {"0", "1"} <= set(drawn.texts)
    assert drawn.size[0] == 480


def test_names_of_a_scatter_do_not_cover_each_other() -> None:
    dots = {f"line {number}": (100.0 + number, Interval(0.5, 0.5, 0.5)) for number in range(30)}
    drawn = Picture(scatter_svg("F1", dots, "tokens", "F1"))
    heights = sorted(drawn.at(name)[1] for name in dots)
    assert all(lower - upper > FONT for upper, lower in pairwise(heights))
    assert 0 < heights[0] < heights[-1] < drawn.size[1]
    assert drawn.tooltips[1] == "line 1: F1 0.500, 101 tokens"


def test_a_learning_curve_has_dots_for_dev_scores() -> None:
    updates = [(float(n), 1 + 1 / n) for n in range(1, 41)]
    drawn = Picture(curve_svg("loss", updates, [], [(10.0, 1.5), (40.0, 1.25)]))
    assert drawn.tooltips == ["update 10: 1.5", "update 40: 1.25"]
    assert drawn.dot("update 10: 1.5")[0] == pytest.approx(drawn.across("0", "40", 10), abs=0.2)
    (line,) = [each for each in drawn.lines("series1") if len(each) == 40]
    assert line[9][0] == drawn.dot("update 10: 1.5")[0]
    faint = Picture(curve_svg("loss", updates, updates, []))
    opacities = [each.get("style", "") for each in faint.root.iter("path") if "stroke-series1" in each.get("class", "")]
    assert ["opacity" in each for each in opacities] == [True, False]


FINITE = st.floats(-1e30, 1e30).filter(lambda value: value == 0 or abs(value) > 1e-30)


@settings(max_examples=15)
@given(st.lists(FINITE, max_size=60), st.lists(FINITE, min_size=1, max_size=3))
def test_any_finite_numbers_can_be_drawn(updates: list[float], dev: list[float]) -> None:
    drawn = curve_svg('<loss> & "more"', list(enumerate(updates)), [], list(enumerate(dev)))
    assert len(Picture(drawn).tooltips) == len(dev)
    assert "nan" not in drawn


@pytest.mark.parametrize("kind", ["bands", "forest", "scatter"])
def test_names_are_text_and_never_markup_or_mathematics(kind: str) -> None:
    if kind == "bands":
        marks = {f"{HOSTILE}2": 0.7}
        drawn = Picture(bands_svg(HOSTILE, {HOSTILE: DUAL}, across=HOSTILE, up=HOSTILE, subtitle=HOSTILE, marks=marks))
        assert drawn.texts.count(SHOWN) == 5, "title, subtitle, both axes and the series"
    elif kind == "forest":
        drawn = Picture(forest_svg(HOSTILE, [Row(HOSTILE, Interval(0, 0, 1), "0")]))
    else:
        drawn = Picture(scatter_svg(HOSTILE, {HOSTILE: (1.0, Interval(0, 0, 1))}, "tokens", "F1"))
    assert SHOWN in drawn.texts
    assert drawn.tooltips[0].startswith(SHOWN)
    assert (drawn.root.attrib["aria-label"], drawn.root.attrib["role"]) == (SHOWN, "img")
