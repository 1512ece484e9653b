"""The studio in a real browser: runs while they train, search trees, comparisons, and runs that are not whole."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from stepladder.pipeline.run_folder import claim
from tests.support.browser import opened, wait_until
from tests.support.made_runs import HOSTILE, MadeRun, add_trees, grown_trees, made_run, write_curves
from tests.support.studios import running_studio

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

#: Trains a model of random weights for a few seconds.
TRAINING: dict[str, Any] = {
    "name": "seconds",
    "policy": "tiny",
    "agent": "prorag-brief",
    "data": {"name": "atlas-small"},
    "device": "cpu",
    "search": {"k": 1},
    "episode": {"max_tokens": 8},
    "stages": {
        "sft": {"questions": 16, "num_train_epochs": 2, "dev_questions": 2, "eval_steps": 4, "batch_size": 4},
        "explore": {"questions": 1, "simulations": 4},
        "after": {"kind": "eval", "limit": 2},
    },
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs; in the trees of one of them a hostile passage was found."""
    folder = tmp_path_factory.mktemp("studio") / "runs"
    made_run(folder / "first", trees=45)
    second = MadeRun(folder / "second")
    second.trained(updates=30)
    second.explored(grown_trees(2, hostile=True))
    second.evaluated(right=(True, True, True, False))
    return folder


@contextmanager
def training(folder: Path) -> Iterator[None]:
    """Train in a process of its own."""
    recipe = folder.parent.parent / "seconds.yaml"
    recipe.write_text(yaml.safe_dump(TRAINING))
    arguments = [sys.executable, "-m", "stepladder", "run", str(recipe), "--out", str(folder)]
    with subprocess.Popen(arguments, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL) as process:
        try:
            yield
            assert process.wait(120) == 0
        finally:
            process.kill()


def row(page: "Page", name: str) -> Any:
    return page.locator(f'[id="run:{name}"]')


