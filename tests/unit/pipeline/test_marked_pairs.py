"""Pairs that the user marked as wrong: stages leave them out, and new marks make these stages stale."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepladder import Pair
from stepladder.core.errors import StepladderError
from stepladder.core.io.records import read_records, write_records
from stepladder.core.trace import Action, ActionKind, Author, Segment, Side
from stepladder.pipeline import RunReport, run_recipe
from stepladder.pipeline.pair_folder import PairInputConfig, input_pairs
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.runner import stale_stages
from stepladder.pipeline.stages import STAGES, StageResult, StageSpec, Task
from stepladder.preferences.marks import mark, marks_file, pair_id, read_marks, unmark


def step(text: str) -> Side:
    return Side(Segment(Author.POLICY, text), Action(ActionKind.QUERY, text))


def pair(number: int) -> Pair:
    prompt = (Segment(Author.PROMPT, f"Question {number}?"),)
    return Pair(f"q{number}", "prorag-brief", prompt, step("good"), step("bad"), 0, "me")


PAIRS = [pair(number) for number in range(10)]
Run = Callable[..., RunReport]


class ReadConfig(PairInputConfig):
    """A stage that trains on pairs, and one that does not know about marks, have the same settings otherwise."""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The questions of the pairs that each stage read."""
    found: dict[str, list[str]] = {}

    def learn(settings: ReadConfig, context: RunContext, task: Task) -> StageResult:
        train, held_out, unmarked = input_pairs(task)
        found[task.name] = sorted(each.question_id for each in (*train, *held_out))
        (task.folder / "policy").mkdir(exist_ok=True)
        (task.folder / "policy" / "weights").write_text(" ".join(found[task.name]))
        return StageResult({"excluded_marked": unmarked.excluded}, {"policy": task.folder / "policy"})

    def look(settings: Any, context: RunContext, task: Task) -> StageResult:
        found[task.name] = []
        return StageResult({})

    monkeypatch.setitem(STAGES._targets, "learn", StageSpec(ReadConfig, learn, ("pairs",), ("policy",)))
    monkeypatch.setitem(STAGES._targets, "look", StageSpec(ReadConfig, look, ("policy",)))
    return found


def recipe(tmp_path: Path, **learn: object) -> Recipe:
    file = tmp_path / "pairs.jsonl"
    if not file.exists():
        write_records(file, PAIRS)
    stages = {
        "pairs": {"kind": "pairs-file", "path": str(file), "dev_share": 0.2},
        "learn": {"kind": "learn", **learn},
        "look": {"kind": "look"},
    }
    return Recipe.read({"policy": "tiny", "device": "cpu", "stages": stages})


def pairs_of(run: Path) -> Path:
    return run / "pairs" / "pairs"


def test_marked_pairs_are_left_out_of_both_splits(tmp_path: Path, read: dict[str, list[str]]) -> None:
    run, asked = tmp_path / "run", recipe(tmp_path, exclude_marked=True)
    run_recipe(asked, run)
    assert len(read["learn"]) == 10
    held_out = next(read_records(pairs_of(run) / "dev.jsonl", Pair))
    trained_on = next(read_records(pairs_of(run) / "train.jsonl", Pair))
    mark(pairs_of(run), [pair_id(held_out), pair_id(trained_on)])
    read.clear()
    report = run_recipe(asked, run, update=True)
    assert len(read["learn"]) == 8
    assert not {held_out.question_id, trained_on.question_id} & {*read["learn"]}
    assert next(each for each in report.stages if each.name == "learn").summary["excluded_marked"] == 2
    assert "pairs" in report.skipped
    assert "look" in read  # its policy is another


def test_new_marks_make_the_stage_stale_and_removed_ones_fresh_again(
    tmp_path: Path, read: dict[str, list[str]]
) -> None:
    run, asked = tmp_path / "run", recipe(tmp_path, exclude_marked=True)
    run_recipe(asked, run)
    ids = [pair_id(PAIRS[0])]
    mark(pairs_of(run), ids, "a note")
    (learn, look) = stale_stages(asked, run)
    assert learn.reason == f'marked pairs left out: nothing -> ["{ids[0]}"]'
    assert look.name == "look"
    with pytest.raises(StepladderError, match=r"the stage 'learn' in .* is stale: marked pairs left out"):
        run_recipe(asked, run)
    unmark(pairs_of(run), ids)
    assert stale_stages(asked, run) == []


def test_a_new_note_changes_nothing(tmp_path: Path, read: dict[str, list[str]]) -> None:
    run, asked = tmp_path / "run", recipe(tmp_path, exclude_marked=True)
    run_recipe(asked, run)
    mark(pairs_of(run), [pair_id(PAIRS[0])])
    run_recipe(asked, run, update=True)
    mark(pairs_of(run), [pair_id(PAIRS[0])], "another note")
    assert stale_stages(asked, run) == []


