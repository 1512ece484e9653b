"""Makes the pictures of docs/studio.md: pages of the studio in headless Chromium, of the runs in a folder.

    python checks/studio_pictures.py RUNS RUN    # RUN is opened; RUNS should hold a run that trains at this moment

In: runs, and Debian's Chromium. Out: docs/images/studio-*.png.
"""

import argparse
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support import ROOT
from tests.support.serve_process import studio_process

#: Size of a picture, in pixels of the page. The file has one and a half times as many.
WIDTH, HEIGHT, SCALE = 1240, 780, 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("run", help="name of the run to open")
    options = parser.parse_args()
    with sync_playwright() as playwright, studio_process(str(options.runs)) as (url, _):
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=SCALE)
        page.goto(url)
        page.wait_for_selector("#live.on")
        take(page, "studio-runs", 560)
        page.goto(f"{url}/runs/{options.run}")
        page.wait_for_selector("#reproduction dl", timeout=60_000)
        page.evaluate("document.getElementById('curves').scrollIntoView({ behavior: 'instant' })")
        take(page, "studio-run")
        page.goto(f"{url}/runs/{options.run}/trees?show=mixed")
        page.wait_for_selector(".tree .node")
        page.wait_for_timeout(1500)
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        take(page, "studio-trees", 900)
        browser.close()


def take(page: Page, name: str, height: int = HEIGHT) -> None:
    """Save what is seen."""
    page.set_viewport_size({"width": WIDTH, "height": height})
    page.wait_for_timeout(700)
    path = ROOT / "docs" / "images" / f"{name}.png"
    page.screenshot(path=path)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e3:,.0f} kB")


if __name__ == "__main__":
    main()