def fits(page: "Page") -> bool:
    """Whether the page is as wide as the window, so that nobody has to scroll sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def test_a_run_appears_while_it_trains(browser: "Browser", tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    made_run(runs / "old", trees=1)
    with running_studio(runs) as studio, opened(browser, studio.url) as page, training(runs / "new"):
        assert row(page, "old").inner_text().split()[:2] == ["old", "example"]
        page.wait_for_selector('[id="run:new"] .badge.running', timeout=120_000)
        row(page, "new").get_by_role("link", name="new").click()
        page.wait_for_selector("#live.on")
        page.wait_for_selector("figure[data-metric=loss] svg polyline", timeout=120_000)
        grown = "+document.querySelector('#curves .kind').textContent.split(' ')[0] >= 8"
        wait_until(page, grown, 120)
        page.wait_for_selector("#state .badge.finished", timeout=120_000)
        page.wait_for_selector("#results table")
        assert page.locator("#cost table").count() == 1
        page.get_by_role("link", name="Search trees").click()
        page.wait_for_selector(".tree .node")
        page.get_by_role("link", name="Stepladder studio").click()
        assert "finished" in row(page, "new").inner_text()


def focused(page: "Page") -> str:
    """The id of the step that has the focus."""
    found: str = page.evaluate("document.activeElement.closest('.node')?.dataset.node ?? ''")
    return found


def test_a_tree_is_opened_and_walked_by_keyboard(browser: "Browser", runs: Path) -> None:
    with running_studio(runs) as studio, opened(browser, f"{studio.url}/runs/first/trees") as page:
        page.wait_for_selector(".tree .node")
        page.keyboard.press("n")
        wait_until(page, "location.hash.includes('q1')")
        assert page.locator(".tree-list [aria-current]").get_attribute("data-tree") == "q1"

        first = focused(page)
        page.keyboard.press("ArrowDown")
        second = focused(page)
        assert second != first
        page.keyboard.press("ArrowUp")
        assert focused(page) == first
        page.locator(".tree .node.folds > .step > summary").first.focus()
        parent = focused(page)
        page.keyboard.press("ArrowRight")
        assert page.locator(f'.node[data-node="{parent}"] > ul > .node[data-node="{focused(page)}"]').count() == 1
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        assert focused(page) in (parent, "1"), "back, and folded"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.parentElement.open"), "the step is open"
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is visible"
        assert f"node={focused(page)}" in page.url

        page.keyboard.press("p")
        wait_until(page, "location.hash.includes('q0')")
        page.keyboard.press("?")
        assert page.locator("dialog").is_visible()
        page.keyboard.press("Escape")
        assert not page.locator("dialog").is_visible()
        page.keyboard.press("/")
        page.keyboard.type("q44")
        wait_until(page, "document.querySelectorAll('.tree-list li').length === 1")
        wait_until(page, "location.hash.includes('q44')")


def test_a_link_leads_to_a_step_of_a_tree(browser: "Browser", runs: Path) -> None:
    address = "/runs/first/trees?stage=explore#tree=q42&node=2"
    with running_studio(runs) as studio, opened(browser, studio.url + address) as page:
        wait_until(page, "document.activeElement.closest('.node')?.dataset.node === '2'")
        wait_until(page, "document.querySelector('#page').innerText === '2 of 2'")  # the page that has the tree
        assert page.locator(".tree-list [aria-current]").get_attribute("data-tree") == "q42"


def test_filters_choose_trees_and_are_in_the_address(browser: "Browser", runs: Path) -> None:
    with running_studio(runs) as studio, opened(browser, f"{studio.url}/runs/first/trees") as page:
        wait_until(page, "document.querySelector('[data-count=all]').textContent === '45'")
        solved = int(page.inner_text("[data-count=solved]"))
        page.get_by_text("solved", exact=False).first.click()
        wait_until(page, "location.search.includes('show=solved')")
        listed = page.locator(".tree-list li").count()
        assert listed == min(solved, 40)
        page.reload()
        page.wait_for_selector(".tree .node")
        assert page.locator("input[name=show]:checked").get_attribute("value") == "solved"


def test_trees_appear_as_they_are_grown(browser: "Browser", tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "runs" / "growing")
    with (
        running_studio(run.path) as studio,
        claim(run.path),
        opened(browser, f"{studio.url}/runs/growing/trees") as page,
    ):
        assert "no search trees yet" in page.inner_text("main")
        folder = run.begin("explore")
        add_trees(folder, grown_trees(1))
        page.wait_for_selector(".tree .node")
        assert page.inner_text("#told").startswith("1 tree ")
        add_trees(folder, grown_trees(2, first=1))
        wait_until(page, "document.querySelectorAll('.tree-list li').length === 3")
        assert "more are being grown" in page.inner_text("#told")


def test_a_hostile_passage_is_text(browser: "Browser", runs: Path) -> None:
    with running_studio(runs) as studio, opened(browser, f"{studio.url}/runs/second/trees") as page:
        page.wait_for_selector(".tree .node")
        page.evaluate("document.querySelectorAll('.tree details').forEach((each) => { each.open = true; })")
        shown = page.inner_text("#tree")
        assert HOSTILE.title in shown
        assert "<script>document.title = 'taken over'</script> & more" in shown
        assert page.locator("#tree script, #tree blockquote b b").count() == 0
        assert "taken over" not in page.title()


def test_two_runs_are_compared(browser: "Browser", runs: Path) -> None:
    with running_studio(runs) as studio, opened(browser, studio.url) as page:
        compare = page.get_by_role("button", name="Compare the marked runs")
        assert compare.is_disabled()
        for name in ("first", "second"):
            row(page, name).get_by_role("checkbox").check()
        compare.click()
        page.wait_for_selector("#comparison table", timeout=60_000)
        assert "0.250 [" in page.inner_text("#results")
        page.wait_for_selector("#curves figure svg")
        page.select_option("select[name=metric]", "em")
        wait_until(page, "document.querySelector('#comparison #results')?.innerText.includes('delta EM')")
        assert "metric=em" in page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone(browser: "Browser", runs: Path, scheme: str) -> None:
    size: Any = {"width": 400, "height": 800}
    with running_studio(runs) as studio:
        for path, ready in {
            "/": "#live.on",
            "/runs/first": "#cost table",
            "/runs/first/trees": ".tree .node",
            "/compare?runs=first&runs=second": "#comparison table",
        }.items():
            with opened(browser, studio.url + path, viewport=size, color_scheme=scheme) as page:
                page.wait_for_selector(ready, timeout=60_000)
                assert fits(page), path
                dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
                assert dark == (scheme == "dark")


def test_the_first_tab_stop_skips_to_the_content(browser: "Browser", runs: Path) -> None:
    with running_studio(runs) as studio, opened(browser, studio.url) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"


def test_runs_that_cannot_be_read_say_why_and_break_nothing(browser: "Browser", tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    made_run(runs / "whole", trees=1)
    (made_run(runs / "broken", trees=1).path / "recipe.yaml").write_text("stages: [")
    old = {"stepladder_run": 1, "sessions": [{"versions": {"stepladder": "0.1.0"}}]}
    (made_run(runs / "older", trees=1).path / "run.json").write_text(json.dumps(old))
    with running_studio(runs) as studio, opened(browser, studio.url) as page:
        assert "finished" in row(page, "whole").inner_text()
        assert "recipe.yaml:1: not YAML" in row(page, "broken").inner_text()
        assert "was written by Stepladder 0.1.0" in row(page, "older").inner_text()
        row(page, "older").get_by_role("link", name="older").click()
        assert "run the recipe again with another --out" in page.inner_text(".notice")
        page.goto(f"{studio.url}/runs/broken")
        assert "recipe.yaml:1: not YAML" in page.inner_text(".notice")


def test_a_run_that_is_written_while_it_is_read_is_never_damaged(browser: "Browser", tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "runs" / "busy")
    stop = threading.Event()

    def write() -> None:
        folder = run.begin("sft")
        for updates in range(1, 10_000):
            if stop.is_set():
                return
            write_curves(folder / "curves.jsonl", updates)  # not atomic: it may be read in the middle
            run.run.write_recipe(run.recipe)

    with running_studio(run.path) as studio, claim(run.path), opened(browser, f"{studio.url}/runs/busy") as page:
        thread = threading.Thread(target=write)
        thread.start()
        try:
            wait_until(page, "+document.querySelector('#curves .kind')?.textContent.split(' ')[0] > 100")
            assert page.locator("#state .badge.running").count() >= 1
            assert not re.search("damaged", page.inner_text("main"))
        finally:
            stop.set()
            thread.join(20)
