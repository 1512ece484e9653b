"""Pictures of a reward model: what they say, that it stands in the right place, and that any numbers can be drawn."""

import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from stepladder.core.svg import WIDTH, Axis, tick_step, ticks
from stepladder.evaluation.prm.plots import distributions_svg, reliability_svg
from stepladder.evaluation.prm.ranking import brier, calibration_error

SVG = "{http://www.w3.org/2000/svg}"
GROUPS = {"gold": [0.1, 1.2, 2.0, 3.5], "shuffled": [-2.25, -1.0, 0.0]}
LABELS = [True, True, False, False, True]
BEFORE, AFTER = [0.9, 0.97, 0.95, 0.02, 0.55], [0.7, 0.8, 0.7, 0.2, 0.6]


def shapes(svg: str, tag: str, kind: str = "") -> list[Element]:
    """The elements of a tag that have a class."""
    found = ElementTree.fromstring(svg).iter(f"{SVG}{tag}")
    return [each for each in found if not kind or kind in each.get("class", "").split()]


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in shapes(svg, "text")]


def tooltips(svg: str, tag: str) -> list[str]:
    return [each.findtext(f"{SVG}title") or "" for each in shapes(svg, tag, "bar" if tag == "rect" else "dot")]


def points(path: Element) -> list[tuple[float, float]]:
    """The corners of a line, in pixels."""
    return [(float(x), float(y)) for x, y in re.findall(r"([-\d.]+) ([-\d.]+)", path.get("d", ""))]


def scale(svg: str, label: str, other: str) -> Axis:
    """The axis of a picture, read off two of its labels."""
    (x1, low), (x2, high) = (
        (float(each.get("x", "")), float((each.text or "").replace("−", "-")))
        for each in shapes(svg, "text", "middle")
        if each.text in (label, other)
    )
    return Axis(low, high, x1, x2)


# --- distributions


def test_a_row_a_group_with_its_numbers() -> None:
    svg = distributions_svg("Gold and spoilt chains", GROUPS, axis="logit", subtitle="dev")
    said = texts(svg)
    assert said[:2] == ["Gold and spoilt chains", "dev"]
    gold, shuffled = said.index("gold"), said.index("shuffled")
    assert said[gold : gold + 4] == ["gold", "4", "1.60", "100.0%"]
    assert said[shuffled : shuffled + 4] == ["shuffled", "3", "−1.00", "33.3%"]
    assert {"logit", "−2", "0", "2", "≥ 0"} <= set(said)


def test_bars_and_medians_stand_at_their_scores() -> None:
    svg = distributions_svg("Scores", GROUPS)
    across = scale(svg, "−2", "2")
    bars = shapes(svg, "rect", "bar")
    assert len(bars) == 7  # no two of these scores are near enough to share one
    for each, score in zip(bars, GROUPS["gold"] + GROUPS["shuffled"]):
        left, width = float(each.get("x", "")), float(each.get("width", ""))
        assert left - 1 <= across(score) <= left + width + 1
        assert ("s1" in each.get("class", "").split()) == (score >= 0)
    gold, shuffled, _legend = (points(each)[0][0] for each in shapes(svg, "path", "median"))
    assert (gold, shuffled) == (pytest.approx(across(1.6), abs=0.1), pytest.approx(across(-1.0), abs=0.1))
    (zero,) = shapes(svg, "path", "aim")
    assert points(zero)[0][0] == pytest.approx(across(0), abs=0.1)


def test_the_highest_bar_of_every_row_is_equally_high() -> None:
    svg = distributions_svg("Scores", {"many": [1.0] * 900 + [3.0] * 300, "few": [-1.0, 2.0, 2.0]})
    heights = [float(each.get("height", "")) for each in shapes(svg, "rect", "bar")]
    assert heights == [50.0, pytest.approx(50 / 3, abs=0.1), 25.0, 50.0]


def test_a_group_without_scores_keeps_its_row() -> None:
    said = texts(distributions_svg("Scores", {"gold": [1.0], "shuffled": []}))
    at = said.index("shuffled")
    assert said[at : at + 4] == ["shuffled", "0", "–", "–"]


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text(max_size=30), st.lists(st.floats(-1e9, 1e9), max_size=30), min_size=1, max_size=4),
    st.text(max_size=200),
)
def test_any_scores_make_a_picture_that_keeps_to_its_page(groups: dict[str, list[float]], title: str) -> None:
    if not any(groups.values()):
        return
    svg = distributions_svg(title, groups)
    for each in shapes(svg, "rect", "bar"):
        assert 0 <= float(each.get("x", "")) <= float(each.get("x", "")) + float(each.get("width", "")) <= WIDTH
    for each in shapes(svg, "path"):
        assert all(0 <= x <= WIDTH for x, _ in points(each))
    drawn = [int(said.rsplit(": ", 1)[1].split(" of ")[0].replace(",", "")) for said in tooltips(svg, "rect")]
    assert sum(drawn) == sum(map(len, groups.values()))


