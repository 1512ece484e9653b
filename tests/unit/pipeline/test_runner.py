"""Runs: finished stages are kept, interrupted ones resume, stale ones are refused, foreign files are not touched."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.pipeline import RunReport, run_recipe
from stepladder.pipeline.fingerprint import all_ingredients, fingerprint
from stepladder.pipeline.policy_choice import PolicyChoice
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.run_folder import RunFolder, claim
from stepladder.pipeline.runner import _brief
from stepladder.pipeline.stages import STAGES, StageResult, StageSpec, Task
from stepladder.reporting.run_tables import as_json, differences, print_report


class LearnConfig(Config):
    epochs: int = 3


class LookConfig(Config):
    limit: int = 5


class Stages:
    """Two kinds of stage that write down what they were asked to do; `learn` can be made to stop in the middle."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.tasks: dict[str, Task] = {}
        self.stop_after: int | None = None
        self.stop_with: BaseException = KeyboardInterrupt()

    def learn(self, settings: LearnConfig, context: RunContext, task: Task) -> StageResult:
        self._note(task)
        checkpoint = task.folder / "checkpoint"
        first = int(checkpoint.read_text()) if checkpoint.exists() else 0
        for epoch in range(first, settings.epochs):
            if epoch == self.stop_after:
                raise self.stop_with
            self.ran.append(f"epoch {epoch}")
            checkpoint.write_text(str(epoch + 1))
        (task.folder / "policy").mkdir(exist_ok=True)
        return StageResult({"epochs": settings.epochs}, {"policy": task.folder / "policy"})

    def look(self, settings: LookConfig, context: RunContext, task: Task) -> StageResult:
        self._note(task)
        return StageResult({"score": 0.5})

    def _note(self, task: Task) -> None:
        self.ran.append(task.name)
        self.tasks[task.name] = task


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Stages:
    stages = Stages()
    monkeypatch.setitem(STAGES._targets, "learn", StageSpec(LearnConfig, stages.learn, outputs=("policy",)))
    monkeypatch.setitem(STAGES._targets, "look", StageSpec(LookConfig, stages.look))
    return stages


RECIPE = {
    "name": "example",
    "policy": "tiny",
    "device": "cpu",
    "stages": {
        "before": {"kind": "look"},
        "learn": {"epochs": 3},
        "after": {"kind": "look"},
        "first": {"kind": "look", "policy": "base"},
    },
}


def recipe(**changes: object) -> Recipe:
    return Recipe.read({**RECIPE, **changes})


def learn_for(epochs: int) -> Recipe:
    return recipe(stages={**RECIPE["stages"], "learn": {"epochs": epochs}})  # type: ignore[dict-item]


def run(what: Recipe, folder: Path, *, update: bool = False) -> tuple[RunReport, str]:
    told = StringIO()
    return run_recipe(what, folder, update=update, console=Console(file=told, width=200)), told.getvalue()


