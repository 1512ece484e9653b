"""What does an imported flat index of Wikipedia's kind cost, and does it find what FAISS finds?

    python benchmarks/flat_index.py                                  # 1,000,000 x 768: 4 GB on disk, minutes
    python benchmarks/flat_index.py --vectors 20000 --queries 32     # a quick look

A FAISS file and a corpus are made in the layout of wiki-18 (`e5_Flat.index`, IndexFlatIP; `wiki-18.jsonl` with id and
contents of 100 words) and imported (`stepladder index import`). Then the same queries are searched by

imported     the index that was imported, in a process of its own
served       the same behind `stepladder serve`, in one request of all queries
FAISS        `faiss.read_index` and `search`, which holds all vectors in memory
FAISS mmap   the same with IO_FLAG_MMAP_IFC
imported GPU, FAISS GPU   both with the vectors on one GPU, where FAISS has GPU support

own memory   RssAnon in MB: at most, and before that the libraries and the encoder alone. Mapped files are not in it:
             the system takes their pages back when it needs the room
queries/s    all queries in one batch, by the clock; `CPU ms` is the processor time per query, of all threads. `one` is
             the median of single searches in ms. Encoding of queries is not in it, except for `served`
recall       of the k passages that FAISS finds, the share that this row finds

The vectors are random and of length 1, and so are the queries of the rows without a server. At the rows that the import
compares, they are those of the encoder, a transformer of random weights. The processor may be shared: the rows are
measured one after the other, and the load of the machine is printed with them.
"""

import argparse
import json
import multiprocessing
import os
import re
import struct
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.serve_process import serve_process

Result = TypeVar("Result")
BLOCK, WORDS, SINGLE = 20_000, 100, 8


@dataclass
class Row:
    """What was measured of one way to search."""

    name: str
    opened: float
    most: float
    seconds: float
    processor: float
    one_ms: float | None
    found: list[list[int]] = field(default_factory=list)


# --- what is made ----------------------------------------------------------------------------------------------


def make(folder: Path, count: int, dimensions: int) -> None:
    """The files: an encoder, a corpus, a FAISS index."""
    from stepladder.retrieval.imported.fit_check import SAMPLES
    from stepladder.retrieval.index.dense_config import EncoderConfig
    from stepladder.retrieval.index.encoder import Encoder

    save_encoder(folder / "e5-random", dimensions)
    random = np.random.default_rng(0)
    words = np.array([a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "lmnrst"], dtype=object)
    compared = set(np.unique(np.linspace(0, count - 1, SAMPLES).astype(int)).tolist())
    texts: dict[int, str] = {}
    with (folder / "wiki.jsonl").open("w", encoding="utf-8") as corpus:
        for start in range(0, count, BLOCK):
            drawn = words[random.integers(len(words), size=(min(BLOCK, count - start), WORDS))]
            for row, chosen in enumerate(drawn, start=start):
                contents = f'"Town {row}"\n{" ".join(chosen)}'
                corpus.write(json.dumps({"id": str(row), "contents": contents}) + "\n")
                if row in compared:
                    texts[row] = contents
    encoder = Encoder(EncoderConfig(encoder=str(folder / "e5-random")), device="cpu", dtype="fp32")
    own = dict(zip(texts, encoder.passage_texts(list(texts.values()))))
    with (folder / "e5_Flat.index").open("wb") as file:
        # Written in pieces, since FAISS would hold all vectors: type, dimensions, count, two unused, trained, metric.
        file.write(struct.pack("<4siqqq?i", b"IxFI", dimensions, count, 1 << 20, 1 << 20, True, 0))
        file.write(struct.pack("<Q", count * dimensions))
        for start in range(0, count, BLOCK):
            vectors = unit(random, min(BLOCK, count - start), dimensions)
            for row in range(start, start + len(vectors)):
                if row in own:
                    vectors[row - start] = own[row]
            file.write(vectors.tobytes())
    np.save(folder / "queries.npy", unit(np.random.default_rng(1), 4096, dimensions))


