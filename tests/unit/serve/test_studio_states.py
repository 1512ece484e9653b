"""What the studio says of a run: finished, running, failed, interrupted, damaged, or of another version."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stepladder.core.errors import StepladderError
from stepladder.pipeline.run_folder import claim
from stepladder.serve.http.http_errors import HTTPError
from stepladder.serve.studio.run_library import RunLibrary
from stepladder.serve.studio.watch import run_watch
from stepladder.serve.studio.watch.run_state import RunState, State
from stepladder.serve.studio.watch.run_watch import RunWatch
from tests.support.made_runs import MadeRun, add_trees, grown_trees, made_run, write_curves


def look(run: MadeRun) -> RunState:
    return RunWatch(RunLibrary(run.path), 0).state(run.path.name)[0]


def stages(state: RunState) -> dict[str, str]:
    return {stage.name: stage.state.value for stage in state.stages}


def test_a_finished_run_has_its_last_score_and_its_cost(tmp_path: Path) -> None:
    state = look(made_run(tmp_path / "run"))
    assert (state.state, state.problem, state.done) == (State.FINISHED, "", 3)
    assert state.score is not None
    assert (state.score.stage, state.score.questions, state.score.f1.mean) == ("after", 4, 0.5)
    assert (state.seconds, state.cost.tokens_written) == (183.0, 60)
    assert (state.with_trees, state.with_pairs) == (["explore"], [])


def test_a_run_that_a_process_works_on_is_running_and_says_how_far_it_is(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    with claim(run.path):
        write_curves(run.begin("sft") / "curves.jsonl", 25)
        state = look(run)
        assert state.state is State.RUNNING
        assert stages(state) == {"sft": "running", "explore": "pending", "after": "pending"}
        assert state.running is not None
        assert (state.running.progress, state.running.share) == ("update 25, epoch 1.2 of 2", 0.625)
        run.trained()
        add_trees(run.begin("explore"), grown_trees(3))
        state = look(run)
        assert state.running is not None
        assert (state.running.name, state.running.progress, state.running.share) == ("explore", "3 trees of 6", 0.5)
    assert look(run).state is State.INTERRUPTED, "its process is gone"


def test_why_a_stage_failed_is_told(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    run.trained()
    run.begin("explore")
    run.run.fail("explore", RuntimeError("out of memory"))
    state = look(run)
    assert (state.state, state.failed_stage, state.problem) == (State.FAILED, "explore", "out of memory")
    assert stages(state) == {"sft": "finished", "explore": "failed", "after": "pending"}


def test_a_run_of_another_version_names_it(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", trees=1)
    data = {"stepladder_run": 1, "sessions": [{"versions": {"stepladder": "0.1.0"}}]}
    (run.path / "run.json").write_text(json.dumps(data))
    state = look(run)
    assert state.state is State.OTHER_VERSION
    assert "was written by Stepladder 0.1.0 (run format 1)" in state.problem
    assert "run the recipe again" in state.problem


def cut_in_half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "run.json": lambda run: cut_in_half(run / "run.json"),
    "no recipe": lambda run: (run / "recipe.yaml").unlink(),
    "recipe": lambda run: (run / "recipe.yaml").write_text("stages: ["),
    "other recipe": lambda run: (run / "recipe.yaml").write_text("stages: {sft: {learning_rat: 1}}"),
    "binary recipe": lambda run: (run / "recipe.yaml").write_bytes(b"\xff\xfe\x00"),
    "stage": lambda run: cut_in_half(run / "sft" / "stage.json"),
    "summary": lambda run: (run / "after" / "stage.json").write_text(
        (run / "after" / "stage.json").read_text().replace('"low"', '"lo"')
    ),
    "scores": lambda run: (run / "after" / "evaluation" / "scores.jsonl").write_text("no JSON\n"),
    "alarms": lambda run: (run / "sft" / "alarms.jsonl").write_text('{"step": "first"}\n'),
    "link": lambda run: (run / "sft" / "elsewhere").symlink_to("/etc"),
    "failure": lambda run: (run / "failure.json").write_text("["),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_says_what_is_wrong_and_the_others_are_shown(damage: str, tmp_path: Path) -> None:
    made_run(tmp_path / "whole", trees=1)
    DAMAGES[damage](made_run(tmp_path / "broken", trees=1).path)
    watch = RunWatch(RunLibrary(tmp_path), 0)
    states = {state.name: state for state, _ in watch.states()}
    assert (states["whole"].state, states["broken"].state) == (State.FINISHED, State.DAMAGED)
    assert states["broken"].problem
    with pytest.raises(HTTPError) as error:
        watch.readable("broken")
    assert error.value.status_code == 409


def test_a_file_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    run = made_run(tmp_path / "run", trees=1)
    (run.path / "recipe.yaml").chmod(0)
    assert "cannot be read" in look(run).problem


def test_a_run_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    watch = RunWatch(RunLibrary(tmp_path), 0)
    (first,) = watch.states()
    assert watch.states() == [first]
    run.trained()
    ((state, version),) = watch.states()
    assert version == first[1] + 1
    assert state.done == 1


def test_new_runs_are_found_and_removed_ones_forgotten(tmp_path: Path) -> None:
    MadeRun(tmp_path / "one")
    watch = RunWatch(RunLibrary(tmp_path), 0)
    MadeRun(tmp_path / "study" / "arm" / "seed0")
    assert sorted(state.name for state, _ in watch.states()) == ["one", "study/arm/seed0"]
    (tmp_path / "one" / "run.json").unlink()
    assert [state.name for state, _ in watch.states()] == ["study/arm/seed0"]


def test_of_very_many_runs_the_first_are_shown_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        MadeRun(tmp_path / f"run{number}")
    monkeypatch.setattr(run_watch, "_FIRST_LOOK", -1)
    watch = RunWatch(RunLibrary(tmp_path), 0)
    assert {state.state for state, _ in watch.states()} == {State.UNREAD}
    monkeypatch.setattr(run_watch, "_FIRST_LOOK", 60)
    assert {state.state for state, _ in watch.states()} == {State.INTERRUPTED}


def test_a_library_is_a_folder_of_runs_or_one_run(tmp_path: Path) -> None:
    run = made_run(tmp_path / "runs" / "one", trees=1)
    MadeRun(tmp_path / "runs" / "two")
    assert RunLibrary(tmp_path / "runs").names() == ["one", "two"]
    assert RunLibrary(run.path).names() == ["one"]
    for path, problem in {
        tmp_path / "none": "does not exist: give a folder of runs, or one run. `stepladder run",
        tmp_path / "runs" / "one" / "sft": "is inside of a run: give the run itself",
        run.path / "run.json": "is a file",
    }.items():
        with pytest.raises(StepladderError, match=problem):
            RunLibrary(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StepladderError, match="has no runs: give a folder that holds runs"):
        RunLibrary(tmp_path / "empty")


@pytest.mark.parametrize("name", ["..", ".", "one/..", "one/../one", "/etc", "", "one\0", "one/sft", "two", "a/b/c/d"])
def test_no_name_leads_out_of_the_library(name: str, tmp_path: Path) -> None:
    MadeRun(tmp_path / "runs" / "one")
    MadeRun(tmp_path / "two")
    with pytest.raises(HTTPError):
        RunLibrary(tmp_path / "runs").folder(name)
    assert RunLibrary(tmp_path / "runs").folder("one") == tmp_path / "runs" / "one"
