"""Files that the studio reads while they are written: each byte once, in bounded memory."""

import gzip
import json
from pathlib import Path

import pytest

from stepladder.core.config import Config
from stepladder.explore.tree_store import TreeFile
from stepladder.serve.studio.watch.appended_file import AppendedFile
from stepladder.serve.studio.watch.curve_file import MAX_POINTS, CurveFile, Series
from stepladder.serve.studio.watch.run_memory import TreeCount, last_row
from stepladder.serve.studio.watch.tree_index import TreeFilter, TreeIndex
from tests.support.made_runs import add_trees, grown_trees, write_curves


class Nothing(Config):
    """Settings of a stage that has none."""


def read(file: AppendedFile) -> tuple[bool, list[bytes]]:
    restarted, lines = file.read()
    return restarted, list(lines)


def test_only_what_was_appended_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = AppendedFile(path)
    assert not file.changed(), "it does not exist yet"
    path.write_bytes(b"one\ntwo\nthr")
    assert file.changed()
    assert read(file) == (False, [b"one", b"two"]), "a line without its end is left for the next look"
    assert not file.changed()
    path.write_bytes(b"one\ntwo\nthree\nfour\n")  # rewritten with the old lines first, as the metrics log is
    assert read(file) == (False, [b"three", b"four"])


def test_a_file_with_other_lines_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = AppendedFile(path)
    path.write_bytes(b"one\ntwo\nthree\n")
    read(file)
    path.write_bytes(b"one\ntwo\nother\nfour\n")  # a resumed run dropped a row
    assert read(file) == (True, [b"one", b"two", b"other", b"four"])
    path.unlink()
    assert read(file) == (True, [])


@pytest.mark.parametrize("rows", [1, MAX_POINTS, MAX_POINTS + 1, 5 * MAX_POINTS + 3])
def test_a_series_keeps_its_mean_in_a_bounded_number_of_points(rows: int) -> None:
    series = Series()
    for step in range(1, rows + 1):
        series.add(step, 2.0 * step)
    points = series.points()
    assert len(points) <= MAX_POINTS
    assert series.rows == rows
    assert all(value == pytest.approx(2 * step, rel=1e-3) for step, value in points), "neighbors are averaged"
    assert points[-1][0] > rows - 2 * series.per_point


def test_curves_grow_with_their_file(tmp_path: Path) -> None:
    path = tmp_path / "curves.jsonl"
    curves = CurveFile(path)
    assert not curves.update()
    write_curves(path, 20)
    assert curves.update()
    assert not curves.update()
    write_curves(path, 30)
    assert curves.update()
    plain = curves.plain(Nothing())
    assert plain["updates"] == 30
    metrics = {metric["id"]: metric for metric in plain["metrics"]}
    assert set(metrics) == {"loss", "kl", "metric_0", "f1"}
    assert metrics["kl"]["name"] == "KL from the initial policy"
    assert len(metrics["loss"]["train"]) == 30
    assert metrics["f1"]["dev"] == [(10.0, 0.1), (20.0, 0.2), (30.0, 0.3)]


def test_values_that_are_not_finite_and_damaged_rows_are_counted_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "curves.jsonl"
    path.write_text(
        '{"step": 1, "loss": NaN}\n{"step": 2, "loss": 1.0}\n{"step": 3, "lo\n[1]\n{"step": 4, "loss": 2.0}\n'
    )
    curves = CurveFile(path)
    curves.update()
    plain = curves.plain(Nothing())
    assert plain["metrics"][0]["train"] == [(2.0, 1.0), (4.0, 2.0)]
    assert plain["metrics"][0]["not_finite"] == 1
    assert plain["problem"] == "a row is damaged and left out"
    assert json.loads(json.dumps(plain, allow_nan=False)), "browsers cannot read NaN"


def test_the_last_update_is_found_at_the_end_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "curves.jsonl"
    write_curves(path, 30)
    assert last_row(path)["step"] == 30
    path.write_text("")
    assert last_row(path) == {}


