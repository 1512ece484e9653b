"""The experiment on real questions: what it asks for, and the table that it makes of what is there."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest

from stepladder.core.answer_metrics import QuestionScore
from stepladder.core.trace import StopReason
from stepladder.pipeline.recipe import Recipe
from stepladder.reporting.studies.jobs.study_job import Job
from tests.support import ROOT

sys.path.append(str(ROOT / "experiments"))
sys.path.append(str(ROOT / "benchmarks"))
import real_questions as experiment
from real_questions import Run

import real_tables

WARM, REFINED, TRAINED = "warm-up", "+ RFT", "+ RFT + GRPO, answer and steps"
GUIDED = "+ reward model choosing of 8"


def kept(out: Path, run: Run, label: str, f1: dict[str, float], temperature: float = 0.8) -> Path:
    folder = experiment.evaluation(out, run, "bm25", label, None)
    folder.mkdir(parents=True)
    rows = [QuestionScore(key, "bridge", 2, "?", StopReason.ANSWERED, f1=value) for key, value in f1.items()]
    (folder / "scores.jsonl").write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    guide = {"by": "prm", "n": 8, "weighted": True, "temperature": temperature}
    summary = {"guide": guide if experiment.ROWS[label].guide is not None else None}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_rows_are_compared_by_the_seeds_and_questions_that_both_have(tmp_path: Path) -> None:
    kept(tmp_path, Run(0), WARM, {"hotpotqa/1": 0.2, "musique/1": 0.0, "musique/2": 1.0})
    kept(tmp_path, Run(1), WARM, {"hotpotqa/1": 0.4, "musique/1": 0.2, "musique/2": 1.0})
    kept(tmp_path, Run(1), REFINED, {"hotpotqa/1": 0.5, "musique/1": 0.5})
    table = experiment.tell(tmp_path, range(2), 2, "bm25", None)
    assert table[WARM]["runs"] == 2
    assert table[WARM]["musique"]["f1_by_run"] == pytest.approx([0.5, 0.6])
    assert table[WARM]["hotpotqa"]["f1"][0] == pytest.approx(0.3)
    assert table[REFINED]["runs"] == 1
    assert table[REFINED]["change"][0] == pytest.approx((0.1 + 0.3) / 2)  # of seed 1, and of two questions
    json.dumps(table)


def test_a_row_says_how_long_its_own_stage_was_trained(tmp_path: Path) -> None:
    for seed, seconds in ((0, 40.5), (1, None)):
        kept(tmp_path, Run(seed), WARM, {"hotpotqa/1": 0.2})
        if seconds is not None:
            stage = tmp_path / f"seed-{seed}" / "shared" / "sft"
            stage.mkdir(parents=True)
            (stage / "stage.json").write_text(json.dumps({"seconds": seconds}))
    kept(tmp_path, Run(0), GUIDED, {"hotpotqa/1": 0.2})
    table = experiment.tell(tmp_path, range(2), 1, "bm25", None)
    assert table[WARM]["training_seconds"] == [40.5, None]  # of the other the folder is gone
    assert "training_seconds" not in table[GUIDED]  # choosing is not training


def test_repeats_of_the_learning_are_compared_with_the_one_policy_they_began_as(tmp_path: Path) -> None:
    kept(tmp_path, Run(0), REFINED, {"hotpotqa/1": 0.5, "musique/1": 0.5})
    kept(tmp_path, Run(0, 0), TRAINED, {"hotpotqa/1": 0.7, "musique/1": 0.5})
    kept(tmp_path, Run(0, 1), TRAINED, {"hotpotqa/1": 0.9, "musique/1": 0.9})
    table = experiment.tell(tmp_path, [0], 2, "bm25", None)
    assert table[TRAINED]["all"]["f1_by_run"] == pytest.approx([0.6, 0.9])
    assert table[TRAINED]["change"][0] == pytest.approx((0.1 + 0.4) / 2)
    assert table[TRAINED]["change_by_run"] == pytest.approx([0.1, 0.4])
    named = {each.name: each for each in experiment.evaluations(tmp_path, [0], 2, "bm25", None, None)}
    again = named["bm25-rft-grpo-answer-and-steps-2-seed-0"]
    assert again.arguments[again.arguments.index("--model") + 1].endswith("seed-0/dual-2/grpo-2/policy")
    assert len(named) == 4 + 2 * 4 + 2  # nothing is repeated of what the arms share


def test_arms_begin_with_what_they_share_and_play_as_many_episodes(tmp_path: Path) -> None:
    jobs = experiment.trainings(tmp_path, [0], 2, ["policy=nano"], 8)
    recipes = {job.folder.name: Recipe.read(job.recipe, job.name) for job in jobs}
    assert list(recipes) == ["shared", "outcome", "outcome-2", "dual", "dual-2", "outcome-4x", "outcome-4x-2", "dpo"]
    shared = recipes.pop("shared").stages
    assert all(recipe.stages[: len(shared)] == shared for recipe in recipes.values())
    assert all(job.origin == tmp_path / "seed-0" / "shared" for job in jobs[1:])
    learning = {name: recipe.stages[-1] for name, recipe in recipes.items() if name != "dpo"}
    assert {name: stage.name for name, stage in learning.items() if name.startswith("dual")} == {
        "dual": "grpo",
        "dual-2": "grpo-2",
    }, "stages are seeded by their names"
    settings = {name: stage.settings.model_dump() for name, stage in learning.items()}
    assert {name: each["questions"] * each["num_train_epochs"] for name, each in settings.items()} == dict.fromkeys(
        settings, 128
    )
    assert settings["outcome-4x"]["questions"] == 4 * settings["dual"]["questions"]
    assert not any(each["monitors"]["stop"] for each in settings.values()), "none is cut short"


def test_a_trial_with_few_questions_is_no_evaluation_of_all(tmp_path: Path) -> None:
    few, all_of_them = (
        {command.name: command for command in experiment.evaluations(tmp_path, [0], 2, "hybrid", Path("i"), limit)}
        for limit in (50, None)
    )
    assert few.keys() == all_of_them.keys()
    assert not {each.done for each in few.values()} & {each.done for each in all_of_them.values()}
    guided = all_of_them["hybrid-reward-model-choosing-of-8-seed-0"]
    assert guided.arguments[guided.arguments.index("--limit") + 1] == "200"
    assert {need.parent.name for need in guided.needs} == {"sft", "prm"}
    judged = all_of_them["hybrid-gold-judge-choosing-of-8-seed-0"]
    assert judged.arguments[judged.arguments.index("--guide") + 1] == "gold"
    assert {need.parent.name for need in judged.needs} == {"sft"}
    assert all("--index" in each.arguments for each in all_of_them.values())
    assert "oracle" in all_of_them["hybrid-oracle-seed-0"].arguments


def test_choices_sampled_otherwise_are_told_as_they_are_and_set_aside_to_be_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = kept(tmp_path, Run(0), GUIDED, {"hotpotqa/1": 0.2}, temperature=0.5)
    new = kept(tmp_path, Run(1), GUIDED, {"hotpotqa/1": 0.4})
    table = experiment.tell(tmp_path, range(2), 1, "bm25", None)
    assert [each["temperature"] for each in table[GUIDED]["guide"]] == [0.5, 0.8]
    assert f"{GUIDED}, seed-0: sampled with n 8, temperature 0.5, weighted True" in capsys.readouterr().out
    for folder in (old, new):
        experiment.set_aside(folder)
    assert not old.exists()
    assert (old.with_name(f"{old.name}-n-8-temperature-0.5-weighted-True") / "scores.jsonl").exists()
    assert experiment.tell(tmp_path, range(2), 1, "bm25", None)[GUIDED]["all"]["f1_by_run"] == [0.4]


def called(monkeypatch: pytest.MonkeyPatch, script: ModuleType, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [script.__name__, *map(str, arguments)])
    script.main()


def test_a_report_of_nothing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="has no evaluations of these seeds"):
        called(monkeypatch, experiment, "--out", tmp_path / "new", "--report")
    assert not (tmp_path / "new").exists()


def test_updates_are_a_multiple_of_four(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        called(monkeypatch, experiment, "--out", tmp_path, "--updates", 58)
    assert "--updates: expected a multiple of 4" in capsys.readouterr().err


def test_nothing_is_begun_where_the_index_cannot_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, check: subprocess.CompletedProcess(command, 1))
    monkeypatch.setattr(experiment, "run_jobs", lambda *_: pytest.fail("a training was begun"))
    with pytest.raises(SystemExit, match=r"stepladder\[dense\]"):
        called(monkeypatch, experiment, "--out", tmp_path)


@pytest.mark.parametrize(
    ("part", "groups"), [("all", {"runs", "evaluations"}), ("evaluate", {"evaluations"}), ("train", {"runs"})]
)
def test_a_part_does_what_it_says_and_the_costly_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, groups: set[str]
) -> None:
    taken: list[tuple[list[Job], Mapping[str, int]]] = []
    monkeypatch.setattr(experiment, "run_jobs", lambda jobs, limits, _: taken.append((jobs, limits)))
    called(monkeypatch, experiment, "--out", tmp_path, "--part", part, "--search", "bm25", "--jobs", 3, "--evals", 2)
    ((jobs, limits),) = taken
    assert limits == {"runs": 3, "evaluations": 2}
    assert {job.group for job in jobs} == groups
    guided = ["--guide" in job.arguments for job in jobs]
    assert guided == sorted(guided)


def test_tables_are_made_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made_by = ("--command", "python ...", "--hardware", "none", "--commit", "1a2b3c4", "--out", tmp_path)
    with pytest.raises(SystemExit):
        called(monkeypatch, real_tables, tmp_path, *made_by)
    assert "table.json is not there" in capsys.readouterr().err
    (tmp_path / "table.json").write_text('{"bm25": {}, "hybrid": {}}')
    with pytest.raises(SystemExit):
        called(monkeypatch, real_tables, tmp_path, *made_by)
    assert "has no rows" in capsys.readouterr().err
    (tmp_path / "table.json").write_text('{"bm25": {"warm-up": {"runs": 1}}}')
    with pytest.raises(SystemExit):
        called(monkeypatch, real_tables, tmp_path, *made_by)
    assert "is of an earlier version" in capsys.readouterr().err


def test_a_line_of_a_table_has_intervals_and_what_each_run_gained(tmp_path: Path) -> None:
    for seed, warm, refined in ((0, 0.2, 0.5), (1, 0.4, 0.3)):
        kept(tmp_path, Run(seed), WARM, {"hotpotqa/1": warm, "musique/1": 0.0})
        kept(tmp_path, Run(seed), REFINED, {"hotpotqa/1": refined, "musique/1": 0.0})
    rows = experiment.tell(tmp_path, range(2), 1, "bm25", None)
    first, second = (row["cells"] for row in real_tables.stages(rows, "bm25", {})["rows"])
    assert first["hotpotqa"] == "0.300 [0.300, 0.300] / 0.000"
    assert first["f1"] == pytest.approx([0.15, 0.0, 0.3])
    assert first["em"] == [0, 0, 0]
    assert first["change_by_run"] is None  # it builds on none
    assert second["change_by_run"] == "+0.150 -0.050"
    way = real_tables.ways(rows, "bm25", {})["rows"][0]["cells"]
    assert (way["policy"], way["questions"], way["answered"]) == (WARM, 2, 1)
    assert way["found_all"] is way["f1_where_found"] is None  # nothing is known of gold passages


def test_what_is_found_is_told_of_the_questions_whose_gold_passages_are_known() -> None:
    def score(gold_recall: float | None, f1: float) -> QuestionScore:
        return QuestionScore("1", "bridge", 2, "?", StopReason.ANSWERED, f1=f1, gold_recall=gold_recall)

    played = [score(1.0, 0.8), score(1.0, 0.4), score(0.5, 1.0), score(0.5, 0.0), score(None, 1.0)]
    assert experiment.what_is_found(played) == pytest.approx(
        {"gold_recall": 0.75, "found_all": 0.5, "f1_where_found": 0.6}
    )
