"""The recipes for real models: what they name exists, and what their comments say can be typed."""

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stepladder import cli
from stepladder.data import PUBLISHED
from stepladder.models import NAMED
from stepladder.pipeline.recipe import Recipe, load_recipe, shipped
from stepladder.train.dpo.config import DPOConfig
from stepladder.train.grpo.config import GRPOConfig

REAL = tuple(name for name in shipped() if "smollm2" in name or "qwen" in name)
#: Those on published questions.
PUBLISHED_DATA = tuple(name for name in REAL if not name.startswith("your-data"))
#: A model of the hub: who made it, and what it is called.
HUB_NAME = re.compile(r"[\w-]+/[\w.-]+")


@cache
def as_shipped(name: str) -> Recipe:
    return load_recipe(name)


def settings_of(recipe: Recipe, stage: str) -> Any:
    return next(each.settings for each in recipe.stages if each.name == stage)


def header_of(name: str) -> str:
    """The comment that a recipe begins with, as one line; a command may go on in the next line."""
    lines = shipped()[name].read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    return re.sub(r"\s+", " ", " ".join(line.removeprefix("#").removesuffix("\\") for line in lines))


def overrides_in(text: str) -> list[str]:
    """What a text says behind --set, less what ends its sentence."""
    found = re.findall(r"--set (?:'([^']+)'|(\S+))", text)
    return [(quoted or plain).rstrip(".,;:") for quoted, plain in found]


def changes_in(name: str) -> list[list[str]]:
    """The changes that the comment of a recipe speaks of, those in one sentence or command together."""
    groups = re.split(r"\. |, | stepladder (?:run|plan) | and on ", header_of(name))
    return [overrides_in(group) for group in groups if overrides_in(group)]


def test_there_are_recipes_for_real_models() -> None:
    methods = {"prorag-smollm2", "reasonrag-smollm2", "search-r1-smollm2"}
    larger = {"prorag-qwen1.5b", "prorag-qwen3-8b", "reasonrag-qwen2.5-7b"}
    assert set(REAL) >= methods | larger


@pytest.mark.parametrize("name", PUBLISHED_DATA)
def test_the_model_and_the_questions_have_names_that_exist(name: str) -> None:
    shared = as_shipped(name).shared
    assert shared.policy in NAMED if "smollm2" in name else HUB_NAME.fullmatch(shared.policy)
    assert shared.data.name is not None
    # Sets that are on this machine have become the folders that they lie in.
    assert {Path(part).name for part in shared.data.name.split("+")} <= set(PUBLISHED)
    assert shared.data.holdout > 0


@pytest.mark.parametrize("name", REAL)
def test_no_stage_asks_for_more_dev_questions_than_are_held_out(name: str) -> None:
    recipe = as_shipped(name)
    asked = [getattr(stage.settings, "dev_questions", 0) for stage in recipe.stages]
    assert max(asked) <= recipe.shared.data.holdout


@pytest.mark.parametrize("name", [name for name in REAL if "qwen" in name])
def test_what_nobody_has_run_says_that_its_figures_are_predictions(name: str) -> None:
    assert "Not run yet. Memory and time are predictions of `stepladder plan`" in header_of(name)
    recipe = as_shipped(name)
    if name not in PUBLISHED_DATA:  # which need no further extra
        return
    assert recipe.shared.engine == "vllm"
    players = [stage.settings.engine for stage in recipe.stages if isinstance(stage.settings, GRPOConfig)]
    assert set(players) <= {"vllm"}


@pytest.mark.parametrize("name", REAL)
def test_the_changes_that_a_comment_speaks_of_can_be_made(name: str) -> None:
    assert changes_in(name)
    for overrides in changes_in(name):
        assert load_recipe(name, overrides) != as_shipped(name), overrides


