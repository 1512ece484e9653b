"""Trackers: what tensorboard and trackio find of every trainer, how they are named, and what is never affected."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trackio.sqlite_storage import SQLiteStorage

from stepladder.core.errors import StepladderError
from stepladder.driver import Outcome
from stepladder.pipeline.fingerprint import all_ingredients
from stepladder.pipeline.recipe import Recipe, load_recipe
from stepladder.pipeline.resources import RunContext, SharedConfig
from stepladder.pipeline.run_folder import RunFolder, StageRecord
from stepladder.pipeline.stage import Task
from stepladder.train.grpo.trl_trainer import EpisodeTrainer
from stepladder.train.loop import trackers
from stepladder.train.loop.config import TrainingConfig
from stepladder.train.loop.metrics_log import read_metrics
from tests.support import dpo_training, grpo_training, prm_training, sft_training
from tests.support.samples import QUESTION
from tests.support.training_runs import plain_rows

BOTH = ("tensorboard", "trackio")
#: By trainer: how to train, and what it reports beyond the loss of every update.
TRAINERS: dict[str, tuple[Any, set[str]]] = {
    "sft": (sft_training, {"train/epoch", "eval/f1", "eval/em", "eval/runtime"}),
    "prm": (prm_training, {"train/accuracy", "train/margin", "eval/loss", "eval/accuracy"}),
    "dpo": (dpo_training, {"train/rewards/accuracies", "train/rewards/margins", "eval/f1", "eval/kl", "eval/loss"}),
    "grpo": (
        grpo_training,
        {"train/reward", "train/f1", "train/kl", "train/entropy", "train/format_errors", "train/searches", "eval/f1"},
    ),
}
COMMON = {"train/loss", "train/learning_rate", "train/grad_norm", "train/tokens_per_second", "train/seconds"}


def reporting(training: Any, names: tuple[str, ...] = BOTH, **changes: Any) -> Any:
    return training.SETTINGS.model_copy(update={"report_to": names, **changes})


def events(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return found


@pytest.mark.parametrize("kind", TRAINERS)
def test_every_trainer_reports_its_updates_and_evaluations(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training, expected = TRAINERS[kind]
    folder = tmp_path / kind
    training.train(folder, reporting(training))
    assert capsys.readouterr().out == "", "trackio prints"
    found = events(folder)
    assert set(found.Tags()["scalars"]) >= COMMON | expected
    rows = [row for row in read_metrics(folder / "curves.jsonl") if "loss" in row]
    losses = {event.step: event.value for event in found.Scalars("train/loss")}
    assert losses == pytest.approx({row["step"]: row["loss"] for row in rows})
    logs = SQLiteStorage.get_logs("stepladder", f"stepladder/{kind}")
    assert [each["train/loss"] for each in logs if "train/loss" in each] == pytest.approx(list(losses.values()))
    assert {name for each in logs for name in each} >= COMMON | expected


def test_the_rows_of_a_run_are_the_same_with_trackers(tmp_path: Path) -> None:
    grpo_training.train(tmp_path / "with", reporting(grpo_training))
    grpo_training.train(tmp_path / "without")
    assert plain_rows(tmp_path / "with") == plain_rows(tmp_path / "without")
    assert not (tmp_path / "without" / "tensorboard").exists()


def test_a_resumed_run_reports_every_update_once(tmp_path: Path) -> None:
    def stop_at_five(outcome: Outcome[Any]) -> None:
        if outcome.index == 4 and isinstance(outcome.value, float):
            raise KeyboardInterrupt

    settings = reporting(sft_training, eval_steps=3)
    with pytest.raises(KeyboardInterrupt):
        sft_training.train(tmp_path, settings, watch=stop_at_five)
    assert [event.step for event in events(tmp_path).Scalars("train/loss")] == [1, 2, 3, 4, 5]
    sft_training.train(tmp_path, settings)
    assert [event.step for event in events(tmp_path).Scalars("train/loss")] == [1, 2, 3, 4, 5, 6]


def test_without_a_penalty_the_kl_is_estimated_as_trl_computes_it(tmp_path: Path) -> None:
    """A penalty too small to change anything makes trl compute it."""
    found = []
    for beta in (0.0, 1e-12):
        folder = tmp_path / str(beta)
        settings = reporting(grpo_training, ("tensorboard",), beta=beta, drop_zero_std_groups=False, dev_questions=0)
        grpo_training.train(folder, settings)
        found.append([event.value for event in events(folder).Scalars("train/kl")])
        curve = [row["kl"] for row in read_metrics(folder / "curves.jsonl") if "kl" in row]
        assert curve == pytest.approx(found[-1], rel=1e-3, abs=1e-7), "the report draws it"
    assert found[0] == pytest.approx(found[1], rel=1e-3, abs=1e-7)
    assert found[0][0] == pytest.approx(0, abs=1e-6)
    assert found[0][-1] > 1e-6


def test_without_a_penalty_no_kl_is_too_high(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EpisodeTrainer, "_estimate_kl", lambda *_: 99.0)
    settings = reporting(grpo_training, (), beta=0.0, dev_questions=0)
    report = grpo_training.train(tmp_path, settings)
    assert [row["kl"] for row in read_metrics(tmp_path / "curves.jsonl")][:2] == [99.0, 99.0]
    assert "kl_blow_up" not in report.numbers["alarms"]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_told_before_anything_is_loaded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda package: None if package == name else object())
    with pytest.raises(StepladderError, match=f"^report_to: {name} needs its package: pip install {name}$"):
        sft_training.train(tmp_path / "sft", reporting(sft_training, (name,)))
    assert not (tmp_path / "sft").exists()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["tensorboard", "trackio"], BOTH),
        ("tensorboard,trackio", BOTH),
        ("tensorboard", ("tensorboard",)),
        (["tensorboard, trackio"], BOTH),
        ("none", ()),
        ([], ()),
    ],
)
def test_names_are_a_list_or_separated_by_commas(given: object, expected: tuple[str, ...]) -> None:
    assert TrainingConfig.read({"report_to": given}).report_to == expected
    assert SharedConfig.read({"report_to": given}).report_to == expected


def test_an_unknown_tracker_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        StepladderError, match=r"report_to\.0: unknown tracker 'tensorbord'\. Did you mean 'tensorboard'"
    ):
        TrainingConfig.read({"report_to": "tensorbord"})


def test_a_recipe_names_trackers_for_all_stages_and_a_stage_its_own(tmp_path: Path) -> None:
    recipe = load_recipe("prorag-nano", ["report_to=[tensorboard,trackio]", "stages.grpo.report_to=wandb"])
    assert recipe.shared.report_to == BOTH
    trained = {stage.name: stage.settings for stage in recipe.stages if isinstance(stage.settings, TrainingConfig)}
    assert {name: settings.report_to for name, settings in trained.items()} == {
        "sft": None, "prm": None, "rft": None, "grpo": ("wandb",),
    }  # fmt: skip
    context = RunContext(SharedConfig(report_to=BOTH, agent="direct"))
    training = context.training(Task("sft", tmp_path / "nano" / "sft", 0, {}), [QUESTION], dev=False, search=False)
    assert (training.report_to, training.project) == (BOTH, "nano")


def test_trackers_never_make_a_stage_stale() -> None:
    plain = all_ingredients(load_recipe("prorag-nano"))
    assert all_ingredients(load_recipe("prorag-nano", ["report_to=wandb", "stages.sft.report_to=[mlflow]"])) == plain


def test_projects_are_named_after_the_run_unless_the_environment_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str | None, str | None]] = []
    made: Callable[[], object] = lambda: seen.append(  # noqa: E731
        (os.environ.get("WANDB_PROJECT"), os.environ.get("MLFLOW_EXPERIMENT_NAME"))
    )
    ended: list[str] = []
    monkeypatch.setitem(trackers.TRACKERS._targets, "wandb", made)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(finish=lambda: ended.append("run")))
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    with trackers.tracking(("wandb",), tmp_path, "nano"):
        assert not ended
    assert seen == [("nano", "mine")]
    assert ended == ["run"], "the next stage is a run of its own"
    assert "WANDB_PROJECT" not in os.environ


def test_a_killed_stage_that_wrote_events_alone_is_forgotten(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    record = StageRecord("dpo", "dpo", "0", {}, {})
    folder = run.begin(record)
    (folder / "tensorboard").mkdir()
    run.pause(record)
    assert not folder.exists()
    run.begin(record)
    (folder / "curves.jsonl").touch()
    run.pause(replace(record, seconds=1.0))
    assert folder.exists()


def test_the_recipe_of_a_run_keeps_its_trackers() -> None:
    recipe = Recipe.read({"report_to": "trackio", "stages": {"sft": {}}})
    assert Recipe.read(recipe.plain()).shared.report_to == ("trackio",)
