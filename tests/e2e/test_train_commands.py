"""`train prm`, `train rft`, `train dpo` and `prm`, typed as a user would; and what a report tells of them."""

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trackio.sqlite_storage import SQLiteStorage
from typer.testing import CliRunner

from stepladder.agents import make_agent
from stepladder.cli.recipes import finished_inputs
from stepladder.cli.train import prm_command
from stepladder.core.io.records import write_records
from stepladder.core.trace import Action, ActionKind, Author, Pair, Question, Segment, Side, Trajectory
from stepladder.evaluation.prm.calibration import (
    GradedStep,
    calibration_report,
    chain_metrics,
    gold_agreement,
    pair_accuracy,
)
from stepladder.pipeline import run_recipe
from stepladder.pipeline.recipe import Recipe, Stage
from stepladder.pipeline.run_folder import RunFolder, StageRecord
from stepladder.pipeline.stages.dpo import DPOStageConfig
from stepladder.pipeline.stages.prm import PRMStageConfig
from stepladder.pipeline.stages.prm_eval import PRMEvalConfig
from stepladder.reporting.run_tables import as_json, differences, print_report, stage_summary
from stepladder.train.loop.config import LoraConfig
from stepladder.train.rft.config import RFTConfig
from tests.support import pretended
from tests.support.pretended import SUMMARIES, TRAINED, Begin
from tests.support.shell import Shell

begin = pretended.begin

