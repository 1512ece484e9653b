"""The pairs of a run in a real browser: they are looked at, marked, and left out of a training."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stepladder.core.io.records import write_records
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.runner import run_recipe
from stepladder.preferences.marks import read_marks
from tests.support.browser import opened
from tests.support.dpo_training import PAIRS as TINY_PAIRS
from tests.support.pair_runs import make_pair_run
from tests.support.studios import running_studio

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.e2e


def expect(found: Any, **options: Any) -> Any:
    from playwright.sync_api import expect

    return expect(found, **options)


def settled(page: "Page") -> None:
    expect(page.locator(".sides .side")).to_have_count(2)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_pair_run(tmp_path / "runs" / "mine")


def test_a_pair_is_found_marked_and_unmarked_by_keyboard(browser: "Browser", run: Path) -> None:
    with running_studio(run.parent) as studio, opened(browser, f"{studio.url}/runs/mine/pairs") as page:
        settled(page)
        expect(page.locator("#counts")).to_have_text("12 of 12 pairs · 0 marked as wrong")
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("k")
        expect(page.locator("#list li").nth(1)).to_have_attribute("aria-selected", "true")
        name = page.locator("#list li").nth(1).get_attribute("id") or ""
        page.keyboard.press("m")
        page.keyboard.type("both are wrong")
        page.keyboard.press("Enter")
        expect(page.locator(".mark-box .saved")).to_have_text("both are wrong")
        expect(page.locator("#counts")).to_have_text("12 of 12 pairs · 1 marked as wrong")
        assert [each.note for each in read_marks(run / "pairs" / "pairs").values()] == ["both are wrong"]
        page.reload()
        expect(page.locator(f"#{name}")).to_have_attribute("aria-selected", "true")  # it is in the address
        expect(page.locator(".mark-box .saved")).to_have_text("both are wrong")
        page.locator("[name=marks]").select_option("marked")
        expect(page.locator("#list li")).to_have_count(1)
        settled(page)
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("u")
        expect(page.locator("#counts")).to_contain_text("0 marked as wrong")
        assert read_marks(run / "pairs" / "pairs") == {}


def test_filters_and_the_search(browser: "Browser", run: Path) -> None:
    with running_studio(run.parent) as studio, opened(browser, f"{studio.url}/runs/mine/pairs") as page:
        settled(page)
        page.locator("[name=gold]").select_option("disagrees")
        expect(page.locator("#counts")).to_contain_text("4 of 12 pairs")
        expect(page.locator(".judged")).to_contain_text("The gold judge prefers the rejected step")
        page.locator("[name=kind]").select_option("answer")
        expect(page.locator("#counts")).to_contain_text("2 of 12 pairs")
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("/")
        page.keyboard.type("no such text")
        expect(page.locator("#detail")).to_have_text("No pair matches.")


def test_hostile_text_is_text(browser: "Browser", run: Path) -> None:
    with running_studio(run.parent) as studio, opened(browser, f"{studio.url}/runs/mine/pairs") as page:
        settled(page)
        expect(page.locator(".context")).to_contain_text("<script>document.title")
        assert page.locator("main script, main img").count() == 0
        assert page.title().startswith("Pairs of mine")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_400_pixels(browser: "Browser", run: Path, scheme: str) -> None:
    settings: dict[str, Any] = {"viewport": {"width": 400, "height": 800}, "color_scheme": scheme}
    with running_studio(run.parent) as studio, opened(browser, f"{studio.url}/runs/mine/pairs", **settings) as page:
        settled(page)
        page.get_by_text("Mark as wrong", exact=True).click()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_a_marked_pair_is_left_out_of_a_training(browser: "Browser", tmp_path: Path) -> None:
    """Marked in the browser, excluded by `exclude_marked`; another mark makes the stage stale, as the page says."""
    file, run = tmp_path / "pairs.jsonl", tmp_path / "runs" / "mine"
    write_records(file, TINY_PAIRS)
    dpo = {"num_train_epochs": 1, "batch_size": 2, "learning_rate": 1e-4, "warmup_ratio": 0, "dev_questions": 0}
    stages = {
        "pairs": {"kind": "pairs-file", "path": str(file), "dev_share": 0},
        "dpo": {"kind": "dpo", **dpo, "exclude_marked": True},
    }
    shared = {"policy": "tiny", "agent": "prorag-brief", "device": "cpu", "data": {"name": "atlas-small"}}
    recipe = Recipe.read({**shared, "stages": stages})
    run_recipe(recipe, run, only="pairs")
    with running_studio(run.parent) as studio, opened(browser, f"{studio.url}/runs/mine/pairs") as page:
        settled(page)
        expect(page.locator("#use")).to_contain_text("dpo will leave the marked pairs out.")
        page.keyboard.press("m")
        page.keyboard.press("Enter")
        expect(page.locator(".mark-box.marked")).to_be_visible()
        report = run_recipe(recipe, run)
        numbers = report.stages[-1].summary
        assert (numbers["excluded_marked"], numbers["pairs"]) == (1, len(TINY_PAIRS) - 1)
        page.reload()
        expect(page.locator("#use")).to_contain_text("dpo was trained without 1 marked pair.")
        page.keyboard.press("j")
        page.keyboard.press("m")  # at once: a pair can be marked while its state is loaded
        page.keyboard.press("Enter")
        expect(page.locator("#use")).to_contain_text("is stale: it was trained without 1 of the 2 marked pairs")
        expect(page.locator("#use pre").first).to_contain_text("--update")
