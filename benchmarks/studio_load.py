"""How fast the studio opens over many large runs, and how much memory it needs.

Makes a folder of 20 runs with 2,000 search trees and 50 MB of learning curves, starts `stepladder studio` as a process
of its own, and opens its pages in headless Chromium (Debian's, if there is one): first contentful paint, and the time
until everything is there. Without Chromium the time to the whole HTML is measured.

    python benchmarks/studio_load.py [--runs 20] [--trees 2000] [--megabytes 50]

`first`: the first time that anybody asks; `again`: the second. The memory is the resident set of the server.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx2
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from stepladder.core.trace import Tree
from tests.support.made_runs import MadeRun, grown_trees, write_curves
from tests.support.serve_process import studio_process

#: Aim: seconds to the first paint.
AIM = 1.0
#: Trees that are grown; the others are copies of them with ids of their own. Columns of a metrics log.
GROWN, COLUMNS = 40, 24


def make_runs(folder: Path, runs: int, trees: int, megabytes: float) -> str:
    """Finished runs. The first has half of the trees and a tenth of the curves. Returns its name."""
    grown = cycle(grown_trees(GROWN))
    row_bytes = _bytes_per_row(folder)
    shares = [(trees // 2, megabytes / 10)]
    shares += [(trees // 2 // (runs - 1), megabytes * 0.9 / (runs - 1))] * (runs - 1)
    for number, (count, size) in enumerate(shares):
        run = MadeRun(folder / f"run-{number:02}")
        run.trained()
        write_curves(run.path / "sft" / "curves.jsonl", round(size * 1e6 / row_bytes), COLUMNS)
        run.explored(_copy(next(grown), index) for index in range(count))
        run.evaluated()
    return "run-00"


def _bytes_per_row(folder: Path) -> float:
    path = folder / "sample.jsonl"
    write_curves(path, 1000, COLUMNS)
    size = path.stat().st_size / 1000
    path.unlink()
    return size


def _copy(tree: Tree, number: int) -> Tree:
    return replace(tree, question=replace(tree.question, id=f"question-{number}"))


#: Pages by title: the address of each, and what is there when everything is.
PAGES: dict[str, tuple[str, str]] = {
    "all runs": ("/", "#live.on"),
    "one run": ("/runs/{run}", "#reproduction dl"),
    "its trees": ("/runs/{run}/trees", ".tree .node"),
}


class Chromium(AbstractContextManager["Chromium"]):
    """A browser, driven by Playwright."""

    def __enter__(self) -> "Chromium":
        from playwright.sync_api import sync_playwright

        self._playwright = sync_playwright().start()
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
        path = shutil.which("chromium")
        self._browser = self._playwright.chromium.launch(executable_path=path, args=arguments)
        self._browser.new_page().goto("about:blank")
        return self

    def __exit__(self, *_: object) -> None:
        self._browser.close()
        self._playwright.stop()

    def open(self, url: str, ready: str) -> tuple[float, float]:
        """Seconds to the first paint of a page, and until everything is there."""
        page = self._browser.new_page()
        started = time.perf_counter()
        page.goto(url, wait_until="commit")
        page.wait_for_selector(ready, timeout=120_000)
        everything = time.perf_counter() - started
        paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN"
        painted = float(page.evaluate(paint)) / 1000
        page.close()
        return painted, everything


def fetch(url: str, ready: str) -> tuple[float, float]:  # noqa: ARG001
    """Without a browser: seconds to the whole HTML."""
    started = time.perf_counter()
    httpx2.get(url, headers={"accept": "text/html"}, timeout=120, trust_env=False).raise_for_status()
    seconds = time.perf_counter() - started
    return seconds, seconds


def measure(folder: Path, run: str) -> None:
    """Open every page twice, and print a line for each."""
    has_browser = shutil.which("chromium") is not None
    browser: AbstractContextManager[Any] = Chromium() if has_browser else nullcontext()
    with browser as opened, studio_process(str(folder)) as (url, process):
        server = psutil.Process(process.pid)
        open_page: Callable[[str, str], tuple[float, float]] = opened.open if has_browser else fetch
        print(f"{'page':<12}{'':<8}{'first paint':>12}{'everything':>12}{'memory':>12}")
        print(f"{'(started)':<44}{server.memory_info().rss / 1e6:>9,.0f} MB")
        slowest = 0.0
        for title, (path, ready) in PAGES.items():
            for time_of in ("first", "again"):
                paint, everything = open_page(url + path.format(run=run), ready)
                slowest = max(slowest, paint)
                memory = server.memory_info().rss / 1e6
                print(f"{title:<12}{time_of:<8}{paint:>10.2f} s{everything:>10.2f} s{memory:>9,.0f} MB", flush=True)
        _finish_index(url, run)
        print(f"{'(every tree judged)':<44}{server.memory_info().rss / 1e6:>9,.0f} MB")
        verdict = "met" if slowest < AIM else "missed"
        what = "first paint" if has_browser else "whole HTML"
        print(f"aim: {what} below {AIM:g} s: {verdict}, {slowest:.2f} s at most")


def _finish_index(url: str, run: str) -> None:
    while httpx2.get(f"{url}/runs/{run}/trees/list?stage=explore", timeout=60, trust_env=False).json()["reading"]:
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--trees", type=int, default=2000)
    parser.add_argument("--megabytes", type=float, default=50, help="of learning curves, in all runs together")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "runs"
        folder.mkdir()
        run = make_runs(folder, options.runs, options.trees, options.megabytes)
        size = sum(path.stat().st_size for path in folder.rglob("curves.jsonl")) / 1e6
        print(f"{options.runs} runs, {options.trees:,} trees, {size:.0f} MB of curves")
        measure(folder, run)


if __name__ == "__main__":
    main()
