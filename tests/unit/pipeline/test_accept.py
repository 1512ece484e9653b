"""The stage `accept` keeps a policy only if the dev questions say that it is better than the one before."""

import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stepladder.core.answer_metrics import QuestionScore
from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.core.trace import Question, StopReason
from stepladder.evaluation.evaluator import Evaluation
from stepladder.pipeline import RunReport, run_recipe
from stepladder.pipeline.plan.gpu_cluster import parse_cluster
from stepladder.pipeline.plan.planner import plan_recipe
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stages import STAGES, StageSpec
from stepladder.pipeline.stages.accept import AcceptConfig, power
from stepladder.reporting.run_tables import print_report
from tests.support.recipes import save_tiny

#: How many of 40 dev questions the policy of each stage answers; it answers those that the other does, and more.
RIGHT = {"sft": 20, "rft": 32, "grpo": 34}
STAGES_OF_RUN: dict[str, Any] = {
    "sft": {"kind": "train"},
    "rft": {"kind": "train"},
    "accept-rft": {"kind": "accept", "policy": "rft", "dev_questions": 40},
    "grpo": {"kind": "train"},
    "accept-grpo": {"kind": "accept", "policy": "grpo", "dev_questions": 40},
    "eval-grpo": {"kind": "eval", "policy": "accept-grpo", "limit": 2},
}


class TrainConfig(Config):
    """A training stage that selects nothing."""


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Training saves the tiny model; dev evaluations have the scores of `RIGHT`. Returns the stages with them."""
    found: list[str] = []

    def evaluate(context: object, policy: str, questions: Sequence[Question], *_: object, **__: object) -> Evaluation:
        stage = Path(policy).parent.name
        found.append(stage)
        rows = [
            QuestionScore(
                each.id, "", 1, em=0.0, f1=float(number < RIGHT[stage]), stop=StopReason.ANSWERED, prediction=""
            )
            for number, each in enumerate(questions)
        ]
        return Evaluation(tuple(rows), (None,) * len(rows))

    monkeypatch.setattr("stepladder.pipeline.policy_choice.evaluate_policy", evaluate)
    monkeypatch.setitem(STAGES._targets, "train", StageSpec(TrainConfig, save_tiny, outputs=("policy",)))
    return found


def run(folder: Path, stages: dict[str, Any] = STAGES_OF_RUN) -> RunReport:
    shared = {"policy": "tiny", "agent": "rag", "device": "cpu", "episode": {"max_tokens": 4}}
    recipe = Recipe.read({"name": "example", **shared, "stages": stages})
    return run_recipe(recipe, folder, console=Console(file=StringIO()))


def test_a_policy_is_kept_if_it_is_better_beyond_chance(scored: list[str], tmp_path: Path) -> None:
    report = run(tmp_path / "run")
    summaries = {stage.name: stage.summary for stage in report.stages}
    first, second = summaries["accept-rft"], summaries["accept-grpo"]
    assert (first["accepted"], first["kept"], first["before"], first["f1"]) == (True, "rft", "sft", 0.8)
    assert first["difference"]["mean"] == pytest.approx(0.3)
    assert (second["accepted"], second["kept"], second["before"]) == (False, "accept-rft", "accept-rft")
    assert second["p"] == 0.25, "two questions more: by chance both signs are so in one of four cases"
    assert report.policy == tmp_path / "run" / "accept-grpo" / "policy"
    assert str(report.choice) == "policy: accept-grpo (kept by the comparison of accept-grpo on dev questions)"
    kept = (tmp_path / "run" / "accept-grpo" / "policy" / "model.safetensors").stat()
    assert kept.st_ino == (tmp_path / "run" / "rft" / "policy" / "model.safetensors").stat().st_ino, "no copy"
    assert scored == ["sft", "rft", "grpo"], "each policy once"


def test_the_decision_is_told_with_what_the_questions_could_find(scored: list[str], tmp_path: Path) -> None:
    told = StringIO()
    print_report(Console(file=told, width=250), run(tmp_path / "run"))
    assert "rft accepted; dev F1 0.500 -> 0.800, +0.300 [+0.175, +0.450], p = 0.0002 (one-sided" in told.getvalue()
    assert "grpo not accepted, accept-rft is kept; dev F1 0.800 -> 0.850" in told.getvalue()
    assert "gain found with a power of 80%: 0.087; 0.05 needs 121 dev questions" in told.getvalue()


def test_the_same_command_skips_it_and_a_changed_rule_decides_again(scored: list[str], tmp_path: Path) -> None:
    run(tmp_path / "run")
    assert "accept-rft" in run(tmp_path / "run").skipped
    strict = {**STAGES_OF_RUN, "accept-rft": {**STAGES_OF_RUN["accept-rft"], "alpha": 1e-6}}
    with pytest.raises(StepladderError, match=r"accept-rft.*stale: stages\.accept-rft\.alpha: 0\.05 -> 1e-06"):
        run(tmp_path / "run", strict)
    assert RunFolder.open(tmp_path / "run").done("accept-grpo") is not None


def test_there_must_be_a_policy_to_compare_with_before_anything_is_trained(scored: list[str], tmp_path: Path) -> None:
    for stages, found in (({"sft": {"kind": "train"}}, "sft"), ({}, "base")):
        with pytest.raises(StepladderError, match=rf"stages\.accept\.policy: expected a stage .* found '{found}'"):
            run(tmp_path / "run", {**stages, "accept": {"dev_questions": 4}})
    assert not (tmp_path / "run").exists()


def test_power_is_that_of_a_one_sided_test_of_a_mean() -> None:
    found = power([1.0] * 2 + [0.0] * 38, AcceptConfig(smallest_effect=0.05))
    spread = (0.05 * 0.95 * 40 / 39) ** 0.5
    assert found["detectable"] == pytest.approx((1.6449 + 0.8416) * spread / 40**0.5, rel=1e-3)
    assert found["questions_needed"] == round(((1.6449 + 0.8416) * spread / 0.05) ** 2 + 0.5)
    assert json.dumps(found)


def test_a_plan_counts_its_evaluations_in_the_stages_that_train() -> None:
    stages = {"sft": {"questions": 8}, "rft": {"threshold": None}, "accept": {}}
    recipe = Recipe.read({"policy": "nano", "data": {"name": "atlas", "holdout": 120}, "stages": stages})
    planned = {stage.name: stage for stage in plan_recipe(recipe, parse_cluster("cpu", 2)).stages}
    assert planned["accept"].work.generations == ()
    (compared,) = (each for each in planned["rft"].work.generations if each.what == "comparison")
    assert compared.at_once == 120, "of the accept stage: as many as there are"
