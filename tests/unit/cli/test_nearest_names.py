"""A misspelled name is an error with the nearest one, wherever names are typed."""

from pathlib import Path

import pytest

from stepladder import cli
from stepladder.pipeline.recipe import load_recipe
from stepladder.pipeline.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of a recipe of ours in which no stage is done."""
    folder = tmp_path / "run"
    folder.mkdir()
    RunFolder(folder).add_session({})
    RunFolder(folder).write_recipe(load_recipe("prorag-nano"))
    return folder


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("pairs --run RUN --judge golld", "gold"),
        ("pairs --run RUN --judge-model m --judge-url http://x/v1 --mode chioce", "choice"),
        ("pairs --run RUN --judge-model m --judge-url http://x/v1 --order bth", "both"),
        ("pairs --run RUN --balance knd", "kind"),
        ("pairs --run RUN --set twin_overlp=1", "twin_overlap"),
        ("pairs --run RUN --set trees=explor", "explore"),
        ("explore --run RUN --preset laptp", "laptop"),
        ("explore --run RUN --evaluate rolout", "rollout"),
        ("explore --out NEW --agent prorga", "prorag"),
        ("explore --out NEW --data atlass", "atlas"),
        ("train sft --out NEW --source mind", "mined"),
        ("train prm --run RUN --objective vlaues", "values"),
        ("train dpo --run RUN --set pairs=pairs --loss-type sigmod", "sigmoid"),
        ("train grpo --run RUN --mode outcme", "outcome"),
        ("train grpo --run RUN --set tre.stems=2", "tree"),
        ("train grpo --run RUN --set tree.stem=2", "stems"),
        ("train grpo --run RUN --set precision=bf61", "bf16"),
        ("ask --agent prorga", "prorag"),
        ("ask --engine transformer", "transformers"),
        ("ask --dtype bf61", "bf16"),
        ("ask --guide golld", "gold"),
        ("ask --guide gold --strategy beem", "beam"),
        ("ask --guide gold --strategy beam --aggregate lst", "last"),
        ("eval --data hotpot", "hotpotqa"),
        ("eval --split tset", "test"),
        ("export --run RUN --out NEW --to trll", "trl"),
        ("index build atlas-small --out NEW --kind bm52", "bm25"),
        ("study rl-mods", "rl-modes"),
        ("recipes prorag-nan", "prorag-nano"),
        ("run prorag-nan --out NEW", "prorag-nano"),
        ("run prorag-nano --out NEW --set agnt=rag", "agent"),
        ("run prorag-nano --out NEW --set agent=rga", "rag"),
        ("run prorag-nano --out NEW --set engine=vlm", "vllm"),
        ("run prorag-nano --out NEW --set dtype=bf61", "bf16"),
        ("run prorag-nano --out NEW --set episode.max_step=3", "max_steps"),
        ("run prorag-nano --out NEW --set data.nam=atlas", "name"),
        ("run prorag-nano --out NEW --set data.name=atlass", "atlas"),
        ("run prorag-nano --out NEW --set stages.grop.mode=outcome", "grpo"),
        ("run prorag-nano --out NEW --set stages.grpo.kind=gropo", "grpo"),
        ("run prorag-nano --out NEW --set stages.grpo.mode=outcme", "outcome"),
        ("run prorag-nano --out NEW --set stages.grpo.tre.stems=2", "tree"),
        ("run prorag-nano --out NEW --set stages.grpo.rewards.min_f2=1", "min_f1"),
        ("run prorag-nano --out NEW --set stages.grpo.policy=rtf", "rft"),
        ("run prorag-nano --out NEW --set stages.explore.evaluate=rolout", "rollout"),
    ],
)
def test_the_nearest_name_is_proposed(
    typed: str, meant: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("RUN", str(run)).replace("NEW", str(tmp_path / "new")) for word in typed.split()]
    assert cli.main(words) == 2
    printed = capsys.readouterr().err
    assert f"Did you mean '{meant}'?" in printed
    assert not (tmp_path / "new").exists()


def test_a_setting_of_a_stage_is_below_stages(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    change = ["--set", "grpo.tree.stems=2"]
    assert cli.main(["run", "prorag-nano", "--out", str(tmp_path / "new"), *change]) == 2
    assert "grpo is a stage: type --set stages.grpo.tree.stems=2" in capsys.readouterr().err


def test_a_setting_of_the_run_is_not_one_of_a_stage(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    assert cli.main(["train", "grpo", "--run", str(run), "--set", "search.k=2"]) == 2
    printed = capsys.readouterr().err
    assert "--set search.k=2: search belongs to the whole run, not to the stage 'grpo'" in printed
