"""Means and bands over repeated runs: what the picture says, and that it stands in the right place."""

import re
from itertools import pairwise
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given, settings, strategies as st

from stepladder.core.svg import FONT, SERIES, WIDTH, Axis
from stepladder.reporting.charts.band_plot import Point, bands_svg

SVG = "{http://www.w3.org/2000/svg}"
DUAL = [Point(0, 0.72, 0.7, 0.74, 5), Point(40, 0.78, 0.75, 0.81, 5), Point(80, 0.8, 0.79, 0.82, 1)]
OUTCOME = [Point(0, 0.71, 0.7, 0.72, 5), Point(50, 0.74, 0.72, 0.78, 5)]


def shapes(svg: str, tag: str, kind: str = "") -> list[Element]:
    """The elements of a tag that have all of some classes, such as "band s0"."""
    found = ElementTree.fromstring(svg).iter(f"{SVG}{tag}")
    return [each for each in found if set(kind.split()) <= set(each.get("class", "").split())]


def points(path: Element) -> list[tuple[float, float]]:
    """The corners of a path, in pixels."""
    return [(float(x), float(y)) for x, y in re.findall(r"([-\d.]+) ([-\d.]+)", path.get("d", ""))]


def means(svg: str, series: int) -> list[tuple[float, float]]:
    """The line of a series; the stroke beside its label comes before it."""
    _stroke, curve = shapes(svg, "path", f"curve s{series}")
    return points(curve)


def told(svg: str, series: int) -> list[str]:
    """The tooltips of a series."""
    return [each.findtext(f"{SVG}title") or "" for each in shapes(svg, "circle", f"s{series}")]


def label(svg: str, words: str) -> tuple[float, float]:
    """Where some words stand."""
    (found,) = (each for each in shapes(svg, "text") if each.text == words)
    return float(found.get("x", "")), float(found.get("y", ""))


def axis(svg: str, low: str, high: str) -> Axis:
    """The axis of heights, read off two of its numbers; words are centred 4 pixels above their baseline."""
    return Axis(float(low), float(high), label(svg, low)[1] - 4, label(svg, high)[1] - 4)


def test_a_line_a_band_a_name_and_tooltips_for_every_series() -> None:
    svg = bands_svg("Credit", {"dual": DUAL, "outcome": OUTCOME}, across="update", up="F1", subtitle="5 seeds")
    assert {"Credit", "5 seeds", "update", "F1", "dual", "outcome"} <= {each.text for each in shapes(svg, "text")}
    assert told(svg, 0) == [
        "dual, update 0: 0.72 [0.7, 0.74], 5 runs",
        "dual, update 40: 0.78 [0.75, 0.81], 5 runs",
        "dual, update 80: 0.8 [0.79, 0.82], 1 run",
    ]
    assert told(svg, 1)[1] == "outcome, update 50: 0.74 [0.72, 0.78], 5 runs"
    up, zero, eighty = axis(svg, "0.72", "0.8"), label(svg, "0")[0], label(svg, "80")[0]
    across = Axis(0, 80, zero, eighty)
    for series, each in enumerate((DUAL, OUTCOME)):
        (band,) = shapes(svg, "path", f"band s{series}")
        assert (band.get("fill"), float(band.get("fill-opacity", "")) < 0.5) == ("currentColor", True)
        there = [(across(point.x), up(point.high)) for point in each]
        back = [(across(point.x), up(point.low)) for point in reversed(each)]
        assert points(band) == [pytest.approx(corner, abs=0.2) for corner in there + back]
        middle = [(across(point.x), up(point.mean)) for point in each]
        assert means(svg, series) == [pytest.approx(corner, abs=0.2) for corner in middle]


def test_points_are_drawn_from_left_to_right_however_they_come() -> None:
    mixed = [DUAL[2], DUAL[0], DUAL[1]]
    one, other = (bands_svg("T", {"dual": each}, across="update", up="F1") for each in (DUAL, mixed))
    assert one == other
    assert [x for x, _ in means(one, 0)] == sorted(x for x, _ in means(one, 0))


def test_a_single_point_is_a_dot_with_a_whisker() -> None:
    svg = bands_svg("T", {"dual": [Point(40, 0.78, 0.75, 0.81, 5)]}, across="update", up="F1")
    (dot,), (band,) = shapes(svg, "circle"), shapes(svg, "path", "band")
    assert float(dot.get("cx", "")) == label(svg, "40")[0]
    (x, high), (same, low) = points(band)
    assert x == same
    assert high < float(dot.get("cy", "")) < low
    assert float(band.get("stroke-opacity", "")) > 0


def test_a_logarithmic_axis_has_equal_steps_between_the_numbers_that_occur() -> None:
    series = {"trees": [Point(x, 0.5, 0.4, 0.6, 3) for x in (32, 64, 128)], "chains": [Point(512, 0.5, 0.5, 0.5, 3)]}
    svg = bands_svg("T", series, across="calls", up="F1", log=True)
    assert [x for x, _ in means(svg, 0)] == [label(svg, each)[0] for each in ("32", "64", "128")]
    first, second, third, last = (label(svg, each)[0] for each in ("32", "64", "128", "512"))
    assert second - first == pytest.approx(third - second, abs=0.2)
    assert last - third == pytest.approx(2 * (third - second), abs=0.3)