# --- what is typed becomes a stage --------------------------------------------------------------------------------


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A file of pairs that nobody looks into."""
    path = tmp_path / "theirs.json"
    path.write_text("[]")
    return path


def stage_of(run: Path, name: str) -> Stage:
    return next(stage for stage in RunFolder.open(run).recipe().stages if stage.name == name)


def examine(*arguments: object) -> str:
    """`stepladder prm`, as a command of its own."""
    app = typer.Typer()
    app.command()(prm_command)
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_options_of_a_reward_model(shell: Shell, begin: Begin) -> None:
    run = begin("sft", "explore", "pairs")
    given = (
        "--objective",
        "values",
        "--num-train-epochs",
        2,
        "--learning-rate",
        1e-3,
        "--lora",
        "--set",
        "max_length=99",
    )
    report = shell.json("train", "prm", "--run", run, *given, "--set", "lora.r=2", "--model", "nano")
    settings = PRMStageConfig(
        objective="values", num_train_epochs=2, learning_rate=1e-3, lora=LoraConfig(r=2), max_length=99, model="nano"
    )
    assert stage_of(run, "prm").settings == settings
    assert [(stage["name"], stage["trees"]) for stage in report["stages"]] == [("prm", "explore")]
    shell("train", "prm", "--run", run, "--name", "ranks")
    assert stage_of(run, "ranks").settings == PRMStageConfig()
    assert stage_of(run, "ranks").inputs == {"policy": "sft", "pairs": "pairs"}


def test_a_recipe_runs_to_one_stage_and_later_on(shell: Shell, begin: Begin, tmp_path: Path) -> None:
    recipe = tmp_path / "three.yaml"
    recipe.write_text("policy: tiny\ndevice: cpu\nstages: {sft: {}, explore: {}, pairs: {}}\n")
    run = tmp_path / "three"
    report = shell.json("run", recipe, "--out", run, "--only", "explore")
    assert [stage["name"] for stage in report["stages"]] == ["explore"]
    assert [(run / name / "stage.json").is_file() for name in ("sft", "explore", "pairs")] == [True, True, False]
    report = shell.json("run", recipe, "--out", run)
    assert [stage["name"] for stage in report["stages"]] == ["sft", "explore", "pairs"]
    said = shell("run", recipe, "--out", run, "--only", "explor", code=2)
    assert "unknown stage 'explor'. Did you mean 'explore'?" in said


def test_options_of_a_refinement(shell: Shell, begin: Begin) -> None:
    run = begin("sft", "explore", "pairs", "prm")
    given = (
        "--questions",
        20,
        "--num-generations",
        4,
        "--threshold",
        "-0.5",
        "--keep",
        3,
        "--num-train-epochs",
        2,
        "--learning-rate",
        1e-4,
    )
    report = shell.json("train", "rft", "--run", run, *given)
    settings = RFTConfig(
        questions=20, num_generations=4, threshold=-0.5, keep=3, num_train_epochs=2, learning_rate=1e-4
    )
    assert stage_of(run, "rft").settings == settings
    assert report["stages"][0]["reward"] == "prm"
    assert report["policy"] == str(run / "rft" / "policy")
    shell("train", "rft", "--run", run, "--threshold", "none", "--lora", "--name", "freely")
    assert stage_of(run, "freely").settings == RFTConfig(threshold=None, lora=LoraConfig())
    assert stage_of(run, "freely").inputs == {"policy": "rft"}


def test_options_of_dpo(shell: Shell, begin: Begin) -> None:
    run = begin("sft", "explore", "pairs")
    given = (
        "--beta",
        0.1,
        "--loss-type",
        "ipo",
        "--num-train-epochs",
        2,
        "--learning-rate",
        1e-6,
        "--lora",
        "--set",
        "dev_questions=0",
    )
    shell.json("train", "dpo", "--run", run, *given)
    settings = DPOStageConfig(
        beta=0.1, loss_type="ipo", num_train_epochs=2, learning_rate=1e-6, lora=LoraConfig(), dev_questions=0
    )
    assert stage_of(run, "dpo").settings == settings
    assert stage_of(run, "dpo").inputs == {"policy": "sft", "pairs": "pairs"}


def test_options_of_an_examination(begin: Begin) -> None:
    run = begin("sft", "explore", "pairs", "prm")
    report = json.loads(examine("--run", run, "--split", "dev", "--questions", 7, "--num-generations", 1, "--json"))
    assert report["stages"][0]["kind"] == "prm-eval"
    settings = PRMEvalConfig(split="dev", questions=7, num_generations=1, score_trees=True)
    assert stage_of(run, "prm-eval").settings == settings
    taken = {"policy": "sft", "reward": "prm", "pairs": "pairs", "trees": "explore"}
    assert stage_of(run, "prm-eval").inputs == taken


def test_options_of_an_examination_without_pairs(shell: Shell, begin: Begin) -> None:
    run = begin("sft", "explore")
    shell("train", "prm", "--run", run, "--objective", "values")
    examine("--run", run)
    assert stage_of(run, "prm-eval").settings == PRMEvalConfig(held_out_pairs=False, score_trees=True)


def test_pairs_of_a_file_are_a_stage_before_the_training(shell: Shell, begin: Begin, theirs: Path) -> None:
    run = begin("sft", "explore", "pairs")
    shell("train", "dpo", "--run", run, "--pairs", theirs)
    stages = RunFolder.open(run).recipe().stages
    assert [stage.name for stage in stages] == ["sft", "explore", "pairs", "pairs-file", "dpo"]
    assert stage_of(run, "pairs-file").settings.model_dump()["path"] == theirs
    assert stage_of(run, "dpo").inputs["pairs"] == "pairs-file"
    assert "dpo: done" in shell("train", "dpo", "--run", run, "--pairs", theirs)
    assert len(RunFolder.open(run).recipe().stages) == 5, "the same file is the same stage"


def test_the_place_of_a_file_may_be_relative(
    shell: Shell, begin: Begin, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin("sft")
    monkeypatch.chdir(theirs.parent)
    for place in (theirs, "theirs.json"):
        shell("train", "dpo", "--run", run, "--pairs", place)
    assert [stage.name for stage in RunFolder.open(run).recipe().stages] == ["sft", "pairs-file", "dpo"]


def test_another_file_of_pairs_is_another_stage(shell: Shell, begin: Begin, theirs: Path) -> None:
    run = begin("sft")
    others = theirs.rename(theirs.with_name("others.json"))
    theirs.write_text("[]")
    shell("train", "dpo", "--run", run, "--pairs", theirs)
    shell("train", "dpo", "--run", run, "--pairs", others, "--name", "again")
    assert stage_of(run, "again").inputs == {"policy": "dpo", "pairs": "pairs-file-2"}
    assert stage_of(run, "dpo").inputs["pairs"] == "pairs-file", "what is there stays"


def test_a_stage_that_is_there_may_learn_from_a_file_from_now_on(shell: Shell, begin: Begin, theirs: Path) -> None:
    run = begin("sft", "explore", "pairs", "dpo", "prm")
    more = ("--pairs", theirs)
    assert "stages.dpo.pairs: pairs -> pairs-file" in shell("train", "dpo", "--run", run, *more, code=2)
    shell("train", "dpo", "--run", run, *more, "--update", "--yes")
    names = [stage.name for stage in RunFolder.open(run).recipe().stages]
    assert names == ["sft", "explore", "pairs", "pairs-file", "dpo", "prm"]


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["prm"], "has no pairs yet: `stepladder pairs --run RUN` makes them"),
        (["prm", "--objective", "values"], "has no trees yet: `stepladder explore --run RUN` makes them"),
        (["prm", "--set", "objective=outcome"], "has no trees yet: `stepladder explore --run RUN` makes them"),
        (["prm", "--objective", "value"], "found 'value'"),
        (["prm", "--name", "sft"], "choose another --name"),
        (["prm", "--set", "epoch=2"], "stages.prm.epoch: unknown key"),
        (["prm", "--set", "pairs=mine"], "stages.prm.pairs: expected"),
        (["rft"], "`stepladder train prm --run RUN` makes one, and --threshold none does without"),
        (["rft", "--threshold", "high"], "stages.rft.threshold: expected a number, found 'high'"),
        (["rft", "--threshold", "nan"], "stages.rft.threshold: expected a finite number"),
        (["rft", "--threshold", "none", "--set", "samples=2"], "stages.rft.samples: renamed to 'num_generations'"),
        (["dpo"], "`stepladder pairs --run RUN` makes them, and --pairs FILE reads others"),
        (["dpo", "--beta", "0"], "stages.dpo.beta: expected greater than 0"),
        (["dpo", "--pairs", "none.json"], "none.json does not exist"),
        (["dpo", "--pairs", "x", "--loss-type", "hinge"], "found 'hinge'"),
    ],
)
def test_mistakes_are_explained(shell: Shell, begin: Begin, arguments: list[str], advice: str) -> None:
    run = begin("sft")
    before = (run / "recipe.yaml").read_text()
    said = " ".join(shell("train", arguments[0], "--run", run, *arguments[1:], code=2).split())
    assert advice.replace("RUN", str(run)) in said
    assert (run / "recipe.yaml").read_text() == before, "nothing was begun"


def test_an_examination_wants_a_reward_model(begin: Begin) -> None:
    run = begin("sft", "explore", "pairs")
    with pytest.raises(Exception, match=r"has no reward model yet: `stepladder train prm --run .*` makes one$"):
        examine("--run", run)


# --- the whole of it, with a model that learns by heart -----------------------------------------------------------


def test_a_policy_is_warmed_up_refined_and_taught_by_pairs_and_so_is_a_reward_model(
    shell: Shell, tmp_path: Path
) -> None:
    run, file = tmp_path / "run", tmp_path / "questions.jsonl"
    questions = [Question(name, name, (name * 3,)) for name in ("Orm", "Tarn")]
    rows = ({"id": each.id, "question": each.text, "golden_answers": list(each.answers)} for each in questions)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    begun = (
        "--model",
        "tiny",
        "--agent",
        "direct",
        "--data",
        file,
        "--dev",
        file,
        "--num-train-epochs",
        60,
        "--learning-rate",
        1e-2,
    )
    assert "policy: sft (the only one): " in shell("train", "sft", "--out", run, *begun, "--set", "dev_questions=0")
    agent = make_agent("direct")

    def pair(question: Question) -> Pair:
        start = Trajectory(question, agent.name)
        answers = [Action(ActionKind.ANSWER, words) for words in (question.answers[0], "Oss")]
        better, worse = (Side(Segment(Author.POLICY, agent.write(each, start)), each, None) for each in answers)
        return Pair(question.id, agent.name, tuple(agent.render(start)), better, worse, 0, "me")

    pairs = tmp_path / "pairs"
    pairs.mkdir()
    for split in ("train.jsonl", "dev.jsonl"):
        write_records(pairs / split, map(pair, questions))

    quick = ("--num-train-epochs", 1, "--learning-rate", 1e-4)
    printed = shell("train", "rft", "--run", run, "--threshold", "none", "--num-generations", 2, *quick)
    assert re.search(
        r"rft: 4 episodes of 2 questions sampled, \d+ tokens -> 4 answered -> \d with a right answer -> ", printed
    )
    assert re.search(r"  updates: \d, loss \d\.\d{3} -> \d\.\d{3}\n", printed)
    printed = shell("train", "dpo", "--run", run, "--pairs", pairs, "--num-train-epochs", 3, "--learning-rate", 1e-3)
    assert re.search(r"dpo: trained on 2 pairs of 2 questions; held out 2: accuracy 1\.000, reward gap \d", printed)
    assert re.search(r"  dev: F1 1\.000, KL per token to the initial policy \d\.\d{3}\n", printed)
    assert re.search(r"policy: dpo \(dev F1 1\.000, best of 3; sft \d.*, rft \d.*\): .*/dpo/policy", printed)
    printed = shell("train", "prm", "--run", run, *quick)
    assert re.search(r"prm: trained on 2 pairs; held out 2: accuracy [01]\.\d{3}, margin .*, loss \d", printed)
    assert "policy: " not in printed
    inputs = {stage.name: dict(stage.inputs) for stage in RunFolder.open(run).recipe().stages}
    assert inputs["dpo"] == {"policy": "rft", "pairs": "pairs-file"}
    assert inputs["prm"] == {"policy": "dpo", "pairs": "pairs-file"}


# --- what a report tells ------------------------------------------------------------------------------------------


def lines_of(kind: str, summary: dict[str, Any]) -> str:
    told = stage_summary(StageRecord(kind, kind, "", {}, {}, summary=summary))
    assert told is not None
    headline, lines = told
    return "\n".join([headline, *(f"{name}: {line}" for name, line in lines.items() if line)])


def test_a_refinement_tells_what_was_left_and_where_the_others_failed() -> None:
    bad = {"first_bad_step": {"1": 12, "3": 8}, "first_bad_kind": {"query": 15, "answer": 5}, "best_dev_f1": 0.625}
    assert lines_of("rft", {**SUMMARIES["rft"], **bad, "skipped_too_long": 2}).splitlines() == [
        "80 episodes of 10 questions sampled, 5,000 tokens -> 70 answered -> 40 with a right answer -> "
        "30 with good steps only -> 20 distinct -> 9 kept",
        "first bad step: step 1 12, step 3 8",
        "its kind: query 15, answer 5",
        "too long to train on: 2",
        "updates: 3, loss 0.700 -> 0.100",
        "dev: F1 0.625",
    ]


def test_a_reward_model_tells_what_it_learnt_from_and_what_it_refused() -> None:
    values = {"scored_steps": 1200, "held_out_steps": 130, "held_out_error": 0.21, "held_out_loss": 0.5, **TRAINED}
    assert lines_of("prm", values).startswith("trained on 1,200 steps; held out 130: error 0.210, loss 0.500\n")
    told = lines_of("prm", {**SUMMARIES["prm"], "refused": {"other prompt": 4}, "histories_cut": 7})
    assert told.startswith("trained on 9 pairs; held out 0\n")
    assert "refused: other prompt 4\ntruncated histories: 7" in told


def examination() -> dict[str, Any]:
    steps = [
        GradedStep(f"q{number % 5}", kind, score, good, "" if good else "wrong answer")
        for number in range(10)
        for kind, score, good in (("answer", 2.0, True), ("answer", -1.0, False), ("query", 0.5, True))
    ]
    return {
        **gold_agreement(steps),
        "pair_accuracy": pair_accuracy([("a", True), ("a", True), ("b", False), ("b", True)]),
        "calibration": calibration_report(steps)[0],
        "chains": chain_metrics({"gold": [2.0, 1.0], "shuffled": [], "answer_first": [-1.0, 1.5]}),
    }


def test_an_examination_tells_how_good_a_reward_model_is() -> None:
    told = lines_of("prm-eval", examination())
    assert told.startswith("AUC 1.00 [1.00, 1.00] against the gold judge, 30 steps of 5 questions\n")
    for line in (
        "by kind: answer 1.00 [1.00, 1.00] (faulty 10 of 20), query - (faulty 0 of 10)",
        "faults detected at 0: wrong answer 100% of 10",
        "held-out pairs: accuracy 0.75 [0.50, 1.00] of 4",
        "AUC of gold against corrupted chains: answer first 0.75 of 2",
    ):
        assert line in told.splitlines()
    assert re.search(r"^calibration error: raw 0\.\d{3}, rescaled 0\.\d{3}$", told, re.MULTILINE)


def test_an_examination_tells_what_there_is() -> None:
    bare = {"auc": {"mean": 0.5, "low": 0.4, "high": 0.6}, "steps": 3, "questions": 2, "pair_accuracy": None}
    assert lines_of("prm-eval", bare) == "AUC 0.50 [0.40, 0.60] against the gold judge, 3 steps of 2 questions"


def test_evaluations_are_compared_with_the_first_and_with_the_one_before(tmp_path: Path) -> None:
    heats = {"before": 0.0, "after": 0.5, "refined": 1.0}
    stages: dict[str, Any] = {name: {"kind": "eval", "limit": 3, "temperature": heat} for name, heat in heats.items()}
    aside = {"oracle": {"kind": "eval", "policy": "oracle", "limit": 3}, "quick": {"kind": "eval", "limit": 2}}
    stages = {"before": stages["before"], "after": stages["after"], **aside, "refined": stages["refined"]}
    shared = {"policy": "tiny", "agent": "direct", "device": "cpu", "episode": {"max_tokens": 4}}
    recipe = Recipe.read({**shared, "stages": {**stages, "quick-again": {"kind": "eval", "limit": 2}}})
    report = run_recipe(recipe, tmp_path / "run", console=Console(file=StringIO()))
    wanted = [("after", "before"), ("refined", "before"), ("refined", "after"), ("quick-again", "quick")]
    assert [(each.stage, each.against) for each in differences(report) if each.metric == "f1"] == wanted
    console = Console(width=80, file=StringIO())
    print_report(console, report)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.findall(r"^(\S+) vs\. (\S+): f1", printed, re.MULTILINE) == wanted, "in reading order, none twice"
    plain = json.loads(json.dumps(as_json(report)))["differences"]
    assert [(each["stage"], each["against"]) for each in plain if each["metric"] == "em"] == wanted


class Done:
    """A run in which some stages are done."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def done(self, name: str) -> str | None:
        return name if name in self.names else None