def test_many_marks_are_a_short_reason(tmp_path: Path, read: dict[str, list[str]]) -> None:
    run, asked = tmp_path / "run", recipe(tmp_path, exclude_marked=True)
    run_recipe(asked, run)
    mark(pairs_of(run), [f"{number:016x}" for number in range(500)])
    assert stale_stages(asked, run)[0].reason == (
        "marked pairs left out: nothing -> 500 items, from 0000000000000000 to 00000000000001f3"
    )


def test_marks_are_ignored_unless_the_stage_excludes_them(tmp_path: Path, read: dict[str, list[str]]) -> None:
    run, asked = tmp_path / "run", recipe(tmp_path)
    run_recipe(asked, run)
    mark(pairs_of(run), [pair_id(PAIRS[0])])
    assert stale_stages(asked, run) == []
    assert stale_stages(recipe(tmp_path, exclude_marked=True), run)[0].name == "learn"


def test_without_marks_the_setting_changes_nothing(tmp_path: Path, read: dict[str, list[str]]) -> None:
    run_recipe(recipe(tmp_path), tmp_path / "run")
    assert stale_stages(recipe(tmp_path, exclude_marked=True), tmp_path / "run") == []


def test_marks_survive_when_the_pairs_are_made_again(tmp_path: Path, read: dict[str, list[str]]) -> None:
    run, asked = tmp_path / "run", recipe(tmp_path, exclude_marked=True)
    run_recipe(asked, run)
    mark(pairs_of(run), [pair_id(PAIRS[0])], "mine")
    write_records(tmp_path / "pairs.jsonl", PAIRS[:6])
    run_recipe(asked, run, update=True)
    assert [each.note for each in read_marks(pairs_of(run)).values()] == ["mine"]
    assert read["learn"] == ["q1", "q2", "q3", "q4", "q5"]
    assert stale_stages(asked, run) == []


def test_a_stage_that_has_ended_keeps_the_marks_it_was_run_with(
    tmp_path: Path, read: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs are marked while a later stage runs: the ended one is stale, and so is what was made of it."""
    run, asked = tmp_path / "run", recipe(tmp_path, exclude_marked=True)

    def mark_meanwhile(settings: Any, context: RunContext, task: Task) -> StageResult:
        mark(pairs_of(run), [pair_id(PAIRS[0])])
        return StageResult({})

    monkeypatch.setitem(STAGES._targets, "look", StageSpec(ReadConfig, mark_meanwhile, ("policy",)))
    run_recipe(asked, run)
    assert [stage.name for stage in stale_stages(asked, run)] == ["learn", "look"]


def test_pairs_marked_before_the_stage_starts_are_left_out(
    tmp_path: Path, read: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, file = tmp_path / "run", tmp_path / "pairs.jsonl"

    def mark_meanwhile(settings: Any, context: RunContext, task: Task) -> StageResult:
        mark(pairs_of(run), [pair_id(PAIRS[0])])
        return StageResult({})

    monkeypatch.setitem(STAGES._targets, "look", StageSpec(ReadConfig, mark_meanwhile, ("pairs",)))
    write_records(file, PAIRS)
    stages = {
        "pairs": {"kind": "pairs-file", "path": str(file)},
        "look": {"kind": "look"},
        "learn": {"kind": "learn", "exclude_marked": True},
    }
    asked = Recipe.read({"policy": "tiny", "device": "cpu", "stages": stages})
    run_recipe(asked, run)
    assert "q0" not in read["learn"]
    assert stale_stages(asked, run) == []


def test_damaged_marks_stop_the_run_before_it_starts(tmp_path: Path, read: dict[str, list[str]]) -> None:
    run, asked = tmp_path / "run", recipe(tmp_path, exclude_marked=True)
    run_recipe(asked, run)
    marks_file(pairs_of(run)).write_text("{")
    with pytest.raises(StepladderError, match=r"marks\.json is damaged"):
        run_recipe(asked, run)


@pytest.mark.parametrize("objective", ["verdicts", "values", "outcome"])
def test_a_reward_model_that_reads_trees_has_no_marks(objective: str) -> None:
    stages = {"explore": {"kind": "explore"}, "prm": {"kind": "prm", "objective": objective, "exclude_marked": True}}
    with pytest.raises(StepladderError, match=f"exclude_marked has no effect with objective: {objective}"):
        Recipe.read({"policy": "tiny", "stages": stages})


def test_dpo_and_prm_exclude_marked_pairs() -> None:
    stages: dict[str, dict[str, object]] = {
        "pairs": {"kind": "pairs-file", "path": "pairs.jsonl"},
        "prm": {"kind": "prm", "exclude_marked": True},
        "dpo": {"kind": "dpo", "exclude_marked": True},
    }
    recipe = Recipe.read({"policy": "tiny", "stages": stages})
    assert [stage.settings.exclude_marked for stage in recipe.stages[1:]] == [True, True]  # type: ignore[attr-defined]
