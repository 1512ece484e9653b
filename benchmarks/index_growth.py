"""What does an index cost as the corpus grows? Time, memory and disk of building and searching, by kind and size.

    python benchmarks/index_growth.py --out growth.json
    python benchmarks/index_growth.py --sizes 1000,10000 --kinds bm25,flat --dense-up-to 1000

Every index is built in one fresh process, from a JSONL file as a user's would be, and searched in another:

build       seconds, and of them reading the corpus, encoding, and the rest; processor time, of all threads together
peak        the most memory that was resident while building; `own` without files that are mapped, which the system
            takes back when it needs the room (looked at 20 times a second)
disk        all files of the index
opened      own memory of the process that searches, after opening; `searched` after 200 searches; an encoder is in it
p50, p99    milliseconds of a single search, k = 3, over 200 queries; the files are still in the system's cache
queries/s   in batches of 64
recall      of the 10 passages that `flat` finds, the share that this kind finds

The text is made up: words drawn by Zipf's law from a million, 100 a passage as in wiki18, and queries of 10 words of a
passage. Atlas worlds put together would repeat their names, and their sentences have too few different words. Encoders
read 128 tokens of a passage, about what 100 English words are; made-up words would come in more pieces.

The last rows are a PROJECTION to wiki18, on a straight line through the two largest sizes measured, where one of them
has 100,000 passages or more (falling lines are taken as level): nothing of that size was built. BM25 is built with
400 MB allowed, so that the peaks of large corpora differ by what is not bounded. On a CPU embeddings are made of up to
10,000 passages unless told otherwise, since encoding takes most of the time. Memory is read from /proc, so this runs on
Linux.
"""

import argparse
import json
import multiprocessing
import os
import platform
import re
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.retrieval.index.build import build_index, open_index

SIZES, KINDS = "10000,100000,1000000", "bm25,flat,hnsw,ivfpq,bm25+hnsw"
DENSE_ON_CPU = 10_000
WIKI18, FEWEST_TO_PROJECT = 21_015_324, 100_000
#: What building BM25 may take. 100,000 passages reach it, so that lines through larger sizes show what grows beside it.
BM25_MEMORY = 400_000_000
VOCABULARY, WORDS_A_PASSAGE, WORDS_A_QUERY, TOKENS = 1_000_000, 100, 10, 128
QUERIES, K, BATCHES, BATCH, RECALL_AT = 200, 3, 10, 64, 10

_DRAWN_OUT = ("opened", "searched", "p50_ms", "p99_ms")

Result = TypeVar("Result")


@dataclass(frozen=True)
class Building:
    """What building took: seconds and bytes."""

    build_s: float
    reading_s: float
    encoding_s: float
    rest_s: float
    processor_s: float
    peak: float
    peak_own: float
    disk: float


@dataclass(frozen=True)
class Searching:
    """What searching took: bytes, milliseconds, and what was found."""

    opened: float
    searched: float
    p50_ms: float
    p99_ms: float
    queries_per_s: float
    found: list[list[str]]


@dataclass(frozen=True)
class Row:
    """An index of a kind and size."""

    kind: str
    passages: int
    building: Building
    searching: Searching
    recall: float | None = None
    #: How busy the machine was when building began.
    load: float = 0.0


# --- in processes of their own --------------------------------------------------------------------------------


def build(corpus: Path, folder: Path, kind: str) -> Building:
    """Build an index and watch what it takes."""
    settings: dict[str, Any] = {"memory": BM25_MEMORY} if kind == "bm25" else {"max_tokens": TOKENS}
    stages, own = Stages(), OwnMemory()
    started, processor = time.perf_counter(), time.process_time()
    with own:
        info = build_index(corpus, folder, kind, progress=stages, **settings)
    seconds = time.perf_counter() - started
    reading, encoding = stages.seconds["Reading the corpus (kB)"], stages.seconds["Encoding passages"]
    return Building(
        build_s=seconds,
        reading_s=reading,
        encoding_s=encoding,
        rest_s=seconds - reading - encoding,
        processor_s=time.process_time() - processor,
        peak=memory("VmHWM"),
        peak_own=own.peak,
        disk=info.size,
    )


def search(folder: Path, queries: Sequence[str], device: str) -> Searching:
    """Search an index, one query at a time and in batches."""
    retriever = open_index(folder, device=device)
    opened = memory("RssAnon")
    alone, many = queries[:QUERIES], queries[QUERIES:]
    milliseconds = []
    for query in alone:
        started = time.perf_counter()
        retriever.search([query], K)
        milliseconds.append(1000 * (time.perf_counter() - started))
    searched = memory("RssAnon")
    started = time.perf_counter()
    for start in range(0, len(many), BATCH):
        retriever.search(many[start : start + BATCH], K)
    seconds = time.perf_counter() - started
    found = retriever.search(alone, RECALL_AT)
    retriever.close()
    p50, p99 = np.percentile(milliseconds, (50, 99))
    ids = [[passage.id for passage in each] for each in found]
    return Searching(opened, searched, float(p50), float(p99), len(many) / seconds, ids)


