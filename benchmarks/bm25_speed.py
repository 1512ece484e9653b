"""How fast is BM25? Stepladder's index against plain `bm25s` on the same passages and queries, one thread.

    python benchmarks/bm25_speed.py

The text is made up by a seeded generator: words drawn by Zipf's law, 60 a passage, 8 a query. Both sides search for
the 3 best passages; that they find the same, up to the order of equal scores, is checked in the same run. Stepladder's
index lies on disk: its times include writing the passages when it is built and reading those found, where plain bm25s
stays in memory and gives positions.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import Stemmer
from rich.console import Console
from rich.table import Table

from stepladder.core.trace import Passage
from stepladder.retrieval.index.bm25 import bm25s
from stepladder.retrieval.index.build import build_index, open_index

SIZES = (2_000, 100_000)
QUERIES, K, ROUNDS = 500, 3, 3
VOCABULARY, WORDS_A_PASSAGE, WORDS_A_QUERY = 100_000, 60, 8

Result = TypeVar("Result")


def run() -> None:
    """Measure and print."""
    table = Table("passages", "plain bm25s, build s", "Stepladder, build s")
    for heading in ("plain bm25s, queries/s", "Stepladder, queries/s", "times as fast"):
        table.add_column(heading)
    for size in SIZES:
        table.add_row(f"{size:,}", *measure(size))
    Console().print(table)


def measure(size: int) -> tuple[str, str, str, str, str]:
    """The figures for one size of corpus."""
    texts, queries = made_up_text(size)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "index"
        started = time.perf_counter()
        build_index((Passage(str(i), "", text) for i, text in enumerate(texts)), folder)
        our_build = time.perf_counter() - started
        ours = open_index(folder)

        stemmer = Stemmer.Stemmer("english")

        def tokens(texts: list[str]) -> object:
            return bm25s.tokenize(texts, stopwords="english_plus", stemmer=stemmer, show_progress=False)

        started = time.perf_counter()
        plain = bm25s.BM25(k1=1.2, b=0.75)
        plain.index(tokens(texts), show_progress=False)
        plain_build = time.perf_counter() - started

        our_time, our_results = best_of(lambda: ours.search(queries, K))
        plain_time, (_, plain_scores) = best_of(lambda: plain.retrieve(tokens(queries), k=K, show_progress=False))
    for found, scores in zip(our_results, plain_scores):
        np.testing.assert_allclose(np.array([passage.score for passage in found], dtype=float), scores, rtol=1e-4)
    return (
        f"{plain_build:.1f}",
        f"{our_build:.1f}",
        f"{QUERIES / plain_time:,.0f}",
        f"{QUERIES / our_time:,.0f}",
        f"{plain_time / our_time:.1f}",
    )


def best_of(work: Callable[[], Result]) -> tuple[float, Result]:
    """The least time that the work took in a few rounds, and what it gave."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - started)
    return min(times), result


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
