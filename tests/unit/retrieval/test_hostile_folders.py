"""Corpus folders of unknown origin: links that lead elsewhere and files that never end are skipped and counted."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepladder.retrieval.corpus.reader import read_corpus
from stepladder.retrieval.corpus.tables import CorpusError
from tests.support.shell import Shell, shell

__all__ = ["shell"]


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    """Interrupt a test that waits for a pipe."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one text and many things that are none."""
    private, folder = tmp_path / "private", tmp_path / "corpus"
    for each in (private / "keys", folder / "part"):
        each.mkdir(parents=True)
    (private / "keys" / "key.txt").write_text("A secret.")
    (folder / "part" / "one.txt").write_text("One fact.")
    (folder / "same.txt").symlink_to("part/one.txt")
    (folder / "key.txt").symlink_to(private / "keys" / "key.txt")
    (folder / "sub").symlink_to(private)
    (folder / "gone.txt").symlink_to("nothing.txt")
    (folder / "loop.txt").symlink_to("loop.txt")
    (folder / "zero.txt").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.txt")
    os.mkfifo(folder / "pipe.jsonl")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(folder / "socket.txt"))
    return folder


def test_links_out_of_a_folder_and_special_files_are_skipped_and_counted(
    shell: Shell, tmp_path: Path, folder: Path
) -> None:
    told = shell("index", "build", folder, "--out", tmp_path / "index")
    assert "skipped: 3 links out of the folder, 5 pipes, sockets, devices or broken links" in told
    assert "secret" not in (tmp_path / "index" / "passages.jsonl").read_text()


def test_patterns_follow_no_links_either(folder: Path) -> None:
    corpus = read_corpus(folder / "*" / "*.txt")
    assert [passage.text for passage in corpus] == ["One fact."]
    with pytest.raises(CorpusError, match=r"no file of a known kind, 0 others, 1 links out of the folder;.* cp -rL"):
        read_corpus(folder / "*" / "*" / "*.txt")


def test_a_pipe_is_no_corpus(shell: Shell, tmp_path: Path, folder: Path) -> None:
    told = shell("index", "build", folder / "pipe.jsonl", "--out", tmp_path / "index", code=2)
    assert "pipe.jsonl: not a regular file" in told


def test_a_link_that_the_user_names_is_read(folder: Path) -> None:
    assert [passage.text for passage in read_corpus(folder / "key.txt")] == ["A secret."]