def test_a_stage_that_failed_is_not_in_the_way_of_those_behind_it() -> None:
    before = {"sft": {}, "explore": {}, "pairs": {}, "prm": {}, "broken": {"kind": "grpo"}, "typo": {"kind": "prm"}}

    def inputs(stages: dict[str, Any], *done: str, **settings: Any) -> dict[str, str]:
        run: Any = Done(*done)
        return finished_inputs(run, Recipe.read({"stages": {**stages, "rft": settings}}), "rft")

    done = ("sft", "explore", "pairs", "prm")
    assert inputs(before, *done) == {"policy": "sft", "reward": "prm"}
    assert inputs(before, *done, threshold=None) == {"policy": "sft"}, "asks no reward model"
    assert inputs({"sft": {}}, *done, threshold=None) == {}, "the newest is done anyway"
    assert inputs({"new": {"kind": "sft"}}, *done, threshold=None) == {}, "nothing is done: it is made first"


# --- trackers -----------------------------------------------------------------------------------------------------

SHORT = """
policy: tiny
agent: direct
device: cpu
data: {train: QUESTIONS, dev: QUESTIONS}
episode: {max_tokens: 6}
stages:
  sft: {questions: 2, num_train_epochs: 2, batch_size: 1, dev_questions: 1}
  grpo: {mode: outcome, questions: 2, num_generations: 2, batch_size: 4, num_train_epochs: 2, dev_questions: 1}
"""


