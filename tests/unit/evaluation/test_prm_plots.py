"""Pictures of a reward model: what they say, that it stands in the right place, and that any numbers can be drawn."""

import pytest
from hypothesis import given, settings, strategies as st

from stepladder.evaluation.prm.plots import distributions_svg, reliability_svg
from stepladder.evaluation.prm.ranking import brier, calibration_error
from tests.support.svg_pictures import Picture

GROUPS = {"gold": [0.1, 1.2, 2.0, 3.5], "shuffled": [-2.25, -1.0, 0.0]}
LABELS = [True, True, False, False, True]
BEFORE, AFTER = [0.9, 0.97, 0.95, 0.02, 0.55], [0.7, 0.8, 0.7, 0.2, 0.6]


# --- distributions


def test_a_row_a_group_with_its_numbers() -> None:
    said = Picture(distributions_svg("Gold and spoilt chains", GROUPS, axis="logit", subtitle="dev")).texts
    gold, shuffled = said.index("gold"), said.index("shuffled")
    assert said[gold : gold + 4] == ["gold", "4", "1.60", "100.0%"]
    assert said[shuffled : shuffled + 4] == ["shuffled", "3", "−1.00", "33.3%"]
    assert {"Gold and spoilt chains", "dev", "logit", "−2", "2", "≥ 0"} <= set(said)


def test_bars_and_medians_stand_at_their_scores() -> None:
    drawn = Picture(distributions_svg("Scores", GROUPS))
    assert len(drawn.tooltips) == 7  # no two of these scores are near enough to share one
    for tooltip, score in zip(drawn.tooltips, sorted(GROUPS["gold"]) + sorted(GROUPS["shuffled"])):
        left, _, right, _ = drawn.box(tooltip)
        assert left - 1 <= drawn.across("−2", "2", score) <= right + 1
        (bar,) = drawn.marked(tooltip).iter("path")
        assert bar.attrib["class"] == ("fill-series1" if score >= 0 else "fill-series0")
    medians = [line[0][0] for line in drawn.lines("ink")]
    assert medians == pytest.approx([drawn.across("−2", "2", score) for score in (1.6, -1.0)], abs=0.2)
    assert drawn.lines("quiet")[0][0][0] == pytest.approx(drawn.across("−2", "2", 0), abs=0.2)


def test_the_highest_bar_of_every_row_is_equally_high() -> None:
    drawn = Picture(distributions_svg("Scores", {"many": [1.0] * 900 + [3.0] * 300, "few": [-1.0, 2.0, 2.0]}))
    heights = [bottom - top for _, top, _, bottom in map(drawn.box, drawn.tooltips)]
    assert heights == pytest.approx([heights[0], heights[0] / 3, heights[0] / 2, heights[0]], abs=0.2)
    assert drawn.tooltips[0].startswith("many: 900 of 1,200 from 1 to ")


def test_a_group_without_scores_keeps_its_row() -> None:
    said = Picture(distributions_svg("Scores", {"gold": [1.0], "shuffled": []})).texts
    at = said.index("shuffled")
    assert said[at : at + 4] == ["shuffled", "0", "–", "–"]


@settings(max_examples=12)
@given(
    st.dictionaries(st.text(max_size=30), st.lists(st.floats(-1e9, 1e9), max_size=30), min_size=1, max_size=4),
    st.text(max_size=200),
)
def test_any_scores_make_a_picture_that_keeps_to_its_page(groups: dict[str, list[float]], title: str) -> None:
    if not any(groups.values()):
        return
    drawn = Picture(distributions_svg(title, groups))
    bars = [each for each in drawn.root.iter("g") if each.find("title") is not None]
    corners = [float(word) for each in bars for word in each.find("path").get("d", "").split()[1::3]]  # type: ignore[union-attr]
    assert all(0 <= x <= drawn.size[0] for x in corners)
    counted = [int(said.rsplit(": ", 1)[1].split(" of ")[0].replace(",", "")) for said in drawn.tooltips]
    assert sum(counted) == sum(map(len, groups.values()))


# --- reliability


def test_predicted_against_true_share_before_and_after() -> None:
    drawn = Picture(reliability_svg("Calibration", {"before": BEFORE, "after": AFTER}, LABELS))
    before, after = (next(line for line in drawn.lines(f"series{n}") if len(line) > 2) for n in (0, 1))
    (left, bottom), (right, top) = drawn.lines("quiet")[0]  # the diagonal
    assert (right - left, bottom - top) == (384, 384)
    assert [x for x, _ in before] == pytest.approx([left + 384 * p for p in (0.02, 0.55, 0.94)], abs=0.2)
    assert [x for x, _ in after] == pytest.approx([left + 384 * p for p in (0.2, 0.6, 0.7, 0.8)], abs=0.2)
    assert [y for _, y in before] == pytest.approx([bottom, top, bottom - 384 * 2 / 3], abs=0.2)
    assert [said for said in drawn.tooltips if said.startswith("before")] == [
        "before: 1 steps from 0 to 0.1",
        "before: 1 steps from 0.5 to 0.6",
        "before: 3 steps from 0.9 to 1",
    ]


def test_the_legend_tells_how_good_each_prediction_is() -> None:
    said = Picture(reliability_svg("Calibration", {"before": BEFORE, "after": AFTER}, LABELS, bins=5)).texts
    for name, chances in (("before", BEFORE), ("after", AFTER)):
        at = said.index(name)
        measured = calibration_error(chances, LABELS, 5), brier(chances, LABELS)
        assert said[at + 1 : at + 3] == [f"{value:.3f}" for value in measured]
    assert "5 steps, 60.0% good." in said


@settings(max_examples=8)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.booleans()), min_size=1, max_size=30),
    st.text(max_size=60),
    st.integers(1, 120),
)
def test_any_probabilities_make_a_picture(steps: list[tuple[float, float, bool]], name: str, bins: int) -> None:
    one, two, labels = map(list, zip(*steps))
    drawn = Picture(reliability_svg(name, {name: one, f"{name}'": two}, labels, bins=bins))
    counted = [int(said.rsplit(": ", 1)[1].split(" steps")[0]) for said in drawn.tooltips if " from " in said]
    assert sum(counted) == 2 * len(steps)


# --- both


def test_names_are_text() -> None:
    name, shown = "<b>$x_1$ & \x00", "<b>$x_1$ & \N{REPLACEMENT CHARACTER}"
    for svg in (distributions_svg("T", {name: [1.0]}), reliability_svg("T", {name: [1.0]}, [True])):
        assert shown in Picture(svg).texts


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        distributions_svg("T", {"gold": []})
    with pytest.raises(ValueError, match="0 predictors"):
        reliability_svg("T", {}, [True])
    with pytest.raises(ValueError, match="found 1 and 2"):
        reliability_svg("T", {"p": [0.5]}, [True, False])