@pytest.mark.parametrize("name", [name for name in REAL if "qwen" in name])
def test_it_fits_the_hardware_that_its_header_names(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEPLADDER_CACHE", str(tmp_path))  # the stored rates, whatever was measured here
    text = shipped()[name].read_text(encoding="utf-8").partition("\n\n")[0]
    commands = re.findall(r"^#     stepladder (plan .*)$", re.sub(r"\\\n# +", "", text), re.MULTILINE)
    assert commands
    for command in commands:
        assert cli.main(shlex.split(command)) == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", ["prorag-qwen3-8b", "reasonrag-qwen2.5-7b"])
def test_recipes_of_the_papers_list_their_differences(name: str) -> None:
    _, _, differences = header_of(name).partition("Differences from the paper, all deliberate:")
    assert differences.count(" - ") >= 5


def test_search_r1_rolls_out_four_times_the_questions_of_prorag_and_scores_no_step() -> None:
    ours, prorag = as_shipped("search-r1-smollm2"), as_shipped("prorag-smollm2")
    assert ours.shared == prorag.shared
    assert settings_of(ours, "sft") == settings_of(prorag, "sft")
    graded, alone = settings_of(prorag, "grpo"), settings_of(ours, "grpo")
    assert alone.questions == 4 * graded.questions
    assert alone.mode == "outcome"
    assert not alone.needs_reward_model
    for name in ("num_generations", "batch_size", "learning_rate", "temperature"):
        assert getattr(alone, name) == getattr(graded, name)


def test_prorag_at_its_papers_size_has_its_papers_constants() -> None:
    recipe = as_shipped("prorag-qwen3-8b")
    explore, grpo = settings_of(recipe, "explore"), settings_of(recipe, "grpo")
    assert (explore.selection, explore.c, explore.gamma, explore.simulations) == ("puct", 2.5, 0.99, 200)
    assert (explore.width, explore.depth, explore.temperature, explore.top_p) == (5, 10, 0.9, 0.95)
    assert explore.questions == 728
    assert (grpo.questions, grpo.num_generations, grpo.learning_rate, grpo.process_weight) == (10_000, 8, 1e-5, 0.3)
    assert (grpo.lora.r, grpo.lora.lora_alpha, grpo.temperature, grpo.normalize) == (16, 32, 1.0, "tokens")
    assert (grpo.rewards.f1_weight, grpo.rewards.min_f1, grpo.rewards.format_bonus) == (2.0, 0.2, 1.0)
    # The reference adds a constant to every step, which has no effect; and fine-tunes on samples without tag weights.
    assert grpo.rewards.step_format_bonus == 0
    assert settings_of(recipe, "rft").tag_weights == {}
    assert {Path(part).name for part in (recipe.shared.data.name or "").split("+")} == {"hotpotqa", "musique"}
    assert (settings_of(recipe, "prm").objective, settings_of(recipe, "prm").num_train_epochs) == ("pairs", 3)
    assert (settings_of(recipe, "rft").temperature, settings_of(recipe, "rft").threshold) == (0.8, 0.0)


def test_reasonrag_at_its_papers_size_has_its_papers_constants() -> None:
    recipe = as_shipped("reasonrag-qwen2.5-7b")
    explore, pairs = settings_of(recipe, "explore"), settings_of(recipe, "pairs")
    assert (explore.selection, explore.c, explore.width) == ("uct", 1.414, 2)
    assert (explore.simulations, explore.depth, explore.decay, explore.questions) == (64, 7, 0.9, 5_000)
    assert (pairs.judge, pairs.margin, pairs.decay, pairs.dev_share) == ("spre", 0.01, 0.9, 0.1)
    dpo = settings_of(recipe, "dpo")
    assert isinstance(dpo, DPOConfig)
    assert (dpo.beta, dpo.loss_type, dpo.num_train_epochs) == (0.3, "sigmoid", 1)
    assert (dpo.warmup_ratio, dpo.lr_scheduler_type) == (0.2, "cosine")
