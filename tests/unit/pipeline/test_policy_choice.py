"""`ask --run` takes the policy with the best dev score, and a stage that ended worse than it began is marked."""

import json
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import stepladder as sl
from stepladder.core.answer_metrics import QuestionScore
from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.core.trace import Question, StopReason
from stepladder.evaluation.evaluator import Evaluation
from stepladder.pipeline import RunReport, run_recipe
from stepladder.pipeline.policy_choice import choose_policy, regressions
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stages import STAGES, StageSpec
from stepladder.reporting.compare.compare_table import print_comparison
from stepladder.reporting.report import write_report
from stepladder.reporting.run_tables import as_json, print_report
from tests.support.html_pages import Page
from tests.support.recipes import save_tiny
from tests.support.shell import Shell, shell

__all__ = ["shell"]


class TrainConfig(Config):
    dev_questions: int = 4


#: Mean dev F1 of the policy of each stage.
F1 = {"sft": 0.75, "grpo": 0.5, "dpo": 0.625, "more": 0.5}
STAGES_OF_RUN: dict[str, Any] = {
    "sft": {"kind": "train"},
    "eval-sft": {"kind": "eval", "limit": 2},
    "grpo": {"kind": "train"},
    "eval-grpo": {"kind": "eval", "limit": 2},
    "dpo": {"kind": "train", "policy": "sft"},
    "oracle": {"kind": "eval", "policy": "oracle", "limit": 2},
}


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Training saves the tiny model; dev evaluations have the scores of `F1`. Returns the stages that were scored."""
    found: list[str] = []

    def evaluate(context: object, policy: str, questions: Sequence[Question], *_: object, **__: object) -> Evaluation:
        stage = Path(policy).parent.name
        found.append(stage)
        half = len(questions) // 2
        f1 = [1.0] * half + [2 * F1[stage] - 1] * (len(questions) - half)
        rows = [
            QuestionScore(each.id, "", 1, em=0.0, f1=score, stop=StopReason.ANSWERED, prediction="")
            for each, score in zip(questions, f1, strict=True)
        ]
        return Evaluation(tuple(rows), (None,) * len(rows))

    monkeypatch.setattr("stepladder.pipeline.policy_choice.evaluate_policy", evaluate)
    monkeypatch.setitem(STAGES._targets, "train", StageSpec(TrainConfig, save_tiny, outputs=("policy",)))
    return found


def run(folder: Path, stages: Mapping[str, Any] = STAGES_OF_RUN) -> RunReport:
    shared = {"policy": "tiny", "agent": "rag", "device": "cpu", "episode": {"max_tokens": 4}}
    recipe = Recipe.read({"name": "example", **shared, "stages": dict(stages)})
    return run_recipe(recipe, folder, console=Console(file=StringIO()))


def printed(report: RunReport, width: int = 80) -> str:
    told = StringIO()
    print_report(Console(file=told, width=width), report)
    return told.getvalue()


def test_the_policy_with_the_best_dev_score_is_used_and_the_reason_is_told(
    scored: list[str], tmp_path: Path, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    report = run(tmp_path / "run")
    assert report.policy == tmp_path / "run" / "sft" / "policy"
    capsys.readouterr()
    why = "policy: sft (dev F1 0.750, best of 3; grpo 0.500, dpo 0.625)"
    assert str(report.choice) == why
    for command in (["ask"], ["eval", "--limit", "1", "--json"]):
        assert shell.run(*command, "--run", tmp_path / "run")[1].startswith(f"{why}; --stage NAME uses another")
    assert shell.json("eval", "--run", tmp_path / "run", "--limit", 1)["model"] == str(report.policy)
    told = shell.run("ask", "--run", tmp_path / "run", "--stage", "grpo")[1]
    worse = "worse than sft: dev F1 -0.250 [-0.500, +0.000], paired, 4 questions"
    reason = f"policy: grpo (dev F1 0.500, sft 0.750, dpo 0.625), {worse}"
    assert told.startswith(f"{reason}; --stage NAME uses another")
    saved = ("--limit", 1, "--out", tmp_path / "bad")
    _, told = shell.run("eval", "--run", tmp_path / "run", "--stage", "grpo", *saved)
    assert told.startswith(reason)
    assert json.loads((tmp_path / "bad" / "summary.json").read_text())["policy_reason"] == reason
    assert why in shell("adapter", "--run", tmp_path / "run", "--out", tmp_path / "adapter", code=2), "equal models"
    with sl.load_run(tmp_path / "run").policy as policy:
        assert policy.model == str(report.policy)
    assert sl.load_policy(tmp_path / "run", stage="dpo").model.endswith("dpo/policy")


def test_a_stage_that_ended_worse_is_marked_in_every_table(
    scored: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = run(tmp_path / "run")
    assert set(report.worse) == {"grpo", "dpo"}, "dpo began from sft as well"
    told = " ".join(printed(report, 200).split())
    assert "eval-grpo grpo: worse than sft (-0.250) 2 0.00" in told
    assert "grpo ended worse than sft: dev F1 -0.250 [-0.500, +0.000], paired, 4 questions" in told
    assert f"ask --run {tmp_path / 'run'} # uses sft" in told
    assert as_json(report)["worse"]["grpo"]["against"] == "sft"
    assert "policy: sft" in json.dumps(as_json(report))
    red = StringIO()
    print_report(Console(file=red, width=200, force_terminal=True, color_system="standard"), report)
    assert "\x1b[31meval-grpo" in red.getvalue()
    sl.load_run(tmp_path / "run").show()
    assert "grpo ended worse than sft" in " ".join(capsys.readouterr().out.split())
    page = Page(write_report(tmp_path / "run").read_text())
    assert "grpo: worse than sft (-0.250)" in page.text
    assert "oracle (upper bound)" in page.text


def test_a_comparison_marks_policies_that_ended_worse(scored: list[str], tmp_path: Path, shell: Shell) -> None:
    run(tmp_path / "run")
    shell("eval", "--run", tmp_path / "run", "--stage", "grpo", "--limit", 2, "--out", tmp_path / "saved")
    sources = (f"{tmp_path / 'run'}:*", f"saved={tmp_path / 'saved'}")
    arms = shell.json("compare", *sources, "--html", tmp_path / "page.html")["arms"]
    assert {arm["label"]: arm["worse"] for arm in arms} == {
        "example eval-sft": None,
        "example eval-grpo": "worse than sft on dev",
        "example oracle (upper bound)": None,
        "saved": "worse than sft on dev",
    }
    assert arms[1]["seeds"][0]["worse"]["comparison"]["difference"]["mean"] == -0.25
    page = Page((tmp_path / "page.html").read_text()).text
    assert page.count("worse than sft on dev") == 2
    note = "example eval-grpo: grpo is worse than sft: dev F1 -0.250 [-0.500, +0.000], paired, 4 questions"
    assert note in page
    for width in (60, 80, 200):
        told = StringIO()
        print_comparison(Console(file=told, width=width), sl.compare(*sources))
        assert all(len(line) <= width for line in told.getvalue().splitlines())
        assert note in " ".join(told.getvalue().split())
        assert told.getvalue().split().count("(worse") == 2, "both names in the table"


def test_words_stay_whole_at_80_columns(scored: list[str], tmp_path: Path) -> None:
    lines = printed(run(tmp_path / "run")).splitlines()
    words = {word for line in lines for word in line.split()}
    assert {"eval-sft", "eval-grpo", "grpo:", "(-0.250)", "oracle", "(upper", "bound)"} <= words
    table = lines[2 : next(index for index, line in enumerate(lines) if "vs." in line)]
    assert all(len(line.rstrip()) <= 80 for line in table)
    assert any("searches" in line for line in table)


def test_policies_are_scored_once_and_again_only_on_other_questions(scored: list[str], tmp_path: Path) -> None:
    run(tmp_path / "run", {"sft": {"kind": "train"}})
    assert scored == [], "there is nothing to choose"
    assert str(choose_policy(RunFolder(tmp_path / "run"))) == "policy: sft (the only one)"
    run(tmp_path / "run")
    assert scored == ["sft", "grpo", "dpo"]
    run(tmp_path / "run")
    assert scored == ["sft", "grpo", "dpo"]
    run(tmp_path / "run", {**STAGES_OF_RUN, "more": {"kind": "train", "dev_questions": 0}})
    assert scored == ["sft", "grpo", "dpo", "more"]


def test_without_dev_scores_the_newest_is_used_and_that_is_told(scored: list[str], tmp_path: Path) -> None:
    off = {"kind": "train", "dev_questions": 0}
    report = run(tmp_path / "run", {"sft": off, "grpo": off})
    assert scored == []
    assert report.worse == {}
    assert str(report.choice) == (
        "policy: grpo (the newest of 2: there are no dev scores to compare them, because dev_questions is 0)"
    )


def test_scores_of_other_questions_are_not_compared(scored: list[str], tmp_path: Path) -> None:
    run(tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    scores = folder.path / "grpo" / "dev" / "scores.jsonl"
    scores.write_text(scores.read_text().replace('"question_id": "', '"question_id": "other'))
    choice = choose_policy(folder)
    assert choice.stage == "dpo"
    assert "the newest of 3: not all have a dev score yet" in choice.reason
    assert set(regressions(folder)) == {"dpo"}


def test_a_misspelled_stage_gets_its_name_and_a_stage_needs_a_run(
    scored: list[str], tmp_path: Path, shell: Shell
) -> None:
    run(tmp_path / "run")
    told = shell("ask", "--run", tmp_path / "run", "--stage", "gpro", code=2)
    assert "with a policy: 'gpro'. Did you mean 'grpo'? Known: dpo, grpo, sft" in told
    assert "add --run DIR" in shell("eval", "--stage", "sft", code=2)
    with pytest.raises(StepladderError, match="selects a policy of a run, and tiny is none"):
        sl.load_policy("tiny", stage="sft")


def test_policies_of_a_real_run_are_evaluated_on_the_same_dev_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STAGES._targets, "train", StageSpec(TrainConfig, save_tiny, outputs=("policy",)))
    run(tmp_path / "run", {"sft": {"kind": "train", "dev_questions": 2}, "grpo": {"kind": "train", "dev_questions": 3}})
    ids = [
        [json.loads(line)["question_id"] for line in (tmp_path / "run" / stage / "dev" / "scores.jsonl").open()]
        for stage in ("sft", "grpo")
    ]
    assert ids[0] == ids[1]
    assert len(ids[0]) == 3
    assert regressions(RunFolder(tmp_path / "run")) == {}, "equal is not worse"
    assert choose_policy(RunFolder(tmp_path / "run")).stage == "grpo", "of equals the newest"