class Stages:
    """A `Watch` that adds up the seconds of each thing that was done."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._last = time.perf_counter()

    def __call__(self, doing: str, done: int, total: int) -> None:  # noqa: ARG002
        now = time.perf_counter()
        if done:  # before the first of them there was something else to do
            self.seconds[doing] += now - self._last
        self._last = now


class OwnMemory:
    """Looks at the memory of this process that is not of mapped files, and keeps the most of it."""

    def __init__(self) -> None:
        self.peak = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(0.05):
            self.peak = max(self.peak, memory("RssAnon"))

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def memory(name: str) -> float:
    """Bytes of this process, by the name that Linux gives them."""
    # VmHWM and not ru_maxrss, which begins at what the parent had when it started this process.
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert found, f"Linux does not tell {name}"
    return 1024.0 * int(found[1])


# --- the corpus -----------------------------------------------------------------------------------------------


def made_up_passages(count: int) -> Iterator[str]:
    """Lines of a corpus. Frequent words are short, as in any language; stop words are left out."""
    random = np.random.default_rng(0)
    syllables = np.array([a + b for a in "bdfgklmnprstvz" for b in "aeiou"], dtype=object)
    number = np.arange(len(syllables), VOCABULARY + len(syllables))  # from two syllables on
    words = syllables[number % len(syllables)]
    while (number := number // len(syllables)).any():
        words = np.where(number, words + syllables[number % len(syllables)], words)
    weights = np.cumsum(1 / np.arange(10, VOCABULARY + 10))
    for start in range(0, count, 1000):
        drawn = np.searchsorted(weights, weights[-1] * random.random((1000, WORDS_A_PASSAGE)))
        for position, row in enumerate(words[drawn][: count - start], start=start):
            yield json.dumps({"id": str(position), "title": " ".join(row[:2]), "text": " ".join(row)}) + "\n"


def queries_of(corpus: Path, size: int) -> list[str]:
    """Words of passages that are spread over the corpus."""
    random = np.random.default_rng(1)
    chosen = random.integers(size, size=QUERIES + BATCHES * BATCH).tolist()
    wanted = set(chosen)
    with corpus.open(encoding="utf-8") as lines:
        texts = {position: json.loads(line)["text"] for position, line in enumerate(lines) if position in wanted}
    return [" ".join(random.choice(texts[each].split(), WORDS_A_QUERY, replace=False)) for each in chosen]


# --- the whole ------------------------------------------------------------------------------------------------


def apart(work: Callable[[], Result]) -> Result:
    """Do some work in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work).result()


