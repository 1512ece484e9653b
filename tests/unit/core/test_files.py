"""Files and folders appear whole or not at all, whatever stops the writing."""

import errno
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stepladder.core.io.files import WriteError, atomic_file, atomic_folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def leftover(folder: Path, name: str, pid: int, ending: str = "partial", host: str = platform.node()) -> Path:
    """What a process that was killed while writing `name` leaves behind."""
    return folder / f".{name}.{re.sub('[^A-Za-z0-9]', '', host)}-{pid}-0123abcd.{ending}"


@pytest.fixture
def dead_pid() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "new" / "notes.txt"
    with atomic_file(path) as file:
        file.write("one\ntwo é\n")
        assert not path.exists()
    assert path.read_bytes() == "one\ntwo é\n".encode()
    assert names(path.parent) == ["notes.txt"]


def test_a_binary_file(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "data.bin", "wb") as file:
        file.write(b"\r\n\xff")
    assert (tmp_path / "data.bin").read_bytes() == b"\r\n\xff"


def test_who_may_read_a_folder_may_read_its_files(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "policy") as fresh:
        fresh.chmod(0o750)
        (fresh / "inner").mkdir()
        private, script = fresh / "inner" / "model.safetensors", fresh / "run"
        for file, mode in ((private, 0o600), (script, 0o700)):
            file.touch()
            file.chmod(mode)
    assert (tmp_path / "policy" / "inner" / "model.safetensors").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "policy" / "run").stat().st_mode & 0o777 == 0o740


def test_a_folder_replaces_the_older_one(tmp_path: Path) -> None:
    path = tmp_path / "index"
    for content in ("old", "new"):
        with atomic_folder(path) as folder:
            (folder / content).write_text(content)
            (folder / "inner").mkdir()
            (folder / "inner" / "deep").write_text(content)
    assert names(path) == ["inner", "new"]
    assert (path / "inner" / "deep").read_text() == "new"
    assert names(tmp_path) == ["index"]


@pytest.mark.parametrize("failure", [ValueError("no"), KeyboardInterrupt(), FileNotFoundError(2, "no corpus")])
def test_a_failure_keeps_what_was_there(tmp_path: Path, failure: BaseException) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").write_text("old")
    (tmp_path / "file").write_text("old")

    def write_half_a_folder() -> None:
        with atomic_folder(tmp_path / "folder") as folder:
            (folder / "half").write_text("half")
            raise failure

    def write_half_a_file() -> None:
        with atomic_file(tmp_path / "file") as file:
            file.write("half")
            raise failure

    for write in (write_half_a_folder, write_half_a_file):
        with pytest.raises(type(failure)):
            write()

    assert names(tmp_path) == ["file", "folder"]
    assert names(tmp_path / "folder") == ["old"]
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize(
    "full",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("5000 requested and 1024 written"),  # what NumPy says about a full disk
        Exception("Error while serializing: I/O error: No space left on device (os error 28)"),  # safetensors
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"),  # PyTorch
        RuntimeError(
            "Error in write_HNSW: write error in ix/vectors.faiss: 989 != 6000 (No space left on device)"
        ),  # FAISS
    ],
)
def test_a_full_disk_is_explained(tmp_path: Path, full: Exception) -> None:
    with pytest.raises(WriteError) as caught, atomic_folder(tmp_path / "ix", what="index"):
        raise full
    message = str(caught.value)
    assert message.startswith(f"could not write the index {tmp_path / 'ix'}: ")
    assert (getattr(full, "strerror", None) or str(full)) in message
    assert "MB are free on that disk" in message
    assert message.endswith("No partial files remain.")
    assert names(tmp_path) == []


def test_other_errors_of_libraries_are_not_called_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="out of memory"), atomic_folder(tmp_path / "ix", what="index"):
        raise RuntimeError("CUDA out of memory")


def test_a_failed_rename_puts_the_old_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ix").mkdir()
    (tmp_path / "ix" / "old").write_text("old")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    message = r"Input/output error.*The previous content is unchanged"
    with pytest.raises(WriteError, match=message), atomic_folder(tmp_path / "ix") as folder:
        (folder / "new").write_text("new")
    assert names(tmp_path) == ["ix"]
    assert names(tmp_path / "ix") == ["old"]


def test_something_else_in_the_way_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    with pytest.raises(WriteError, match="a file with that name exists"), atomic_folder(tmp_path / "file"):
        pass
    with pytest.raises(WriteError, match="a folder with that name exists"), atomic_file(tmp_path / "folder"):
        pass
    with pytest.raises(WriteError, match="could not write"), atomic_file(tmp_path / "file" / "below"):
        pass
    assert (tmp_path / "file").read_text() == "mine"


def test_a_place_that_cannot_be_is_explained(tmp_path: Path) -> None:
    for write in (atomic_file, atomic_folder):
        with pytest.raises(WriteError, match="File name too long"), write(tmp_path / ("x" * 300)):
            pass


def test_leftovers_of_killed_processes_are_cleared_and_others_left(tmp_path: Path, dead_pid: int) -> None:
    leftover(tmp_path, "ix", dead_pid).mkdir()
    leftover(tmp_path, "ix", dead_pid, "replaced").mkdir()
    leftover(tmp_path, "notes", dead_pid).write_text("half")
    kept = {
        leftover(tmp_path, "ix", os.getpid()),  # being written right now
        leftover(tmp_path, "ix", dead_pid, host="elsewhere"),  # another machine on a shared disk
        leftover(tmp_path, "other", dead_pid),  # somebody else's place
    }
    for path in kept:
        path.mkdir()
    (tmp_path / "ix").mkdir()

    with atomic_folder(tmp_path / "ix"):
        pass
    with atomic_file(tmp_path / "notes"):
        pass

    assert set(tmp_path.iterdir()) == kept | {tmp_path / "ix", tmp_path / "notes"}


def test_a_folder_lost_between_the_two_renames_is_put_back(tmp_path: Path, dead_pid: int) -> None:
    stranded = leftover(tmp_path, "ix", dead_pid, "replaced")
    stranded.mkdir()
    (stranded / "old").write_text("old")

    with pytest.raises(ValueError, match="no"), atomic_folder(tmp_path / "ix"):
        raise ValueError("no")

    assert names(tmp_path) == ["ix"]
    assert names(tmp_path / "ix") == ["old"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "big-disk").mkdir()
    (tmp_path / "ix").symlink_to(tmp_path / "big-disk")
    with atomic_folder(tmp_path / "ix") as folder:
        (folder / "new").write_text("new")
    assert names(tmp_path / "big-disk") == ["new"]
    assert (tmp_path / "ix").is_symlink()
