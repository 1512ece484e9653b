"""The experiment on real questions: what it asks for, and the table that it makes of what is there."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from stepladder.evaluate.metrics import QuestionScore
from stepladder.recipe import Recipe
from stepladder.trace import StopReason

sys.path.append(str(Path(__file__).parents[1] / "experiments"))  # scripts, which find each other beside them
import real_questions as experiment
from commands import Command, carry_out
from real_questions import Run

WARM, REFINED, TRAINED = "warm-up", "+ RFT", "+ RFT + GRPO, answer and steps"
GUIDED = "+ reward model choosing of 8"


def kept(out: Path, run: Run, label: str, f1: dict[str, float]) -> None:
    folder = experiment.evaluation(out, run, "bm25", label, None)
    folder.mkdir(parents=True)
    rows = [QuestionScore(key, "bridge", 2, "?", StopReason.ANSWERED, f1=value) for key, value in f1.items()]
    (folder / "scores.jsonl").write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    (folder / "summary.json").write_text("{}")


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
    assert {name: each["questions"] * each["epochs"] for name, each in settings.items()} == dict.fromkeys(settings, 128)
    assert settings["outcome-4x"]["questions"] == 4 * settings["dual"]["questions"]
    assert not any(each["guards"]["stop"] for each in settings.values()), "none is cut short"


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
    assert "gold" in all_of_them["hybrid-oracle-seed-0"].arguments


def test_commands_run_as_soon_as_what_they_need_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "a" / "DONE", tmp_path / "b" / "DONE"
    first.parent.mkdir()
    second.parent.mkdir()
    work = [
        Command("second", ("--version",), second, (first,)),
        Command("first", ("--version",), first),
        Command("never", ("--version",), tmp_path / "c", (tmp_path / "missing",)),
    ]
    carry_out(work, 2, tmp_path / "logs")
    told = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in told] == ["first", "second", "never"]
    assert "left out, it needs" in told[-1]
    assert second.exists()


def test_a_command_that_cannot_be_started_does_not_stop_the_others_for_ever(tmp_path: Path) -> None:
    (tmp_path / "logs" / "broken.log").mkdir(parents=True)  # in the way of its log
    done = tmp_path / "DONE"
    work = [Command("broken", ("--version",), tmp_path / "x"), Command("other", ("--version",), done)]
    with pytest.raises(IsADirectoryError):
        carry_out(work, 2, tmp_path / "logs")
    assert done.exists()
