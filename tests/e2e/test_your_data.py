"""What docs/your-data.md promises: the sample is as it says, the recipe reads it, ways to answers are found in it."""

import csv
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from stepladder.core.errors import StepladderError
from stepladder.pipeline.recipe import Recipe, load_recipe
from stepladder.pipeline.resources import RunContext
from stepladder.retrieval.index.build import build_index
from stepladder.train.sft.demonstrations import gold_demonstrations
from stepladder.train.sft.weak_decomposition import decompose_questions
from tests.support import ROOT

PAGE = (ROOT / "docs/your-data.md").read_text(encoding="utf-8")


def sample_writer() -> Callable[[Path, int], None]:
    spec = importlib.util.spec_from_file_location("sample_data", ROOT / "examples/sample_data.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.write_sample  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, with the index that the page builds of it."""
    place = tmp_path_factory.mktemp("your-data")
    sample_writer()(place, 7)
    build_index(place / "texts", place / "my-index")
    return place


@pytest.fixture
def recipe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.chdir(folder)
    return load_recipe("your-data-nano")


def test_the_sample_has_the_files_that_the_page_names(folder: Path) -> None:
    files = list((folder / "texts").iterdir())
    assert {file.name for file in files if file.suffix != ".txt"} == {"albums.md", "paintings.md", "ships.md"}
    assert f"{len(files)} files" in PAGE
    with (folder / "questions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert set(rows[0]) == {"question", "answer"}
    assert f"{len(rows)} questions" in PAGE
    assert len({row["question"] for row in rows}) == len(rows)
    assert all(row["question"].endswith("?") and row["answer"] for row in rows)


def test_the_same_seed_writes_the_same_and_nothing_is_overwritten(folder: Path, tmp_path: Path) -> None:
    write_sample = sample_writer()
    write_sample(tmp_path, 7)
    again, first = (
        {file.name: file.read_bytes() for file in (place / "texts").iterdir()} for place in (tmp_path, folder)
    )
    assert again == first
    assert (tmp_path / "questions.csv").read_bytes() == (folder / "questions.csv").read_bytes()
    with pytest.raises(StepladderError, match="already; expected a new or an empty folder"):
        write_sample(tmp_path, 8)


def test_the_recipe_works_in_such_a_folder_without_any_path(recipe: Recipe, folder: Path) -> None:
    assert recipe.shared.data.index == str(folder / "my-index")
    context = RunContext(recipe.shared)
    held = recipe.shared.data.holdout
    assert {split: len(context.split(split)) for split in ("train", "dev", "test")} == {
        "train": 1000 - 2 * held,
        "dev": held,
        "test": held,
    }
    assert not any(question.hops for question in context.all_questions())
    assert load_recipe("your-data").shared.policy == "smollm2-135m"


@pytest.mark.parametrize("name", ["your-data-nano", "your-data"])
def test_the_recipe_needs_nothing_but_answers(name: str, recipe: Recipe) -> None:
    recipe = load_recipe(name)
    stages = {stage.name: stage.plain() for stage in recipe.stages}
    assert stages["sft"]["source"] == "mined"
    assert stages["rft"]["threshold"] is None
    assert stages["grpo"]["mode"] == "outcome"
    assert not {"reward", "trees", "pairs"} & {role for stage in recipe.stages for role in stage.inputs}


def test_ways_to_the_answers_are_found_in_the_sample(recipe: Recipe) -> None:
    context = RunContext(recipe.shared)
    questions = context.split("train")
    found = decompose_questions(questions, context.retriever, context.settings.search.k)
    made = gold_demonstrations(context.agent, found, context.retriever, context.episode(), seed=0)
    context.close()
    searches = [len(transcript.queries) for transcript in made.kept]
    # What the page says of them.
    found = re.search(r"(\d+) of (\d+) questions .* (\d+) with one search and (\d+) with two", PAGE)
    assert found is not None
    assert [int(number) for number in found.groups()] == [
        len(searches),
        len(questions),
        searches.count(1),
        searches.count(2),
    ]
    assert made.dropped["no_decomposition"] > 0
    assert all(transcript.answer in transcript.question.answers for transcript in made.kept)