def test_trackers_of_a_whole_run(shell: Shell, tmp_path: Path) -> None:
    questions, recipe, run = tmp_path / "questions.jsonl", tmp_path / "short.yaml", tmp_path / "short-run"
    lines = [{"id": f"q{number}", "question": "Which?", "golden_answers": ["Velm"]} for number in range(2)]
    questions.write_text("".join(json.dumps(line) + "\n" for line in lines))
    recipe.write_text(SHORT.replace("QUESTIONS", str(questions)))
    begin = ("run", recipe, "--out", run)
    report = shell.json(*begin, "--report-to", "tensorboard", "--report-to", "trackio")  # stdout is JSON alone
    assert [stage["name"] for stage in report["stages"]] == ["sft", "grpo"]
    for stage, expected in {"sft": {"eval/f1"}, "grpo": {"train/reward", "train/f1", "train/kl"}}.items():
        events = EventAccumulator(str(run / stage / "tensorboard"))
        events.Reload()
        assert set(events.Tags()["scalars"]) >= {"train/loss", *expected}
        logs = SQLiteStorage.get_logs("short-run", f"short-run/{stage}")
        assert {name for each in logs for name in each} >= {"train/loss", *expected}
    assert RunFolder.open(run).recipe().shared.report_to == ("tensorboard", "trackio")
    again = shell.json(*begin, "--set", "report_to=[trackio]", "--set", "stages.sft.report_to=none")
    assert [stage["skipped"] for stage in again["stages"]] == [True, True], "trackers make nothing stale"


def test_trackers_of_one_stage(shell: Shell, begin: Begin) -> None:
    run = begin("sft", "explore", "pairs")
    shell("train", "dpo", "--run", run, "--report-to", "tensorboard,trackio")
    assert stage_of(run, "dpo").settings == DPOStageConfig(report_to=("tensorboard", "trackio"))


def test_a_missing_tracker_ends_a_run_before_its_first_stage(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.integrations.integration_utils.is_wandb_available", lambda: False)
    said = shell("run", "prorag-nano", "--out", tmp_path / "run", "--report-to", "wandb", code=2).strip()
    assert said == "error: report_to: wandb needs its package: pip install wandb"
    assert not (tmp_path / "run" / "sft").exists()
