"""The studio in a real browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stepladder.pipeline.recipe import load_recipe
from stepladder.pipeline.runner import run_recipe
from tests.support.browser import chromium, opened
from tests.support.recipes import EVALUATIONS
from tests.support.studios import running_studio

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished run."""
    folder = tmp_path_factory.mktemp("studio")
    recipe = folder / "floor.yaml"
    recipe.write_text(EVALUATIONS)
    run_recipe(load_recipe(recipe), folder / "runs" / "floor")
    return folder / "runs"


def test_every_run_is_on_the_first_page(browser: "Browser", runs: Path) -> None:
    with running_studio(runs) as studio, opened(browser, studio.url) as page:
        assert page.inner_text("h1") == "Runs"
        assert "floor" in page.inner_text("main")
