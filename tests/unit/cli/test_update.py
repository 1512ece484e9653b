"""--update lists what it deletes and asks; errors propose to keep results under another name first."""

import io
import json
import sys
from pathlib import Path

import pytest

from stepladder.pipeline.run_folder import RunFolder
from stepladder.reporting.studies import find_study
from stepladder.reporting.studies.study_arms import prepare, recipe_of
from stepladder.reporting.studies.study_registration import register
from stepladder.reporting.studies.study_run_result import run_folder
from stepladder.reporting.studies.study_spec import SHARED
from tests.support import pretended, shell as shell_fixture
from tests.support.pretended import Begin
from tests.support.shell import Shell

begin = pretended.begin
shell = shell_fixture.shell


class Terminal(io.StringIO):
    """A standard input that somebody types into."""

    def isatty(self) -> bool:
        return True


def files(run: Path) -> dict[str, bytes]:
    """What the stages of a run have written."""
    return {str(path): path.read_bytes() for path in run.glob("*/*") if path.is_file()}


@pytest.fixture
def trained(begin: Begin) -> Path:
    """A run of all kinds of stages, whose pairs three later ones use."""
    return begin("sft", "explore", "pairs", "prm", "rft", "grpo", "dpo")


def test_the_error_proposes_another_name_first_and_says_what_update_would_delete(shell: Shell, trained: Path) -> None:
    said = shell("pairs", "--run", trained, "--judge", "gold", code=2)
    before, update, after = said.partition("--update deletes")
    assert "the stage 'pairs' in" in before
    assert "stages.pairs.judge: spre -> gold. --name pairs-2 keeps it and puts the new one beside it" in before
    assert update
    assert all(f"{stage} (" in after for stage in ("pairs", "prm", "rft", "grpo", "dpo"))
    assert "sft (" not in after
    shell("pairs", "--run", trained, "--judge", "gold", "--name", "pairs-2")
    assert RunFolder.open(trained).done("pairs") is not None
    assert "--name pairs-3 keeps it" in shell("pairs", "--run", trained, "--judge", "mc", code=2)


def test_a_stage_beside_another_starts_from_the_same_policy(shell: Shell, trained: Path) -> None:
    said = shell("train", "grpo", "--run", trained, "--mode", "outcome", code=2)
    assert "--name grpo-2 --set policy=rft keeps it and puts the new one beside it; --update deletes grpo (" in said
    shell("train", "grpo", "--run", trained, "--mode", "outcome", "--name", "grpo-2", "--set", "policy=rft")
    recipe = RunFolder.open(trained).recipe()
    taken = {stage.name: stage.inputs["policy"] for stage in recipe.stages if stage.kind == "grpo"}
    assert taken == {"grpo": "rft", "grpo-2": "rft"}


def test_without_a_terminal_nothing_is_deleted(shell: Shell, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    before = files(trained)
    said = shell("pairs", "--run", trained, "--judge", "gold", "--update", code=2)
    assert files(trained) == before
    assert "nothing was deleted: --update asks first, and this is not a terminal. --yes confirms" in said
    lines = said.splitlines()
    assert lines[0] == "--update deletes:"
    assert lines[1].startswith("  pairs (")
    assert lines[1].endswith("kB): stages.pairs.judge: spre -> gold")
    assert [line.split()[0] for line in lines[1:6]] == ["pairs", "prm", "rft", "grpo", "dpo"]
    assert "result of stage pairs" in lines[2]


@pytest.mark.parametrize("answer", ["n\n", "\n"])
def test_somebody_who_says_no_keeps_everything(
    answer: str, shell: Shell, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    before = files(trained)
    said = shell("train", "dpo", "--run", trained, "--beta", "0.1", "--update", code=2)
    assert "error: nothing was deleted" in said
    assert files(trained) == before


@pytest.mark.parametrize(("answer", "more"), [("y\n", ()), ("", ("--yes",))])
def test_with_consent_stale_stages_are_recomputed(
    answer: str, more: tuple[str, ...], shell: Shell, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer) if answer else io.StringIO())
    shell("train", "dpo", "--run", trained, "--beta", "0.1", "--update", *more)
    record = RunFolder.open(trained).done("dpo")
    assert record is not None
    assert record.ingredients["stages.dpo.beta"] == 0.1


def test_update_asks_nothing_if_nothing_is_stale(shell: Shell, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    shell("train", "dpo", "--run", trained, "--name", "other", "--beta", "0.1", "--update")


def test_a_recipe_that_changed_is_run_in_another_folder_first(shell: Shell, trained: Path) -> None:
    recipe = trained.parent / "mine.yaml"
    recipe.write_text("{policy: tiny, device: cpu, stages: {sft: {questions: 7}}}")
    trained.with_name("run-2").mkdir()
    said = shell("run", recipe, "--out", trained, code=2)
    assert f"--out {trained.with_name('run-3')} keeps it and starts another run; --update deletes sft (" in said
    assert "dpo (" in said, "stages that the recipe no longer has would be deleted too"
    before = files(trained)
    assert "nothing was deleted" in shell("run", recipe, "--out", trained, "--update", code=2)
    assert files(trained) == before


def test_a_changed_agent_is_undone_or_all_is_recomputed(shell: Shell, trained: Path) -> None:
    plain = (trained / "recipe.yaml").read_text()
    (trained / "recipe.yaml").write_text(plain.replace("agent: prorag\n", "agent: rag\n"))
    said = shell("pairs", "--run", trained, "--name", "new", code=2)
    assert "agent: prorag -> rag. Undo that change to keep it; --update deletes sft (" in said


def test_a_study_asks_before_it_starts_any_run(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    study = prepare(find_study("rl-modes").model_copy(update={"seeds": 1}))
    register(study, tmp_path / study.name)
    run = run_folder(tmp_path / study.name, 0, SHARED)
    (run / "sft").mkdir(parents=True)
    RunFolder(run).add_session({})
    record = {"name": "sft", "kind": "sft", "fingerprint": "old", "ingredients": {"seed": 1}, "inputs": {}}
    (run / "sft" / "stage.json").write_text(json.dumps(record))
    assert recipe_of(study, 0, study.baseline).stages[0].name == "sft"
    said = shell("study", study.name, "--out", tmp_path, "--seeds", "1", "--update", code=2)
    assert "  seed-0 shared sft (" in said
    assert "nothing was deleted" in said
    assert (run / "sft" / "stage.json").is_file()
