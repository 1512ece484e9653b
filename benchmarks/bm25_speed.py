"""How fast is BM25? Stepladder's index against plain `bm25s` on the same passages and queries, one thread.

    python benchmarks/bm25_speed.py

The text is made up by a seeded generator: words drawn by Zipf's law, 60 a passage, 8 a query. All ways split text into
the same terms and search for the 3 best passages, with all queries in one call (batch) or one by one (single); that
they find the same, up to the order of equal scores, is checked in the same run. Stepladder's index lies on disk: its
times include writing the passages when it is built and reading those found, where plain bm25s stays in memory and gives
positions. bm25s has two backends, numpy and numba; it orders equal scores as they come. The first search of a process
compiles numba's functions, or loads what an earlier process compiled. Times are of the processor.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

from stepladder.core.trace import Passage
from stepladder.retrieval.index.bm25 import bm25s, tokenize
from stepladder.retrieval.index.build import build_index, open_index

SIZES = (2_000, 100_000)
QUERIES, K, ROUNDS = 500, 3, 5
VOCABULARY, WORDS_A_PASSAGE, WORDS_A_QUERY = 100_000, 60, 8
BACKENDS = ("numpy", "numba")

Result = TypeVar("Result")
#: The scores of the best passages of each query.
Search = Callable[[list[str]], Sequence[Sequence[float]]]


def run() -> None:
    """Measure and print."""
    for size in SIZES:
        texts, queries = made_up_text(size)
        table = Table("way", "build s", "first search s", "batch, queries/s", "single, queries/s")
        table.title = f"{size:,} passages"
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "index"
            ways = {"Stepladder": partial(ours, texts, folder)}
            ways |= {f"bm25s, {backend}": partial(theirs, texts, backend) for backend in BACKENDS}
            expected: Any = None
            for way, make in ways.items():
                build, search = timed(make)
                first, _ = timed(lambda: search(queries[:1]))  # noqa: B023 - called at once
                batch_time, scores = best_of(lambda: search(queries))  # noqa: B023 - called at once
                single_time, singly = best_of(lambda: [search([query])[0] for query in queries])  # noqa: B023
                expected = scores if expected is None else expected
                for found in (scores, singly):
                    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-4)
                times = f"{build:.1f}", f"{first:.2f}"
                table.add_row(way, *times, f"{QUERIES / batch_time:,.0f}", f"{QUERIES / single_time:,.0f}")
        Console().print(table)


def ours(texts: list[str], folder: Path) -> Search:
    """Stepladder's index on disk."""
    build_index((Passage(str(i), "", text) for i, text in enumerate(texts)), folder)
    index = open_index(folder)
    return lambda queries: [[passage.score or 0.0 for passage in found] for found in index.search(queries, K)]


def theirs(texts: list[str], backend: str) -> Search:
    """The library's index in memory."""
    library = bm25s.BM25(k1=1.2, b=0.75, backend=backend)
    library.index([tokenize(text) for text in texts], show_progress=False)

    def search(queries: list[str]) -> Any:
        terms = [tokenize(query) for query in queries]
        return library.retrieve(terms, k=K, show_progress=False, backend_selection=backend).scores

    return search


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """The time that the work took, and what it gave."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def best_of(work: Callable[[], Result]) -> tuple[float, Result]:
    """The least time that the work took in a few rounds, and what it gave."""
    return min((timed(work) for _ in range(ROUNDS)), key=lambda found: found[0])


def made_up_text(size: int) -> tuple[list[str], list[str]]:
    """Passages and queries of made-up words; frequent words are short, as in any language."""
    random = np.random.default_rng(0)
    syllables = np.array([a + b for a in "bdfgklmnprstvz" for b in "aeiou"])
    words = np.array(["".join(syllables[list(digits(i, len(syllables)))]) for i in range(VOCABULARY)])
    weights = 1 / np.arange(10, VOCABULARY + 10)  # the ten most frequent words are stop words, left out
    weights /= weights.sum()

    def texts(count: int, length: int) -> list[str]:
        return [" ".join(row) for row in words[random.choice(VOCABULARY, (count, length), p=weights)]]

    return texts(size, WORDS_A_PASSAGE), texts(QUERIES, WORDS_A_QUERY)


def digits(number: int, base: int) -> list[int]:
    """A number's digits in a base, last first; two at least, so that no word is a single syllable."""
    found = [number % base]
    while number >= base or len(found) < 2:
        number //= base
        found.append(number % base)
    return found


if __name__ == "__main__":
    run()
