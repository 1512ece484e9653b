"""A mark says that a pair is wrong: it is kept beside the pairs, and leaves them out of training and exports."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from stepladder import Pair
from stepladder.core.errors import StepladderError
from stepladder.core.io.records import dumps, loads
from stepladder.core.trace import Action, ActionKind, Author, Segment, Side
from stepladder.preferences.export import EXPORTS, export
from stepladder.preferences.marks import MarkedFilter, mark, marks_file, pair_id, read_marks, unmark


def side(text: str, **known: float) -> Side:
    return Side(Segment(Author.POLICY, f"<query>{text}</query>"), Action(ActionKind.QUERY, text), **known)


def pair(number: int, **changes: object) -> Pair:
    prompt = (Segment(Author.PROMPT, f"Question {number}?"),)
    return replace(
        Pair(f"q{number}", "prorag", prompt, side("Who built Orm Tower?"), side("Orm"), 0, "spre"),
        **changes,  # type: ignore[arg-type]
    )


PAIRS = [pair(number) for number in range(4)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "pairs"
    made.mkdir()
    (made / "train.jsonl").write_text("".join(dumps(each) + "\n" for each in PAIRS))
    return made


# --- the id of a pair --------------------------------------------------------------------------------------


def test_the_id_is_that_of_the_texts() -> None:
    same = [
        loads(dumps(PAIRS[0]), Pair),
        pair(0, judge="llm", reason="because", depth=3),
        pair(0, chosen=side("Who built Orm Tower?", value=0.9), rejected=side("Orm", value=0.1)),
        pair(0, context=(Segment(Author.PROMPT, "Question 0?", (1, 2), (), "vocabulary"),)),
    ]
    assert {pair_id(each) for each in same} == {pair_id(PAIRS[0])}


def test_other_texts_sides_and_questions_have_other_ids() -> None:
    first = PAIRS[0]
    others = [
        pair(0, chosen=first.rejected, rejected=first.chosen),
        pair(0, chosen=side("Who designed Orm Tower?")),
        pair(0, question_id="q9"),
        pair(0, agent="react"),
        pair(0, context=(Segment(Author.PROMPT, "Question "), Segment(Author.PROMPT, "0?"))),
    ]
    assert len({pair_id(each) for each in (first, *others)}) == 6


# --- the file ----------------------------------------------------------------------------------------------


def test_marks_are_saved_beside_the_pairs_which_stay_as_they_are(folder: Path) -> None:
    before = (folder / "train.jsonl").read_bytes()
    one, other = pair_id(PAIRS[0]), pair_id(PAIRS[2])
    assert read_marks(folder) == {}
    mark(folder, [one, other], "  both say the same  ")
    assert marks_file(folder) == folder.parent / "marks.json"
    assert list(read_marks(folder)) == [one, other]
    assert read_marks(folder)[one].note == "both say the same"
    assert (folder / "train.jsonl").read_bytes() == before
    assert sorted(path.name for path in folder.parent.iterdir()) == ["marks.json", "pairs"]


def test_a_note_can_be_changed_and_a_mark_removed(folder: Path) -> None:
    one = pair_id(PAIRS[0])
    made = mark(folder, [one])[one]
    changed = mark(folder, [one], "no: a lone surrogate \ud800")[one]
    assert (changed.time, changed.note) == (made.time, "no: a lone surrogate �")
    assert unmark(folder, [one, "never marked"]) == {}
    assert read_marks(folder) == {}


def test_a_note_has_a_limit(folder: Path) -> None:
    with pytest.raises(StepladderError, match="2,001 characters; at most 2,000"):
        mark(folder, ["a"], "x" * 2001)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"stepladder_marks": 1}', '{"stepladder_marks": 1, "marks": {"a": {"note": 3, "time": ""}}}']
)
def test_a_damaged_file_is_reported_and_not_replaced(folder: Path, text: str) -> None:
    marks_file(folder).write_text(text)
    with pytest.raises(StepladderError, match=r"marks.json is damaged"):
        mark(folder, ["a"])
    assert marks_file(folder).read_text() == text


def test_marks_of_a_newer_version_are_refused(folder: Path) -> None:
    marks_file(folder).write_text('{"stepladder_marks": 2, "marks": {}}')
    with pytest.raises(StepladderError, match="version 2; this Stepladder reads version 1"):
        read_marks(folder)


def test_without_the_folder_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match="Are the pairs still there"):
        mark(tmp_path / "gone" / "pairs", ["a"])
    assert not (tmp_path / "gone").exists()


def _mark_ten(folder: Path, name: str) -> None:
    for number in range(10):
        mark(folder, [f"{name}{number}"])


def test_no_mark_is_lost_when_threads_and_processes_write_at_once(folder: Path) -> None:
    processes = [get_context("spawn").Process(target=_mark_ten, args=(folder, name)) for name in "ab"]
    for process in processes:
        process.start()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: _mark_ten(folder, name), "cd"))
    for process in processes:
        process.join()
    assert len(read_marks(folder)) == 40


@pytest.mark.skipif(os.name == "nt" or os.getuid() == 0, reason="root may write everywhere")
def test_a_run_that_may_not_be_written_is_an_error(folder: Path) -> None:
    folder.parent.chmod(0o500)
    try:
        with pytest.raises(StepladderError, match=r"marks"):
            mark(folder, ["a"])
    finally:
        folder.parent.chmod(0o700)


# --- leaving pairs out -------------------------------------------------------------------------------------


def test_marked_pairs_are_left_out_and_counted() -> None:
    unmarked = MarkedFilter({pair_id(PAIRS[1]), "of a pair that is gone"})
    assert list(unmarked(PAIRS)) == [PAIRS[0], PAIRS[2], PAIRS[3]]
    assert unmarked.excluded == 1


def test_if_every_training_pair_is_marked_the_error_says_so() -> None:
    unmarked = MarkedFilter({pair_id(each) for each in PAIRS})
    assert list(unmarked(PAIRS)) == []
    with pytest.raises(StepladderError, match="all 4 training pairs are marked as wrong"):
        list(unmarked(PAIRS, "training pairs"))


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("format", EXPORTS)
def test_marks_are_exported_in_a_file_of_their_own(format: str, folder: Path, tmp_path: Path) -> None:
    splits = {"train": PAIRS[:3], "dev": PAIRS[3:]}
    marks = mark(folder, [pair_id(PAIRS[3]), pair_id(PAIRS[1])], "the query is fine")
    kept = export(format, splits, tmp_path / "kept", source="nano", marks=marks)
    assert (kept.pairs, kept.marked) == ({"train": 3, "dev": 1}, 2)
    assert [(row["split"], row["question_id"]) for row in rows(tmp_path / "kept" / "marked.jsonl")] == [
        ("train", "q1"), ("dev", "q3"),
    ]  # fmt: skip
    assert "marked as wrong: 2, among the others" in (tmp_path / "kept" / "README.md").read_text()
    out = export(format, splits, tmp_path / "out", source="nano", marks=marks, exclude_marked=True)
    assert (out.pairs, out.marked) == ({"train": 2}, 2)
    row = rows(tmp_path / "out" / "marked.jsonl")[0]
    assert row.items() >= {"judge": "spre", "note": "the query is fine", "exported": False}.items()
    assert row["id"] == pair_id(PAIRS[1])
    export(format, splits, tmp_path / "out", source="nano")  # an export may be replaced, marks or not
    assert not (tmp_path / "out" / "marked.jsonl").exists()


def test_nothing_is_left_to_export(folder: Path, tmp_path: Path) -> None:
    marks = mark(folder, map(pair_id, PAIRS))
    with pytest.raises(StepladderError, match="no pairs at all beside 4 marked as wrong"):
        export("trl", {"train": PAIRS}, tmp_path / "out", source="nano", marks=marks, exclude_marked=True)