def test_stages_run_in_order_and_the_folder_says_what_was_done(stages: Stages, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    report, _ = run(recipe(), folder)
    assert stages.ran == ["before", "learn", "epoch 0", "epoch 1", "epoch 2", "after", "first"]
    assert stages.tasks["before"].inputs == {"policy": "tiny"}
    assert stages.tasks["after"].inputs == {"policy": str(folder / "learn" / "policy")}
    assert stages.tasks["first"].inputs == {"policy": "tiny"}
    assert len({task.seed for task in stages.tasks.values()}) == 4
    assert report.policy == folder / "learn" / "policy"

    assert RunFolder.open(folder).recipe() == recipe()
    (session,) = json.loads((folder / "run.json").read_text())["sessions"]
    assert {"stepladder", "python", "torch", "transformers"} <= set(session["versions"])
    assert {"started", "command", "git", "platform", "cores", "device", "seed"} <= set(session)
    learnt = json.loads((folder / "learn" / "stage.json").read_text())
    assert (learnt["summary"], learnt["outputs"]) == ({"epochs": 3}, {"policy": "policy"})
    assert not list(folder.glob("*/started.json"))


def test_the_line_of_a_stage_has_its_dev_score() -> None:
    summary = {"a": 1, "b": {"mean": 0.25}, "words": "no number", "c": 3, "d": 4, "e": 5, "best_dev_f1": 0.0}
    assert _brief(summary) == ", a 1, b 0.25, c 3, d 4, best_dev_f1 0"


def test_the_same_run_again_computes_nothing(stages: Stages, tmp_path: Path) -> None:
    run(recipe(), tmp_path / "run")
    stages.ran.clear()
    report, told = run(recipe(), tmp_path / "run")
    assert stages.ran == []
    assert report.skipped == ("before", "learn", "after", "first")
    assert re.search(r"learn: done, \d+ s, skipped", told)
    assert len(json.loads((tmp_path / "run" / "run.json").read_text())["sessions"]) == 1


@pytest.mark.parametrize("stopped_by", [KeyboardInterrupt(), StepladderError("the disk is full")])
def test_an_interrupted_stage_resumes_from_its_partial_results(
    stages: Stages, tmp_path: Path, stopped_by: BaseException
) -> None:
    stages.stop_after, stages.stop_with = 2, stopped_by
    with pytest.raises(type(stopped_by)):
        run(recipe(), tmp_path / "run")
    stages.stop_after = None
    stages.ran.clear()
    report, told = run(recipe(), tmp_path / "run")
    assert stages.ran == ["learn", "epoch 2", "after", "first"]
    assert "learn: resumes" in told
    assert report.stages[1].attempts == 2


def test_a_changed_recipe_is_refused_with_what_changed(stages: Stages, tmp_path: Path) -> None:
    run(recipe(), tmp_path / "run")
    with pytest.raises(
        StepladderError, match=r"'learn' in .* stages\.learn\.epochs: 3 -> 5\. .* --update deletes learn \("
    ):
        run(learn_for(5), tmp_path / "run")
    with pytest.raises(StepladderError, match=r"'before' in .* seed: 0 -> 1; search\.k: 3 -> 1\."):
        run(recipe(seed=1, search={"k": 1}), tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").recipe() == recipe(), "a refused recipe leaves no trace"


def test_update_recomputes_stale_stages_and_nothing_else(stages: Stages, tmp_path: Path) -> None:
    run(recipe(), tmp_path / "run")
    stages.ran.clear()
    report, told = run(learn_for(4), tmp_path / "run", update=True)
    assert stages.ran == ["learn", "epoch 0", "epoch 1", "epoch 2", "epoch 3", "after"]
    assert report.skipped == ("before", "first")
    assert "learn: stale (stages.learn.epochs: 3 -> 4), removed" in told
    assert RunFolder.open(tmp_path / "run").recipe() == learn_for(4)


def test_settings_that_change_under_a_cut_stage_are_noticed(stages: Stages, tmp_path: Path) -> None:
    stages.stop_after = 1
    with pytest.raises(KeyboardInterrupt):
        run(recipe(), tmp_path / "run")
    with pytest.raises(StepladderError, match="epochs: 3 -> 5"):
        run(learn_for(5), tmp_path / "run")


def test_stages_can_be_added_but_not_lost_unsaid(stages: Stages, tmp_path: Path) -> None:
    short = recipe(stages={"before": {"kind": "look"}})
    run(short, tmp_path / "run")
    stages.ran.clear()
    run(recipe(), tmp_path / "run")
    assert stages.ran[0] == "learn"
    with pytest.raises(StepladderError, match=r"stages\.after: look -> nothing"):
        run(short, tmp_path / "run")
    run(short, tmp_path / "run", update=True)
    assert not (tmp_path / "run" / "learn").exists()


@pytest.mark.usefixtures("stages")
def test_where_a_run_is_computed_is_no_part_of_its_results() -> None:
    one, other = recipe(), recipe(device="cuda", batch_size=7, name="other")
    assert all_ingredients(one) == all_ingredients(other)


def test_files_and_folders_count_by_content(stages: Stages, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"id": "q", "question": "Who?", "golden_answers": ["x"]}\n')

    def made(name: str = "model") -> Recipe:
        return recipe(policy=str(tmp_path / name), data={"train": str(questions)})

    run(made(), tmp_path / "run")
    (tmp_path / "model").rename(tmp_path / "moved")
    assert len(run(made("moved"), tmp_path / "run")[0].skipped) == 4
    (tmp_path / "moved" / "config.json").write_text('{"layers": 2}')
    with pytest.raises(StepladderError, match=r"'before' in .* policy: content .* -> content "):
        run(made("moved"), tmp_path / "run")
    (tmp_path / "moved" / "config.json").write_text("{}")
    questions.write_text('{"id": "q", "question": "Who else?", "golden_answers": ["x"]}\n')
    with pytest.raises(StepladderError, match=r"data\.train: content "):
        run(made("moved"), tmp_path / "run")


def test_a_new_version_of_a_kind_makes_its_results_old(
    stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(recipe(), tmp_path / "run")
    monkeypatch.setitem(STAGES._targets, "learn", StageSpec(LearnConfig, stages.learn, outputs=("policy",), version=2))
    with pytest.raises(StepladderError, match="version of learn: 1 -> 2"):
        run(recipe(), tmp_path / "run")


def test_fingerprints_do_not_depend_on_the_order_of_ingredients() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1}) != fingerprint({"a": 1, "b": 3})


@pytest.mark.parametrize("damage", [lambda text: text[:40], lambda text: "[]", lambda text: '{"name": 1}'])
def test_a_damaged_record_is_an_error_and_update_recomputes(
    stages: Stages, tmp_path: Path, damage: Callable[[str], str]
) -> None:
    run(recipe(), tmp_path / "run")
    record = tmp_path / "run" / "learn" / "stage.json"
    record.write_text(damage(record.read_text()))
    stages.ran.clear()
    with pytest.raises(
        StepladderError, match=r"learn/stage\.json is not a valid stage record.* --update deletes learn"
    ):
        run(recipe(), tmp_path / "run")
    run(recipe(), tmp_path / "run", update=True)
    assert stages.ran == ["learn", "epoch 0", "epoch 1", "epoch 2"]


def test_a_policy_that_was_deleted_is_made_again(stages: Stages, tmp_path: Path) -> None:
    run(recipe(), tmp_path / "run")
    (tmp_path / "run" / "learn" / "policy").rmdir()
    assert RunFolder.open(tmp_path / "run").newest("policy") is None
    run(recipe(), tmp_path / "run")
    assert (tmp_path / "run" / "learn" / "policy").is_dir()


def test_a_policy_that_was_changed_is_refused_and_update_makes_it_again(stages: Stages, tmp_path: Path) -> None:
    run(recipe(), tmp_path / "run")
    policy = tmp_path / "run" / "learn" / "policy"
    (policy / "weights").write_text("edited")
    stages.ran.clear()
    with pytest.raises(StepladderError, match=r"'learn' in .*learn/policy was modified after the stage ended"):
        run(recipe(), tmp_path / "run")
    report, _ = run(recipe(), tmp_path / "run", update=True)
    assert stages.ran[0] == "learn"
    assert report.skipped == ("before", "after", "first")
    assert not list(policy.iterdir())


def test_a_stage_that_failed_and_left_nothing_is_forgotten(
    stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(settings: LookConfig, context: RunContext, task: Task) -> StageResult:
        raise StepladderError("there is no such model")

    monkeypatch.setitem(STAGES._targets, "look", StageSpec(LookConfig, fail))
    with pytest.raises(StepladderError, match="there is no such model"):
        run(recipe(policy="tinny"), tmp_path / "run")
    monkeypatch.setitem(STAGES._targets, "look", StageSpec(LookConfig, stages.look))
    run(recipe(), tmp_path / "run")  # the name is put right: nothing to refuse, nothing to update


def test_why_a_stage_failed_is_on_record_until_the_next_attempt(stages: Stages, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    stages.stop_after, stages.stop_with = 1, RuntimeError("out of memory")
    with pytest.raises(RuntimeError):
        run(recipe(), tmp_path)
    failure = folder.failure()
    assert failure is not None
    assert (failure.stage, failure.message) == ("learn", "out of memory")
    assert not folder.in_use()

    stages.stop_with = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(recipe(), tmp_path)
    assert folder.failure() is None, "it was interrupted by the user"


def test_looking_whether_a_run_is_in_use_disturbs_nobody(stages: Stages, tmp_path: Path) -> None:
    run(recipe(), tmp_path)
    with claim(tmp_path) as folder:
        assert folder.in_use()
    assert not folder.in_use()


def test_what_holds_under_any_settings_outlives_an_update(
    stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = StageSpec(LearnConfig, stages.learn, outputs=("policy",), persistent_files=("replies",))
    monkeypatch.setitem(STAGES._targets, "learn", kind)
    run(recipe(), tmp_path / "run")
    (tmp_path / "run" / "learn" / "replies").write_text("paid for")
    run(learn_for(4), tmp_path / "run", update=True)
    assert (tmp_path / "run" / "learn" / "replies").read_text() == "paid for"
    assert stages.ran[-5:] == ["epoch 0", "epoch 1", "epoch 2", "epoch 3", "after"]


def test_what_a_kill_left_half_written_is_in_nobody_s_way(stages: Stages, tmp_path: Path) -> None:
    run(recipe(stages={"before": {"kind": "look"}}), tmp_path / "run")
    (tmp_path / "run" / "learn").mkdir()
    (tmp_path / "run" / "learn" / ".started.json.host-1-00000000.partial").write_text("{")
    run(recipe(), tmp_path / "run")
    assert (tmp_path / "run" / "learn" / "stage.json").is_file()


def test_a_recipe_of_the_user_s_own_is_never_written_over(stages: Stages, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("# my notes\n")
    with pytest.raises(StepladderError, match=r"contains other files \(recipe\.yaml\)"):
        run(recipe(), tmp_path)
    assert (tmp_path / "recipe.yaml").read_text() == "# my notes\n"


@pytest.mark.parametrize(
    ("policy", "message"),
    [("./none", "the model ./none does not exist"), (".", "is not a model folder: it has no config.json")],
)
def test_a_policy_that_is_no_model_folder_is_refused_at_once(
    stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StepladderError, match=message):
        run(recipe(policy=policy), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_stage_that_makes_nothing_is_not_done(
    stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STAGES._targets, "learn", StageSpec(LearnConfig, stages.look, outputs=("policy",)))
    with pytest.raises(StepladderError, match="ended without its outputs: policy"):
        run(recipe(), tmp_path / "run")
    assert not (tmp_path / "run" / "learn" / "stage.json").exists()


def test_a_folder_with_other_files_is_refused(stages: Stages, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(StepladderError, match=r"contains other files \(thesis\.tex\) and is not a run"):
        run(recipe(), tmp_path)
    with pytest.raises(StepladderError, match="is a file; a run needs a folder"):
        run(recipe(), tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_stage_never_writes_into_a_folder_that_is_not_its_own(stages: Stages, tmp_path: Path) -> None:
    run(recipe(stages={"before": {"kind": "look"}}), tmp_path / "run")
    (tmp_path / "run" / "learn").mkdir()
    (tmp_path / "run" / "learn" / "notes.txt").write_text("mine")
    with pytest.raises(StepladderError, match="blocks the stage 'learn': it was not created by this run"):
        run(recipe(), tmp_path / "run")


def test_one_process_a_folder(stages: Stages, tmp_path: Path) -> None:
    hold = (
        "import sys, time; from pathlib import Path; from stepladder.pipeline.run_folder import claim\n"
        "with claim(Path(sys.argv[1])): print('mine', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", hold, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "mine\n"
            with pytest.raises(StepladderError, match=f"in use by process {other.pid}: wait until it is done"):
                run(recipe(), tmp_path / "run")
        finally:
            other.kill()
    run(recipe(), tmp_path / "run")


def test_a_run_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"stepladder_run": 99}')
    with pytest.raises(StepladderError, match=r"\(run format 99\); .* reads run format 2\."), claim(tmp_path):
        pass


def test_a_device_that_is_not_there_is_refused_before_anything_is_removed(stages: Stages, tmp_path: Path) -> None:
    run(recipe(), tmp_path / "run")
    with pytest.raises(StepladderError, match="unknown device 'abacus'"):
        run(recipe(seed=1, device="abacus"), tmp_path / "run", update=True)
    assert (tmp_path / "run" / "before" / "stage.json").is_file()


# --- evaluations ------------------------------------------------------------------------------------------------


def evaluations() -> Recipe:
    return Recipe.read(
        {
            "name": "evaluations",
            "policy": "tiny",
            "device": "cpu",
            "episode": {"max_tokens": 4},
            "stages": {
                "floor": {"kind": "eval", "limit": 4},
                "warm": {"kind": "eval", "limit": 4, "temperature": 1.0},
                "other": {"kind": "eval", "limit": 3},
                "oracle": {"kind": "eval", "policy": "oracle", "limit": 4},
            },
        }
    )


def test_evaluations_are_kept_compared_and_shown(tmp_path: Path) -> None:
    report, _ = run(evaluations(), tmp_path / "run")
    assert (tmp_path / "run" / "oracle" / "evaluation" / "scores.jsonl").is_file()
    oracle = report.stages[-1].summary
    assert (oracle["questions"], oracle["em"]["mean"], oracle["validity"]) == (4, 1.0, 1.0)

    found = differences(report)
    assert {(each.stage, each.against) for each in found} == {("warm", "floor")}  # the same questions, no oracle
    told = StringIO()
    print_report(Console(file=told, width=200), report)
    for words in (
        "oracle  oracle",
        "floor   tiny",
        "1.00 [1.00, 1.00]",
        "warm vs. floor: f1 ",
        "F1 by searches needed",
    ):
        assert words in told.getvalue()
    narrow = StringIO()
    print_report(Console(file=narrow, width=80), report)
    assert "1.00 [1.00, 1.00]  1.00 [1.00, 1.00]" in narrow.getvalue()
    plain = as_json(report)
    assert [stage["name"] for stage in plain["stages"]] == ["floor", "warm", "other", "oracle"]
    assert json.loads(json.dumps(plain))["differences"][0]["against"] == "floor"


def test_an_evaluation_that_was_deleted_is_made_again_and_the_next_command_can_be_pasted(tmp_path: Path) -> None:
    folder = tmp_path / "my run"
    run(evaluations(), folder)
    shutil.rmtree(folder / "oracle" / "evaluation")
    report, _ = run(evaluations(), folder)
    assert report.skipped == ("floor", "warm", "other")
    told = StringIO()
    print_report(Console(file=told, width=80), replace(report, choice=PolicyChoice("sft", folder, "the only one")))
    assert f"--run '{folder}'" in told.getvalue()


def test_numbers_stay_whole_where_names_are_long_and_episodes_failed(tmp_path: Path) -> None:
    report, _ = run(evaluations(), tmp_path / "run")
    long = tuple(
        replace(
            stage,
            inputs={"policy": "a-very-long-name-of-a-stage"},
            summary={**stage.summary, "failed": 3, "upper_bound": False},
        )
        for stage in report.stages[-1:]
    )
    told = StringIO()
    print_report(Console(file=told, width=80), replace(report, stages=long))
    assert "a-very-long-name-of-a-stage  4  1.00 [1.00, 1.00]  1.00 [1.00, 1.00]" in told.getvalue()
    assert "columns omitted: valid, searches" in told.getvalue()
    assert "oracle: 3 episodes failed" in told.getvalue()
    assert "…" not in told.getvalue()
    one = replace(long[0], summary={**long[0].summary, "failed": 1})
    print_report(Console(file=told, width=80), replace(report, stages=(one,)))
    assert "oracle: 1 episode failed" in told.getvalue()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": {"look": {}, "eval": {"split": "tset"}}}, r"unknown split of atlas 'tset'\. Did you mean 'test'"),
        ({"stages": {"look": {}, "eval": {}}, "data": {"test": "QUESTIONS"}}, "searches, but there is no index"),
        ({"stages": {"look": {}, "eval": {}}, "data": {"index": "nowhere"}}, "nowhere: no such folder"),
        ({"stages": {"look": {}, "eval": {}}, "data": {"test": "nowhere"}}, "nowhere does not exist"),
        ({"stages": {"look": {}, "eval": {}}, "data": {"name": "atlass"}}, "Did you mean 'atlas'"),
    ],
)
def test_what_the_last_stage_lacks_is_noticed_before_the_first_begins(
    stages: Stages, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"id": "q", "question": "Who?", "golden_answers": ["x"]}\n')
    if "QUESTIONS" in changes.get("data", {}).values():
        changes = {**changes, "data": {"test": str(questions)}}
    with pytest.raises(StepladderError, match=message):
        run(recipe(**changes), tmp_path / "run")
    assert stages.ran == []