# --- reliability


def test_predicted_against_true_share_before_and_after() -> None:
    svg = reliability_svg("Calibration", {"before": BEFORE, "after": AFTER}, LABELS)
    across = scale(svg, "0", "1")
    before, after = (points(each) for each in shapes(svg, "path", "curve")[:2])
    assert [x for x, _ in before] == pytest.approx([across(p) for p in (0.02, 0.55, 0.94)], abs=0.1)
    assert [x for x, _ in after] == pytest.approx([across(p) for p in (0.2, 0.6, 0.7, 0.8)], abs=0.1)
    (diagonal,) = shapes(svg, "path", "aim")
    (left, bottom), (right, top) = points(diagonal)
    assert (right - left, bottom - top) == (384, 384)
    assert [y for _, y in before] == pytest.approx([bottom, top, bottom - 384 * 2 / 3], abs=0.1)
    assert tooltips(svg, "rect")[:3] == [
        "before: 1 steps from 0 to 0.1",
        "before: 1 steps from 0.5 to 0.6",
        "before: 3 steps from 0.9 to 1",
    ]


def test_the_legend_tells_how_good_each_prediction_is() -> None:
    said = texts(reliability_svg("Calibration", {"before": BEFORE, "after": AFTER}, LABELS, bins=5))
    for name, chances in (("before", BEFORE), ("after", AFTER)):
        at = said.index(name)
        measured = calibration_error(chances, LABELS, 5), brier(chances, LABELS)
        assert said[at + 1 : at + 3] == [f"{value:.3f}" for value in measured]
    assert "5 steps, 60.0% good." in said


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.booleans()), min_size=1, max_size=30),
    st.text(max_size=60),
    st.integers(1, 120),
)
def test_any_probabilities_make_a_picture(steps: list[tuple[float, float, bool]], name: str, bins: int) -> None:
    one, two, labels = map(list, zip(*steps))
    svg = reliability_svg(name, {name: one, f"{name}'": two}, labels, bins=bins)
    bars = shapes(svg, "rect", "bar")
    assert all(float(each.get("width", "")) > 0 for each in bars)
    counted = [int(said.rsplit(": ", 1)[1].split(" steps")[0]) for said in tooltips(svg, "rect")]
    assert sum(counted) == 2 * len(steps)


# --- both


@pytest.mark.parametrize(
    "svg", [distributions_svg("T", {"<b>&\x00": [1.0]}), reliability_svg("T", {"<b>&\x00": [1.0]}, [True])]
)
def test_a_picture_stands_on_its_own_in_light_and_in_dark(svg: str) -> None:
    root = ElementTree.fromstring(svg)
    assert root.get("viewBox", "").split()[2] == root.get("width") == str(WIDTH)
    assert "<b>&\N{REPLACEMENT CHARACTER}" in texts(svg)
    assert "@media (prefers-color-scheme:dark)" in svg
    assert not re.search(r"href|url\(|@import|<script", svg)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        distributions_svg("T", {"gold": []})
    with pytest.raises(ValueError, match="score 1 of 'gold' is nan"):
        distributions_svg("T", {"gold": [0.0, float("nan")]})
    with pytest.raises(ValueError, match="0 predictors"):
        reliability_svg("T", {}, [True])
    with pytest.raises(ValueError, match="found 1 and 2"):
        reliability_svg("T", {"p": [0.5]}, [True, False])


@given(st.floats(1e-6, 1e9), st.integers(1, 60))
def test_steps_are_round_and_fit(span: float, most: int) -> None:
    step = tick_step(span, most)
    assert span <= step * most * (1 + 1e-9)
    assert step * most <= 2.5 * span * (1 + 1e-9)  # and no wider than need be
    assert f"{step:.0e}"[0] in "125"
    assert step == pytest.approx(float(f"{step:.0e}"))
    marks = ticks(Axis(-span, span, 0, 100), step)
    assert 0.0 in marks
    assert np.all(np.abs(marks) <= span * (1 + 1e-6))
