"""The demo tells its story with any recipe; here with a model of random weights and training that changes nothing."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from stepladder.cli import main
from stepladder.cli.demo import run_demo
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.stages import STAGES, StageSpec
from tests.support.recipes import NoConfig, save_tiny


def test_the_demo_shows_a_question_before_and_after_and_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STAGES._targets, "save", StageSpec(NoConfig, save_tiny, outputs=("policy",)))
    recipe = Recipe.read(
        {
            "policy": "tiny",
            "device": "cpu",
            "episode": {"max_tokens": 4},
            "stages": {
                "before": {"kind": "eval", "limit": 2},
                "save": {},
                "after": {"kind": "eval", "limit": 2},
                "oracle": {"kind": "eval", "policy": "oracle", "limit": 2},
            },
        }
    )
    told = StringIO()
    report = run_demo(Console(file=told, width=150), recipe, tmp_path / "run")
    text = told.getvalue()
    story = ("2,000 passages", "answered by the oracle", "answered after", "answered by the trained model", "time:")
    places = [text.index(part) for part in story]
    assert places == sorted(places)
    assert "after vs. before: f1" in text
    assert report.policy == tmp_path / "run" / "save" / "policy"

    again = run_demo(Console(file=StringIO()), recipe, tmp_path / "run")
    assert again.skipped == ("before", "save", "after", "oracle")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], {"name": "prorag-nano", "minutes": None, "questions": 160, "num_train_epochs": 1}),
        (["--size", "large"], {"name": "prorag-nano-large", "minutes": None, "questions": 800, "num_train_epochs": 1}),
        # at most 120 updates of 8 questions
        (["--minutes", "2"], {"name": "prorag-nano", "minutes": 2, "questions": 800, "num_train_epochs": 1.2}),
        (["--minutes", "0.1"], {"name": "prorag-nano", "minutes": 0.1, "questions": 160, "num_train_epochs": 0.3}),
    ],
)
def test_the_demo_s_size_and_minutes_change_its_recipe(
    options: list[str], expected: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Recipe] = []
    monkeypatch.setattr("stepladder.cli.demo.run_demo", lambda _, recipe, *__, **___: asked.append(recipe))
    assert main(["demo", "--seed", "7", *options]) == 0
    (recipe,) = asked
    (stage,) = (stage for stage in recipe.stages if stage.kind == "grpo")
    plain = stage.plain()
    assert (recipe.name, recipe.seed) == (expected.pop("name"), 7)
    assert {name: plain[name] for name in expected} == expected
