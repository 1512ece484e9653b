"""What memory does `stepladder index build` take over a folder of documents?

    python benchmarks/document_folder.py                     # 2 GB
    python benchmarks/document_folder.py --size 100MB        # a quick look
    python benchmarks/document_folder.py --folder DIR             # is kept

A folder of this size is made: one text file of a tenth of it, text files of 200 kB, and in every twentieth place a PDF
of 40 pages, an HTML page and a CSV table. Their words follow Zipf's law over a vocabulary of 100,000, with a number in
every sentence. Then `stepladder index build` runs on it as a process of its own.

own memory   RssAnon in MB, the largest of ten samples a second: the memory that cannot be given back. While reading it
             is that of one document and a table of hashes (up to 256 MB); while indexing that of the limit (--memory)
             and of the vocabulary, about 200 bytes per term: up to a million of the terms here are numbers
resident     the same with mapped files, whose pages the system takes back when it needs the room (VmHWM)
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from stepladder.core.memory import parse_bytes
from tests.support.document_files import write_pdf

FILE_BYTES, VOCABULARY, SENTENCE, PAGES, LINES = 200_000, 100_000, 12, 40, 50


class Text:
    """Sentences of random words."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        letters = np.array(list("abcdefghijklmnoprstuvw"))
        lengths = self.random.integers(3, 11, VOCABULARY)
        self.words = np.array(["".join(self.random.choice(letters, length)) for length in lengths])
        weights = 1 / np.arange(1, VOCABULARY + 1)
        self.chances = np.cumsum(weights / weights.sum())

    def sentences(self) -> Iterator[str]:
        """Endless sentences."""
        while True:
            chosen = np.searchsorted(self.chances, self.random.random((1000, SENTENCE)))
            numbers = self.random.integers(0, 10**6, 1000)
            for row, number in zip(self.words[np.minimum(chosen, VOCABULARY - 1)].tolist(), numbers.tolist()):
                yield f"{' '.join(row).capitalize()} {number}."

    def lines(self, size: int) -> Iterator[str]:
        """Sentences of about `size` bytes."""
        written = 0
        for sentence in self.sentences():
            yield sentence
            written += len(sentence) + 1
            if written >= size:
                return


def write_text(text: Text, path: Path, size: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in text.lines(size))


def write_html(text: Text, path: Path, size: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("<title>A page</title>")
        for number, line in enumerate(text.lines(size)):
            file.write(f"<h2>Part {number}</h2>" if number % 20 == 0 else f"<p>{line}</p>\n")


def write_table(text: Text, path: Path, size: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("name,description\n")
        file.writelines(f"Thing {number},{line}\n" for number, line in enumerate(text.lines(size)))


def write_pages(text: Text, path: Path, _size: int) -> None:
    sentences = text.sentences()
    write_pdf(path, [[next(sentences) for _ in range(LINES)] for _ in range(PAGES)])


KINDS: dict[int, tuple[str, Callable[[Text, Path, int], None]]] = {
    5: (".pdf", write_pages),
    10: (".html", write_html),
    15: (".csv", write_table),
}


def fill(folder: Path, size: int) -> dict[str, int]:
    """Write documents of about `size` bytes; returns the number of files by type."""
    text, counts = Text(), {".txt": 1}
    write_text(text, folder / "large.txt", size // 10)
    written, number = (folder / "large.txt").stat().st_size, 0
    while written < size:
        suffix, write = KINDS.get(number % 20, (".txt", write_text))
        path = folder / f"{number // 1000:04}" / f"{number:07}{suffix}"
        path.parent.mkdir(exist_ok=True)
        write(text, path, FILE_BYTES)
        written += path.stat().st_size
        counts[suffix] = counts.get(suffix, 0) + 1
        number += 1
    return counts


def status(pid: int) -> dict[str, float]:
    """The memory of a process in MB, by its names in /proc."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    pairs = (line.split() for line in lines if line.startswith(("RssAnon:", "VmHWM:")))
    return {name.rstrip(":"): int(value) / 1000 for name, value, _ in pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="2GB", help="size of the folder")
    parser.add_argument("--memory", default="1GB", help="memory limit of the build")
    parser.add_argument("--kind", default="bm25", help="index kind")
    parser.add_argument("--folder", type=Path, help="where to write; by default a temporary folder")
    options = parser.parse_args()
    with ExitStack() as temporary:
        base = options.folder or Path(temporary.enter_context(tempfile.TemporaryDirectory()))
        (base / "documents").mkdir(parents=True)
        counts = fill(base / "documents", parse_bytes(options.size))
        print(f"{options.size} of documents: {', '.join(f'{count:,} {name}' for name, count in counts.items())}")
        command = [sys.executable, "-m", "stepladder", "index", "build", base / "documents", "--out", base / "index"]
        started, most = time.monotonic(), dict[str, float]()
        settings = ["--kind", options.kind, "--memory", options.memory, "--json"]
        with subprocess.Popen([*command, *settings], stdout=subprocess.PIPE, text=True) as build:
            while build.poll() is None:
                now = status(build.pid)
                reading = not (base / ".index.unfinished" / "unfinished" / "read.json").exists()
                now["reading" if reading else "indexing"] = now.get("RssAnon", 0)
                for name, value in now.items():
                    most[name] = max(most.get(name, 0), value)
                time.sleep(0.1)
            assert build.stdout is not None
            output = build.stdout.read()
        if build.returncode:
            sys.exit(f"the build failed with status {build.returncode}")
        seconds, info = time.monotonic() - started, json.loads(output)
        print(f"{info['passages']:,} passages, index of {sum(info['files'].values()) / 1e6:,.0f} MB, {seconds:,.0f} s")
        print(f"skipped: {info['left_out'] or 'nothing'}")
        print(f"own memory at most {most['reading']:,.0f} MB while reading, {most['indexing']:,.0f} MB while indexing")
        print(f"resident at most {most['VmHWM']:,.0f} MB")


if __name__ == "__main__":
    main()