def test_numbers_of_a_logarithmic_axis_that_would_overlap_are_left_out() -> None:
    svg = bands_svg("T", {"a": [Point(x, 0, 0, 0, 1) for x in (100, 101, 1000)]}, across="calls", up="F1", log=True)
    said = {each.text for each in shapes(svg, "text")}
    assert {"100", "1000"} <= said
    assert "101" not in said
    assert len(shapes(svg, "circle")) == 3


def test_between_whole_numbers_there_are_no_fractions() -> None:
    svg = bands_svg("T", {"a": [Point(x, 5, 5, 5, 1) for x in (0, 1, 2)]}, across="epoch", up="loss")
    assert [each.text for each in shapes(svg, "text", "middle")] == ["0", "1", "2", "loss", "epoch"]


def test_labels_of_series_and_marks_at_one_height_do_not_overlap() -> None:
    series = {name: [Point(0, 0.1, 0.1, 0.1, 1), Point(1, 0.7, 0.7, 0.7, 1)] for name in ("dual", "outcome", "sum")}
    svg = bands_svg("T", series, across="update", up="F1", marks={"gold": 0.7, "where all begin": 0.1})
    names = ("dual", "outcome", "sum", "gold", "where all begin")
    heights = sorted(label(svg, name)[1] for name in names)
    assert all(lower - upper > FONT for upper, lower in pairwise(heights))
    # Where there is room a label stands at its value's height.
    mark = shapes(svg, "path", "aim")[1]
    assert label(svg, "where all begin")[1] == pytest.approx(points(mark)[0][1] + 4, abs=0.1)
    assert len({label(svg, name)[0] for name in names}) == 1


def test_a_mark_is_a_dashed_line_at_its_value_even_outside_the_curves() -> None:
    svg = bands_svg("T", {"dual": DUAL}, across="update", up="F1", marks={"gold": 1.0})
    (left, y), (right, same), *_ = points(shapes(svg, "path", "aim")[0])
    assert y == same == pytest.approx(axis(svg, "0.7", "0.9")(1.0), abs=0.1)
    assert left < min(x for x, _ in means(svg, 0)) < max(x for x, _ in means(svg, 0)) < right


@pytest.mark.parametrize("value", [0.0, 0.7, -3e5])
def test_runs_that_all_agree_have_an_axis_too(value: float) -> None:
    svg = bands_svg("T", {"a": [Point(x, value, value, value, 2) for x in (1, 2)]}, across="update", up="F1")
    numbers = [each.text for each in shapes(svg, "text", "end")]
    assert len(set(numbers)) == len(numbers) >= 2


NUMBERS = st.floats(-1e9, 1e9)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=60),
        st.lists(st.builds(Point, st.floats(1e-3, 1e9), NUMBERS, NUMBERS, NUMBERS, st.integers(1, 9)), min_size=1),
        min_size=1,
        max_size=len(SERIES),
    ),
    st.dictionaries(st.text(max_size=60), NUMBERS, max_size=25),
    st.booleans(),
)
def test_any_numbers_make_a_picture_that_keeps_to_its_page(
    series: dict[str, list[Point]], marks: dict[str, float], log: bool
) -> None:
    svg = bands_svg("T", series, across="update", up="F1", marks=marks, log=log)
    height = float(ElementTree.fromstring(svg).get("height", ""))
    corners = [corner for path in shapes(svg, "path") for corner in points(path)]
    corners += [(float(dot.get("cx", "")), float(dot.get("cy", ""))) for dot in shapes(svg, "circle")]
    assert all(0 <= x <= WIDTH and 0 <= y <= height for x, y in corners)
    labels = sorted(float(each.get("y", "")) for each in shapes(svg, "text") if each.get("class") in ("name", "small"))
    assert all(lower - upper > FONT for upper, lower in pairwise(labels))
    assert len(shapes(svg, "circle")) == sum(map(len, series.values()))


def test_a_picture_stands_on_its_own_in_light_and_in_dark() -> None:
    svg = bands_svg("T", {"<b>&\x00": DUAL}, across="<update>", up='"F1"', marks={"<": 0.7})
    assert {"<b>&\N{REPLACEMENT CHARACTER}", "<update>", '"F1"', "<"} <= {each.text for each in shapes(svg, "text")}
    assert "@media (prefers-color-scheme:dark)" in svg
    assert not re.search(r"href|url\(|@import|<script", svg)


def test_what_cannot_be_drawn_is_refused_by_its_name() -> None:
    def draw(series: dict[str, list[Point]], marks: dict[str, float] | None = None, log: bool = False) -> str:
        return bands_svg("T", series, across="update", up="F1", marks=marks, log=log)

    with pytest.raises(ValueError, match="0 series"):
        draw({})
    with pytest.raises(ValueError, match="6 series: expected 1 to 5"):
        draw(dict.fromkeys("abcdef", DUAL))
    with pytest.raises(ValueError, match="'outcome' has no points"):
        draw({"dual": DUAL, "outcome": []})
    for broken in (Point(float("nan"), 1, 1, 1, 1), Point(1, 1, float("nan"), 1, 1), Point(1, 1, 1, float("inf"), 1)):
        with pytest.raises(ValueError, match=r"'outcome' has Point.*finite"):
            draw({"dual": DUAL, "outcome": [broken]})
    with pytest.raises(ValueError, match="'dual' has a point at x = 0"):
        draw({"dual": DUAL}, log=True)
    with pytest.raises(ValueError, match="mark 'gold' is at nan"):
        draw({"dual": DUAL}, marks={"gold": float("nan")})
