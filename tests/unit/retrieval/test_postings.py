"""Postings are those of the `bm25s` library to the last bit, whatever memory they were made in."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from stepladder.core.trace import Passage
from stepladder.retrieval.index import postings
from stepladder.retrieval.index.bm25 import BM25Index, bm25s
from stepladder.retrieval.index.postings import PASSAGES, SCORES, STARTS, PostingsWriter

LUCENE = 1.2, 0.75


def made_up(count: int, seed: int = 0) -> list[list[int]]:
    """The terms of passages of 0 to 40 words, some words much more frequent than others; all numbers occur."""
    random = np.random.default_rng(seed)
    drawn = [(random.zipf(1.3, random.integers(0, 41)) % 300).tolist() for _ in range(count)]
    numbers: dict[int, int] = {}
    return [[numbers.setdefault(word, len(numbers)) for word in words] for words in drawn]


def written(folder: Path, passages: list[list[int]], memory: int) -> dict[str, bytes]:
    """The files of the passages' postings."""
    folder.mkdir()
    with PostingsWriter(*LUCENE, folder, memory) as writer:
        for terms in passages:
            writer.add(terms)
        writer.write(folder)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@given(
    st.lists(st.lists(st.integers(0, 5), max_size=8), min_size=1, max_size=12).filter(any),
    st.sampled_from([0.0, 0.9, 1.2]),
    st.sampled_from([0.0, 0.4, 1.0]),
)
def test_postings_are_those_of_the_library(words: list[list[int]], k1: float, b: float) -> None:
    numbers: dict[int, int] = {}
    passages = [[numbers.setdefault(word, len(numbers)) for word in each] for each in words]
    with PostingsWriter(k1, b) as writer:
        for terms in passages:
            writer.add(terms)
        starts, found, scores = writer.in_memory()
    library = bm25s.BM25(k1=k1, b=b, method="lucene", csc_backend="numpy")
    library.index((passages, numbers), create_empty_token=False, show_progress=False)
    np.testing.assert_array_equal(starts, library.scores["indptr"])
    np.testing.assert_array_equal(found, library.scores["indices"])
    np.testing.assert_allclose(scores, library.scores["data"], rtol=1e-6)


def test_the_files_do_not_depend_on_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postings, "_MIN_BLOCK", 50)  # runs and pieces of a few passages
    passages = made_up(100)
    first = written(tmp_path / "0", passages, memory=0)
    assert set(first) == {STARTS, PASSAGES, SCORES}  # and nothing temporary
    assert all(written(tmp_path / str(memory), passages, memory) == first for memory in (10_000, 50_000, 10**9))

    with PostingsWriter(*LUCENE) as writer:
        for terms in passages:
            writer.add(terms)
        starts, found, scores = writer.in_memory()
    on_disk = {name: np.load(tmp_path / "0" / name) for name in first}
    for name, array in ((STARTS, starts), (PASSAGES, found), (SCORES, scores)):
        assert on_disk[name].dtype == array.dtype
        np.testing.assert_array_equal(on_disk[name], array)
    assert starts.dtype == np.int64  # 32 bits would not do for a large corpus


def test_runs_are_removed_when_building_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postings, "_MIN_BLOCK", 50)

    def fail() -> None:
        with PostingsWriter(*LUCENE, tmp_path, memory=0) as writer:
            for terms in made_up(20):
                writer.add(terms)
            assert list(tmp_path.rglob("run-*"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_build_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "index" / "runs").mkdir(parents=True)
    (tmp_path / "index" / "runs" / "run-7.npy").touch()
    BM25Index.build([Passage("a", "one", "two")], tmp_path / "index")
    assert not (tmp_path / "index" / "runs").exists()


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    BM25Index.build([Passage("a", "one", "two")], tmp_path, progress=lambda *each: told.append(each))
    assert told == [
        ("Indexing words", 0, 1),
        ("Indexing words", 1, 1),
        ("Writing postings", 0, 2),
        ("Writing postings", 2, 2),
    ]


def test_the_library_reads_the_files(tmp_path: Path) -> None:
    BM25Index.build([Passage("a", "", "one two"), Passage("b", "", "two three two")], tmp_path)
    library = bm25s.BM25.load(tmp_path, mmap=True)
    found, _ = library.retrieve([["two"]], k=2, show_progress=False)
    assert found.tolist() == [[1, 0]]


BUILD = """
import re, sys
from pathlib import Path
import numpy as np
from stepladder.retrieval.index.postings import PostingsWriter

def peak():  # ru_maxrss would count what the parent had before it started this process
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

batch = (np.random.default_rng(0).zipf(1.3, (1000, 50)) % 50_000).tolist()
before = peak()
with PostingsWriter(1.2, 0.75, Path(sys.argv[1]), memory=40_000_000) as writer:
    for _ in range(200):
        for terms in batch:
            writer.add(terms)
    writer.write(Path(sys.argv[1]))
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is asked for as on Linux")
def test_memory_is_bounded(tmp_path: Path) -> None:
    """200,000 passages of 50 terms: lists of their numbers take 80 MB, the library takes 300 MB."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert int(done.stdout) < 70_000_000
