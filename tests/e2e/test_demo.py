"""The demo tells its story with any recipe; here with a model of random weights and training that changes nothing.

Its size fits the machine, and the studio shows its run.
"""

import urllib.error
import urllib.request
from io import StringIO
from pathlib import Path
from queue import Queue

import pytest
from rich.console import Console

from stepladder.cli import main
from stepladder.cli.demo.demo_command import run_demo
from stepladder.cli.demo.demo_size import expected_seconds
from stepladder.cli.demo.demo_studio import studio_of
from stepladder.pipeline.recipe import Recipe, load_recipe
from stepladder.pipeline.stages import STAGES, StageSpec
from tests.support.made_runs import MadeRun, made_run
from tests.support.recipes import NoConfig, save_tiny

DEMO = "stepladder.cli.demo.demo_command"


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


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """The recipes that the demo would run; nothing is run. The machine has no GPU."""
    recipes: list[Recipe] = []
    monkeypatch.setattr(f"{DEMO}.run_demo", lambda _, recipe, *__, **___: recipes.append(recipe))
    monkeypatch.setattr(f"{DEMO}._has_gpu", lambda: False)
    return recipes


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--size", "small"], {"name": "prorag-nano-small", "minutes": None}),
        (["--size", "full"], {"name": "prorag-nano", "minutes": None, "questions": 160, "num_train_epochs": 1}),
        (["--size", "large"], {"name": "prorag-nano-large", "minutes": None, "questions": 800, "num_train_epochs": 1}),
        # at most 120 updates of 8 questions
        (
            ["--size", "full", "--minutes", "2"],
            {"name": "prorag-nano", "minutes": 2, "questions": 800, "num_train_epochs": 1.2},
        ),
        (
            ["--size", "full", "--minutes", "0.1"],
            {"name": "prorag-nano", "minutes": 0.1, "questions": 160, "num_train_epochs": 0.3},
        ),
    ],
)
def test_the_demo_s_size_and_minutes_change_its_recipe(
    options: list[str], expected: dict[str, object], asked: list[Recipe], tmp_path: Path
) -> None:
    assert main(["demo", "--seed", "7", "--out", str(tmp_path / "run"), *options]) == 0
    (recipe,) = asked
    (stage,) = (stage for stage in recipe.stages if stage.kind == "grpo")
    plain = stage.plain()
    assert (recipe.name, recipe.seed) == (expected.pop("name"), 7)
    assert {name: plain[name] for name in expected} == expected


@pytest.mark.parametrize(("full", "name"), [(450.0, "prorag-nano"), (1400.0, "prorag-nano-small")])
def test_the_demo_takes_the_size_that_fits_the_machine(
    full: float,
    name: str,
    asked: list[Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(f"{DEMO}.expected_seconds", lambda _: {"small": 200.0, "full": full})
    assert main(["demo", "--out", str(tmp_path / "run")]) == 0
    assert [recipe.name for recipe in asked] == [name]
    told = capsys.readouterr()
    assert "Expected here: small about 3 min" in told.err
    assert f"stepladder studio {tmp_path / 'run'}" in told.out, "what to type next"


def test_a_folder_that_is_no_run_is_refused_before_the_machine_is_measured(
    asked: list[Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"{DEMO}.expected_seconds", lambda _: pytest.fail("the machine was measured"))
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert "contains other files (mine.txt) and is not a run" in " ".join(capsys.readouterr().err.split())
    assert asked == []


def test_a_run_of_the_demo_keeps_its_size(asked: list[Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{DEMO}.expected_seconds", lambda _: pytest.fail("the machine was measured again"))
    MadeRun(tmp_path / "run", load_recipe("prorag-nano-small").plain())
    assert main(["demo", "--out", str(tmp_path / "run"), "--no-studio"]) == 0
    assert [recipe.name for recipe in asked] == ["prorag-nano-small"]


def test_the_small_size_is_expected_to_take_less_time_than_the_full_one() -> None:
    seconds = expected_seconds([])
    assert 0 < seconds["small"] < seconds["full"]


def test_the_studio_shows_the_run_as_long_as_the_demo_takes(tmp_path: Path) -> None:
    addresses: Queue[str] = Queue()
    with studio_of(tmp_path / "run", addresses.put):
        made_run(tmp_path / "run", trees=1)
        address = addresses.get(timeout=120)
        with urllib.request.urlopen(address, timeout=60) as page:
            assert "example" in page.read().decode()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=60)
