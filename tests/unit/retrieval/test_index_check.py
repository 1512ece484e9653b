"""Files of an index that changed after it was built: found when it is opened, or else by `index check`."""

import json
from pathlib import Path

import pytest

from stepladder.core.trace import Passage
from stepladder.retrieval.index.build import build_index, open_index
from stepladder.retrieval.index.manifest import IndexFolderError, check_index, index_info
from tests.support.shell import (
    Shell,
    shell as shell,  # a fixture
)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """3 MB of passages: more than is read of a file when an index is opened."""
    text = " ".join(f"word{number}" for number in range(400))
    build_index((Passage(str(number), "Orm", f"{number} {text}") for number in range(1000)), tmp_path / "index")
    return tmp_path / "index"


def flip(file: Path, position: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(position)
        (byte,) = opened.read(1)
        opened.seek(position)
        opened.write(bytes([byte ^ 1]))


def test_a_whole_index_is_as_it_was_built(index: Path, shell: Shell) -> None:
    files = {each.name for each in index.iterdir()} - {"index.json"}
    assert set(check_index(index).files) == files
    assert f"{len(files)} files" in shell("index", "check", index)
    assert shell.json("index", "check", index)["damaged"] == []


def test_every_changed_byte_is_found_and_named(index: Path, shell: Shell) -> None:
    for name, size in index_info(index).files.items():
        if name == "checksums.json":
            continue
        flip(index / name, size // 3)
        told = shell("index", "check", index, code=2)
        assert f"{name} has other content than was written. Build one with:" in " ".join(told.split())
        flip(index / name, size // 3)
    check_index(index)


def test_all_damaged_files_are_named_at_once(index: Path) -> None:
    (index / "vocab.index.json").unlink()
    flip(index / "passages.jsonl", 5)
    with pytest.raises(IndexFolderError, match=r"passages.jsonl has other content.*; vocab.index.json is missing"):
        check_index(index)


def test_opening_finds_what_it_can_without_reading_everything(index: Path) -> None:
    passages = index / "passages.jsonl"
    for position in (0, 10, passages.stat().st_size - 5):
        flip(passages, position)
        with pytest.raises(IndexFolderError, match=r"is damaged: passages\.jsonl has other content"):
            open_index(index)
        flip(passages, position)
    open_index(index)


def test_every_changed_byte_of_the_manifest_is_found(index: Path) -> None:
    manifest = index / "index.json"
    before, information = manifest.read_bytes(), index_info(index)
    for position in range(len(before) - 1):  # not the newline at the end
        flip(manifest, position)
        for use in (index_info, check_index):
            try:
                found = use(index)
            except IndexFolderError:
                continue
            # Blanks, which change nothing, or another spelling of the same value.
            assert found == information, before[position - 20 : position + 20]
        manifest.write_bytes(before)
    manifest.write_text(before.decode().replace('"Orm', '"Omr').replace('"passages": 1000', '"passages": 1001'))
    for opened in (open_index, check_index):
        with pytest.raises(IndexFolderError, match=r"is damaged: index.json has other content than was written"):
            opened(index)


def test_an_index_of_an_older_version_opens(index: Path) -> None:
    manifest = json.loads((index / "index.json").read_text())
    del manifest["manifest_checksum"]
    (index / "index.json").write_text(json.dumps(manifest))
    assert len(open_index(index).search(["word1"], 3)[0]) == 3
    check_index(index)


@pytest.mark.parametrize("content", [None, "", "[]", '{"passages.jsonl": 5}'])
def test_damaged_checksums_are_damage_too(index: Path, content: str | None) -> None:
    if content is None:
        (index / "checksums.json").unlink()
    else:
        (index / "checksums.json").write_text(content)
    for use in (open_index, check_index):
        with pytest.raises(IndexFolderError, match=r"is damaged: checksums.json: .*Build one with"):
            use(index)


def test_what_is_no_index_has_no_files_to_check(tmp_path: Path, shell: Shell) -> None:
    assert "no such folder" in shell("index", "check", tmp_path / "none", code=2)
