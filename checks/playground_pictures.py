"""Makes the pictures of docs/playground.md: the playground and the pairs of a run, in headless Chromium.

    python checks/playground_pictures.py RUNS RUN --question "Which ...?" --step 2 --text "..." --pair "..." --note ...

The question is asked of the run's policy and of the oracle; then a step of the policy is replaced by this text, and the
policy continues; a pair of the run is marked, with a note. In: runs, and Debian's Chromium. Out: playground.png,
playground-edited.png and pairs.png in docs/images.
"""

import argparse
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support import ROOT
from tests.support.serve_process import studio_process

#: Pixels of the page; the file has one and a half times as many.
WIDTH, SCALE = 1240, 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("run", help="name of the run: with a policy, a reward model and pairs")
    parser.add_argument("--question", required=True)
    parser.add_argument("--step", type=int, required=True, help="number of the step that is edited")
    parser.add_argument("--text", required=True)
    parser.add_argument("--pair", required=True, help="text of a step of the pair that is marked")
    parser.add_argument("--note", required=True)
    options = parser.parse_args()
    with sync_playwright() as playwright, studio_process(str(options.runs)) as (url, _):
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        page = browser.new_page(viewport={"width": WIDTH, "height": 1000}, device_scale_factor=SCALE)
        page.goto(f"{url}/playground")
        expect(page.locator("[name=policy]")).not_to_have_value("")
        page.locator("[name=policy]").fill(options.run)
        page.fill("#question", options.question)
        page.click("#compare")
        page.locator("[name=policy]").nth(1).fill("oracle")
        answer(page, 2)
        page.locator("li.step summary").first.click()
        take(page, "playground", ".answer >> nth=1")
        page.click("#compare")
        step = page.locator("li.step").nth(options.step - 1)
        step.focus()
        page.keyboard.press("e")
        page.locator(".editor [name=content]").fill(options.text)
        page.keyboard.press("Control+Enter")
        expect(page.locator(".answer .note")).to_be_visible(timeout=120_000)
        page.mouse.move(0, 0)
        take(page, "playground-edited", ".outcome > div:last-child > .answer")
        page.goto(f"{url}/runs/{options.run}/pairs")
        expect(page.locator(".sides .side")).to_have_count(2)
        page.locator("#list li", has_text=options.pair).click()
        expect(page.locator(".sides")).to_contain_text(options.pair)
        page.keyboard.press("m")
        page.keyboard.type(options.note)
        page.keyboard.press("Enter")
        expect(page.locator(".mark-box .saved")).to_be_visible()
        take(page, "pairs", ".browser")
        browser.close()


def answer(page: Page, columns: int) -> None:
    page.locator("#question").press("Enter")
    expect(page.locator(".answer .text")).to_have_count(columns, timeout=180_000)


def take(page: Page, name: str, last: str) -> None:
    """Save the page down to an element."""
    page.wait_for_timeout(700)
    page.evaluate("scrollTo(0, 0)")
    box = page.locator(last).first.bounding_box()
    assert box is not None
    height = int(box["y"] + box["height"]) + 16
    path = ROOT / "docs" / "images" / f"{name}.png"
    page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(256).save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e3:,.0f} kB")


if __name__ == "__main__":
    main()