def measure(
    kinds: Sequence[str], sizes: Sequence[int], dense_up_to: int, device: str, console: Console, kept: "Kept"
) -> list[Row]:
    """All rows, size by size; what a kind refuses is said and left out, and what was kept is not measured again."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        corpus, folder = Path(name) / "corpus.jsonl", Path(name) / "index"
        for size in sorted(sizes):
            wanted = [kind for kind in kinds if kind == "bm25" or size <= dense_up_to]
            if any(kept.row(kind, size) is None for kind in wanted):
                with corpus.open("w", encoding="utf-8") as file:
                    file.writelines(made_up_passages(size))
                queries = queries_of(corpus, size)
            exact = None
            for kind in wanted:
                if row := kept.row(kind, size):
                    rows.append(row)
                    exact = row.searching.found if kind == "flat" else exact
                    continue
                load = os.getloadavg()[0]
                try:
                    building = apart(partial(build, corpus, folder / f"{size}-{kind}", kind))
                except StepladderError as error:
                    console.print(f"{kind} of {size:,} passages was left out: {error}")
                    continue
                searching = apart(partial(search, folder / f"{size}-{kind}", queries, device))
                exact = searching.found if kind == "flat" else exact
                recall = share(exact, searching.found) if exact and kind in ("flat", "hnsw", "ivfpq") else None
                rows.append(Row(kind, size, building, searching, recall, load))
                kept.add(rows[-1])
                console.print(f"{kind}, {size:,} passages: built in {building.build_s:.1f} s")
    return rows


class Kept:
    """The rows so far, in a file, so that a run that was cut off goes on where it was."""

    def __init__(self, file: Path | None, machine: Mapping[str, object]) -> None:
        self._file, self._machine = file, machine
        found = json.loads(file.read_text(encoding="utf-8")) if file and file.exists() else {"measured": []}
        if found.get("machine", machine) != machine:
            raise SystemExit(f"{file} has figures of another machine: choose another --out")
        self.rows = [
            Row(**{**row, "building": Building(**row["building"]), "searching": Searching(**row["searching"])})
            for row in found["measured"]
        ]

    def row(self, kind: str, size: int) -> Row | None:
        """What was measured of a kind and size, if it was."""
        return next((row for row in self.rows if (row.kind, row.passages) == (kind, size)), None)

    def add(self, row: Row) -> None:
        """One more."""
        self.rows.append(row)
        self.write(())

    def write(self, projections: Sequence[Row]) -> None:
        """All figures, into the file."""
        if self._file:
            with atomic_file(self._file) as file:
                figures = {
                    "measured": [asdict(row) for row in self.rows],
                    "projection": [asdict(row) for row in projections],
                }
                json.dump({"machine": self._machine, **figures}, file, indent=1)


def share(exact: list[list[str]], found: list[list[str]]) -> float:
    """How much of the one is in the other."""
    hits = sum(len(set(one) & set(other)) for one, other in zip(exact, found))
    return hits / sum(map(len, exact))


def projected(rows: Sequence[Row], size: int) -> list[Row]:
    """For each kind with two sizes or more, its largest two drawn out to a size in a straight line, if large enough."""
    projections = []
    for kind in dict.fromkeys(row.kind for row in rows):
        last = sorted((row for row in rows if row.kind == kind), key=lambda row: row.passages)[-2:]
        if len(last) < 2 or last[-1].passages < FEWEST_TO_PROJECT:
            continue
        one, two = last

        def at(first: float, second: float, one: Row = one, two: Row = two) -> float:
            return second + max(0.0, second - first) * (size - two.passages) / (two.passages - one.passages)

        building = Building(
            *(at(getattr(one.building, field.name), getattr(two.building, field.name)) for field in fields(Building))
        )
        building = replace(building, build_s=building.reading_s + building.encoding_s + building.rest_s)
        times = {name: at(getattr(one.searching, name), getattr(two.searching, name)) for name in _DRAWN_OUT}
        per_query = at(1 / one.searching.queries_per_s, 1 / two.searching.queries_per_s)
        searching = Searching(**times, queries_per_s=1 / per_query, found=[])
        projections.append(Row(kind, size, building, searching))
    return projections


def show(rows: Sequence[Row], projections: Sequence[Row], console: Console) -> None:
    """The table."""
    table = Table(title="MB = 1,000,000 bytes")
    for heading in ("kind", "passages", "build s", "reading", "encoding", "rest", "processor s", "peak MB", "own MB"):
        table.add_column(heading, justify="right")
    for heading in ("disk MB", "opened MB", "searched MB", "p50 ms", "p99 ms", "queries/s", f"recall@{RECALL_AT}"):
        table.add_column(heading, justify="right")
    for row in (*rows, *projections):
        made, used, drawn = row.building, row.searching, row in projections
        seconds = (made.build_s, made.reading_s, made.encoding_s, made.rest_s, made.processor_s)
        sizes = (made.peak, made.peak_own, made.disk, used.opened, used.searched)
        table.add_row(
            row.kind,
            f"{row.passages:,}" + (" PROJECTION" if drawn else ""),
            *(f"{each:,.1f}" for each in seconds),
            *(f"{each / 1e6:,.0f}" for each in sizes),
            f"{used.p50_ms:,.2f}",
            f"{used.p99_ms:,.2f}",
            f"{used.queries_per_s:,.0f}",
            "" if row.recall is None else f"{row.recall:.3f}",
            style="italic" if drawn else None,
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=SIZES, help=f"passages, {SIZES} unless told otherwise")
    parser.add_argument("--kinds", default=KINDS, help=f"kinds of index, {KINDS} unless told otherwise")
    parser.add_argument("--dense-up-to", type=int, help="embeddings of so many passages at most")
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON; what is in it is not measured again")
    chosen = parser.parse_args()
    import torch  # here, because the processes that build import this file too

    cuda = torch.cuda.is_available()
    sizes = [int(size) for size in chosen.sizes.split(",")]
    dense_up_to = chosen.dense_up_to or (max(sizes) if cuda else DENSE_ON_CPU)
    console = Console(width=None if os.isatty(1) else 200)
    machine = {
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if cuda else None,
    }
    kept = Kept(chosen.out, machine)
    rows = measure(chosen.kinds.split(","), sizes, dense_up_to, "cuda" if cuda else "cpu", console, kept)
    projections = projected(rows, WIKI18)
    show(rows, projections, console)
    kept.write(projections)


if __name__ == "__main__":
    main()