def stage_with_trees(folder: Path, count: int) -> TreeIndex:
    add_trees(folder, grown_trees(count))
    return TreeIndex(folder / "trees.jsonl.gz")


def test_the_index_grows_with_its_file_and_reads_a_tree_from_its_place(tmp_path: Path) -> None:
    index = stage_with_trees(tmp_path, 4)
    index.update(60)
    assert index.is_complete
    assert [each.id for each in index.entries] == ["q0", "q1", "q2", "q3"]
    version = index.version
    index.update(60)
    assert index.version == version
    add_trees(tmp_path, grown_trees(2, first=4))
    index.update(60)
    assert len(index.entries) == 6
    tree, scores = index.tree("q5")
    assert (tree.question.id, scores) == ("q5", {})
    with pytest.raises(KeyError):
        index.tree("q6")


def test_an_index_is_made_in_slices_of_time(tmp_path: Path) -> None:
    index = stage_with_trees(tmp_path, 3)
    index.update(0)
    assert len(index.entries) == 1
    assert not index.is_complete
    while not index.is_complete:
        index.update(0.01)
    assert len(index.entries) == 3


def test_a_file_that_was_sorted_is_indexed_again(tmp_path: Path) -> None:
    index = stage_with_trees(tmp_path, 3)
    index.update(60)
    with TreeFile(tmp_path / "trees.jsonl.gz") as file:
        file.sort(["q2", "q1", "q0"])
    index.update(60)
    assert [each.id for each in index.entries] == ["q2", "q1", "q0"]
    assert index.tree("q0")[0].question.id == "q0"


def test_filters_and_words_select_trees(tmp_path: Path) -> None:
    index = stage_with_trees(tmp_path, 6)
    index.update(60)
    counts = index.counts()
    assert counts[TreeFilter.ALL] == 6
    assert counts[TreeFilter.SOLVED] + counts[TreeFilter.UNSOLVED] == 6
    assert all(each.right for each in index.find(TreeFilter.SOLVED))
    assert all(each.disputed for each in index.find(TreeFilter.DISPUTED))
    assert [each.id for each in index.find(TreeFilter.ALL, "Q3 orm TOWER")] == ["q3"]
    assert index.find(TreeFilter.ALL, "nothing like it") == []


def test_scores_of_a_reward_model_are_looked_at_when_they_come(tmp_path: Path) -> None:
    index = stage_with_trees(tmp_path, 3)
    index.update(60)
    assert not index.find(TreeFilter.PRM_AGAINST_GOLD)
    nodes = {each.id: len(index.tree(each.id)[0].nodes) for each in index.entries}
    index.use_scores({key: dict.fromkeys(range(1, count), 9.0) for key, count in nodes.items()})  # all steps are good
    index.update(60)
    assert index.find(TreeFilter.PRM_AGAINST_GOLD), "not to the gold judge"


def test_a_damaged_file_of_trees_says_so_and_keeps_what_is_whole(tmp_path: Path) -> None:
    index = stage_with_trees(tmp_path, 2)
    with index.path.open("ab") as file:
        file.write(gzip.compress(b'{"no": "tree"}\n'))
    index.update(60)
    assert len(index.entries) == 2
    assert "cannot be read" in index.problem


def test_a_tree_that_is_being_written_is_no_damage(tmp_path: Path) -> None:
    index = stage_with_trees(tmp_path, 2)
    whole = index.path.read_bytes()
    index.path.write_bytes(whole[:-20])
    index.update(60)
    assert (len(index.entries), index.problem) == (1, "")
    index.path.write_bytes(whole)
    index.update(60)
    assert len(index.entries) == 2


def test_trees_are_counted_while_they_grow(tmp_path: Path) -> None:
    add_trees(tmp_path, grown_trees(2))
    count = TreeCount(tmp_path / "trees.jsonl.gz")
    assert count.update() == 2
    add_trees(tmp_path, grown_trees(1, first=2))
    assert count.update() == 3