def unit(random: np.random.Generator, count: int, dimensions: int) -> Any:
    """Random vectors of length 1."""
    vectors = random.standard_normal((count, dimensions), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def save_encoder(folder: Path, width: int) -> None:
    """A transformer of one layer and random weights."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    letters = [chr(code) for code in range(33, 127)]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{each}" for each in letters)]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    heads = max(1, width // 64)
    sizes = {"hidden_size": width, "intermediate_size": width, "num_attention_heads": heads, "num_hidden_layers": 1}
    config = BertConfig(vocab_size=len(vocabulary), max_position_embeddings=64, initializer_range=0.5, **sizes)
    BertModel(config).save_pretrained(folder)


# --- what is measured, each in a process of its own ------------------------------------------------------------


def bring_in(folder: Path) -> tuple[float, float]:
    """Seconds and own memory of the import."""
    from stepladder.retrieval.imported.faiss_import import import_index

    started = time.perf_counter()
    with Watched() as own:
        encoder = str(folder / "e5-random")
        import_index(folder / "e5_Flat.index", folder / "wiki.jsonl", folder / "index", encoder=encoder, device="cpu")
    return time.perf_counter() - started, own.most


def imported(folder: Path, queries: int, k: int, name: str) -> Row:
    """The imported index."""
    from stepladder.retrieval.index.build import open_index

    index: Any = open_index(folder / "index", device="cuda:0" if name == "imported GPU" else "cpu")
    return searched(name, folder, queries, k, index.vectors.search)


def faiss_alone(folder: Path, queries: int, k: int, name: str) -> Row:
    """FAISS, without anything of ours."""
    import faiss

    flags = faiss.IO_FLAG_MMAP_IFC if name == "FAISS mmap" else 0
    index = faiss.read_index(str(folder / "e5_Flat.index"), flags)
    if name == "FAISS GPU":
        index = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index)
    return searched(name, folder, queries, k, index.search)


def has_gpu() -> bool:
    """Whether FAISS can search on a GPU."""
    import faiss

    return hasattr(faiss, "GpuIndexFlat") and faiss.get_num_gpus() > 0


def searched(name: str, folder: Path, queries: int, k: int, search: Callable[[Any, int], Any]) -> Row:
    """All queries at once, and some alone."""
    asked = np.load(folder / "queries.npy")[:queries]
    search(asked[:1], k)  # the pages of the file are in the system's cache
    with Watched() as own:
        opened = own.most
        started, before = time.perf_counter(), time.process_time()
        found = search(asked, k)[1]
        seconds, processor = time.perf_counter() - started, time.process_time() - before
        alone = []
        for query in asked[:SINGLE]:
            started = time.perf_counter()
            search(query[None], k)
            alone.append(1000 * (time.perf_counter() - started))
    return Row(name, opened, own.most, seconds, processor, float(np.median(alone)), found.tolist())


def served(folder: Path, queries: int, k: int) -> Row:
    """The server, asked as Search-R1 asks it: all queries in one request."""
    texts = [f"query {number} of a town" for number in range(queries)]
    body = json.dumps({"queries": texts, "topk": k, "return_scores": True}).encode()
    with serve_process(str(folder / "index"), "--cache-entries", "0") as (url, process), Watched(process.pid) as own:
        opened = own.most
        started, before = time.perf_counter(), processor_time(process.pid)
        request = urllib.request.Request(f"{url}/retrieve", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=3600) as reply:
            results = json.load(reply)["result"]
        seconds, processor = time.perf_counter() - started, processor_time(process.pid) - before
    found = [[int(hit["document"]["id"]) for hit in hits] for hits in results]
    return Row("served", opened, own.most, seconds, processor, None, found)


def reference(folder: Path, queries: int, k: int) -> list[list[int]]:
    """What FAISS finds for the texts that the server is asked for."""
    import faiss

    from stepladder.retrieval.index.build import open_index

    encoder: Any = open_index(folder / "index").encoder  # type: ignore[attr-defined]
    vectors = encoder.queries([f"query {number} of a town" for number in range(queries)])
    index = faiss.read_index(str(folder / "e5_Flat.index"), faiss.IO_FLAG_MMAP_IFC)
    found: list[list[int]] = index.search(vectors, k)[1].tolist()
    return found


def processor_time(process: int) -> float:
    """Seconds of a process and its threads on the processor."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Watched:
    """Looks at the own memory of a process, this one by default, and keeps the most of it."""

    def __init__(self, process: int | None = None) -> None:
        self._status = Path(f"/proc/{process or 'self'}/status")
        self.most = self._now()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _now(self) -> float:
        found = re.search(r"RssAnon:\s+(\d+) kB", self._status.read_text(encoding="utf-8"))
        assert found, "Linux does not tell RssAnon"
        return 1024.0 * int(found[1])

    def _look(self) -> None:
        while not self._over.wait(0.05):
            self.most = max(self.most, self._now())

    def __enter__(self) -> "Watched":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def apart(work: Callable[[], Result]) -> Result:
    """Do some work in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work).result()


def recall(expected: list[list[int]], found: list[list[int]]) -> float:
    """The share of what was expected that was found."""
    hits = sum(len(set(one) & set(other)) for one, other in zip(expected, found, strict=True))
    return hits / sum(map(len, expected))


def main() -> None:
    """Make the files, measure, and remove them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--dimensions", type=int, default=768)
    parser.add_argument("--queries", type=int, default=256)
    parser.add_argument("-k", type=int, default=32)
    parser.add_argument("--folder", type=Path, help="Where the files are made, and removed afterwards.")
    arguments = parser.parse_args()
    console, queries, k = Console(width=120), arguments.queries, arguments.k
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        apart(partial(make, folder, arguments.vectors, arguments.dimensions))
        sizes = {each.name: each.stat().st_size / 1e6 for each in folder.iterdir() if each.is_file()}
        console.print(", ".join(f"{each} {size:,.0f} MB" for each, size in sorted(sizes.items())), highlight=False)
        seconds, most = apart(partial(bring_in, folder))
        small = sum(each.stat().st_size for each in (folder / "index").iterdir()) / 1e6
        text = f"imported in {seconds:.1f} s, own memory at most {most / 1e6:,.0f} MB, index folder {small:.1f} MB"
        console.print(text, highlight=False)
        ways = [(imported, "imported"), (faiss_alone, "FAISS"), (faiss_alone, "FAISS mmap")]
        if apart(has_gpu):
            ways += [(imported, "imported GPU"), (faiss_alone, "FAISS GPU")]
        rows = [(apart(partial(way, folder, queries, k, name)), os.getloadavg()[0]) for way, name in ways]
        rows.append((served(folder, queries, k), os.getloadavg()[0]))
        expected = {row.name: row.found for row, _ in rows}["FAISS"]
        by_text = apart(partial(reference, folder, queries, k))
    table = Table(title=f"{arguments.vectors:,} x {arguments.dimensions}, {queries} queries, k = {k}")
    for heading in ("", "own MB when open", "own MB at most", "queries/s", "CPU ms", "one, ms", f"recall@{k}", "load"):
        table.add_column(heading, justify="right")
    for row, load in rows:
        share = recall(by_text if row.name == "served" else expected, row.found)
        one = "" if row.one_ms is None else f"{row.one_ms:,.0f}"
        memory = (f"{row.opened / 1e6:,.0f}", f"{row.most / 1e6:,.0f}")
        speed = (f"{queries / row.seconds:,.1f}", f"{1000 * row.processor / queries:,.0f}")
        table.add_row(row.name, *memory, *speed, one, f"{share:.4f}", f"{load:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
