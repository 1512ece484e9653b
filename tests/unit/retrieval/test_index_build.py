"""Index folders are built whole or not at all, know what they hold, and say what is wrong with them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepladder.core.errors import StepladderError, UnknownName
from stepladder.core.io.files import WriteError
from stepladder.core.trace import Passage
from stepladder.retrieval.base import check_retriever
from stepladder.retrieval.corpus.tables import CorpusError
from stepladder.retrieval.index.bm25 import BM25Index
from stepladder.retrieval.index.build import build_index, open_index
from stepladder.retrieval.index.manifest import INDEX_VERSION, IndexFolderError, index_info

PASSAGES = tuple(Passage(f"p{i}", f"Town {i}", f"Town {i} lies on river number {i % 7}.") for i in range(50))


def make(folder: Path) -> Path:
    build_index(PASSAGES, folder)
    return folder


def edit_manifest(folder: Path, **changes: object) -> None:
    path = folder / "index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "manifest_checksum": None, **changes}))


def test_from_a_corpus_file_to_results(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(
        '{"id": "a", "contents": "\\"Orla\\"\\nA city on the Ven."}\n'
        '{"id": "b", "contents": "\\"Ven\\"\\nA river with bridges."}\n'
    )
    built = build_index(corpus, tmp_path / "ix")
    with_bridge, with_both = open_index(tmp_path / "ix").search(["bridge", "ven"], k=2)
    assert [passage.id for passage in with_bridge] == ["b"]
    assert [passage.id for passage in with_both] == ["b", "a"]
    assert built.source == "corpus.jsonl"
    assert built.passages == 2


def test_an_opened_index_keeps_the_contract_and_equals_one_in_memory(tmp_path: Path) -> None:
    index = open_index(make(tmp_path / "ix"))
    queries = ["Which towns lie on river number 3?", "town 12", "rivers"]
    check_retriever(index, queries)
    assert index.search(queries, 10) == BM25Index.from_passages(PASSAGES).search(queries, 10)


def test_the_manifest_tells_what_the_index_is(tmp_path: Path) -> None:
    built = build_index(PASSAGES, tmp_path / "ix", k1=0.9, source="towns")
    info = index_info(tmp_path / "ix")
    assert info == built
    assert (info.kind, info.passages, info.source) == ("bm25", 50, "towns")
    assert (info.settings["k1"], info.settings["b"]) == (0.9, 0.75)
    assert str(info.settings["library"]).startswith("bm25s ")
    assert info.size == sum(f.stat().st_size for f in (tmp_path / "ix").iterdir() if f.name != "index.json")


def test_texts_are_split_and_what_is_left_out_is_told(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("one two three four five six")
    (texts / "b.txt").write_text("")
    (texts / "c.bin").write_bytes(b"?")
    info = build_index(texts, tmp_path / "index", words=4, overlap=1)
    assert info.left_out == {"blank passages": 1, "other files": 1}
    assert index_info(tmp_path / "index") == info
    (found,) = open_index(tmp_path / "index").search(["six"], 3)
    assert [(passage.id, passage.text) for passage in found] == [("a.txt#2", "four five six")]


def test_the_checksum_is_that_of_the_passages(tmp_path: Path) -> None:
    def checksum(passages: list[Passage]) -> str:
        return build_index(passages, tmp_path / "ix", overwrite=True).checksum

    plain = checksum([Passage("a", "bc", "d"), Passage("e", "f", "g")])
    assert plain == checksum([Passage("a", "bc", "d", score=1.0), Passage("e", "f", "g")])
    assert plain != checksum([Passage("a", "b", "cd"), Passage("e", "f", "g")])
    assert plain != checksum([Passage("e", "f", "g"), Passage("a", "bc", "d")])


def test_the_same_passages_give_the_same_files(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from stepladder.retrieval.index.build import build_index\n"
        "from stepladder.core.trace import Passage\n"
        "build_index([Passage(str(i), f'Town {i}', 'on the river') for i in range(9)], Path(sys.argv[1]))"
    )
    for seed in ("1", "2"):
        subprocess.run(
            [sys.executable, "-c", script, tmp_path / seed], env={**os.environ, "PYTHONHASHSEED": seed}, check=True
        )
    for name in index_info(tmp_path / "1").files:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes(), name


def test_progress_is_reported(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    passages = (Passage(str(i), "", f"word{i}") for i in range(2500))
    build_index(passages, tmp_path / "ix", progress=lambda *now: told.append(now))
    assert [now for now in told if now[0] == "Reading passages"] == [
        ("Reading passages", 1000, 0),
        ("Reading passages", 2000, 0),
        ("Reading passages", 2500, 2500),
    ]


def test_an_index_is_replaced_only_when_asked(tmp_path: Path) -> None:
    folder = make(tmp_path / "ix")
    with pytest.raises(IndexFolderError, match=r"is already an index; use overwrite \(--overwrite\)"):
        build_index(PASSAGES[:5], folder)
    assert index_info(folder).passages == 50
    # The old index can even be the source of the new one.
    old = open_index(folder)
    assert isinstance(old, BM25Index)
    build_index((old.passages[i] for i in range(5)), folder, overwrite=True)
    assert index_info(folder).passages == 5


@pytest.mark.parametrize("overwrite", [True, False])
def test_other_folders_are_never_replaced(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(IndexFolderError, match="contains files that are not part of an index"):
        build_index(PASSAGES, tmp_path, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "ix").mkdir()
    assert index_info(make(tmp_path / "ix")).passages == 50


def test_bad_passages_leave_nothing(tmp_path: Path) -> None:
    for passages, message in {
        (*PASSAGES, PASSAGES[3]): "passages 3 and 50 have the same id 'p3'",
        (): "there are no passages",
    }.items():
        with pytest.raises(CorpusError, match=message):
            build_index(passages, tmp_path / "ix")
    with pytest.raises(CorpusError, match="no such file"):
        build_index(tmp_path / "none.jsonl", tmp_path / "ix")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_kind_is_met_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"unknown index kind 'bm52'\. Did you mean 'bm25'\?"):
        build_index(PASSAGES, tmp_path / "ix", kind="bm52")
    edit_manifest(make(tmp_path / "ix"), kind="bm26")
    with pytest.raises(UnknownName, match=r"unknown index kind 'bm26'\. Did you mean 'bm25'\?"):
        open_index(tmp_path / "ix")


def test_folders_that_are_no_index(tmp_path: Path) -> None:
    with pytest.raises(IndexFolderError, match=r"no such folder\. Build one with: stepladder index build"):
        open_index(tmp_path / "none")
    with pytest.raises(IndexFolderError, match=rf"is not an index: it is empty.* --out {tmp_path}$"):
        open_index(tmp_path)
    (tmp_path / "other.bin").touch()
    with pytest.raises(IndexFolderError, match=r"is not an index: it has no index.json.* --out NEW_FOLDER$"):
        open_index(tmp_path)
    for content in ('{"stepladder_index": 1, "kin', "[1]", '{"name": "a web site"}', '{"stepladder_index": 1}'):
        (tmp_path / "index.json").write_text(content)
        with pytest.raises(IndexFolderError, match=r"index\.json is not the manifest of an index"):
            open_index(tmp_path)


@pytest.mark.parametrize(("name", "new"), [("texts", "texts-index"), ("texts/towns.v2.txt", "towns-index")])
def test_a_corpus_is_not_proposed_as_the_folder_of_its_index(tmp_path: Path, name: str, new: str) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "towns.v2.txt").write_text("Orla is a town.")
    corpus = tmp_path / name
    with pytest.raises(IndexFolderError) as told:
        open_index(corpus)
    command = f"stepladder index build {corpus} --out {new}"
    assert str(told.value) == f"{corpus} is not an index: it is a corpus. Build its index with: {command}"


def test_an_index_of_another_version(tmp_path: Path) -> None:
    edit_manifest(make(tmp_path / "ix"), stepladder_index=99)
    message = rf"is an index of version 99, this Stepladder reads version {INDEX_VERSION}: rebuild it"
    with pytest.raises(IndexFolderError, match=message):
        open_index(tmp_path / "ix")


def test_damaged_files_are_noticed(tmp_path: Path) -> None:
    folder = make(tmp_path / "ix")
    scores = folder / "data.csc.index.npy"
    size = scores.stat().st_size
    os.truncate(scores, size - 4)
    with pytest.raises(IndexFolderError, match=rf"data.csc.index.npy has {size - 4:,} bytes, expected {size:,}"):
        open_index(folder)
    scores.unlink()
    with pytest.raises(IndexFolderError, match=r"is damaged: data.csc.index.npy is missing"):
        open_index(folder)


# 100 passages of 200 two-letter words: 65 kB of text, then 80 kB of scores. A limit on the size of files stops either.
FULL_DISK = """
import resource, sys
from pathlib import Path
from stepladder.core.errors import StepladderError
from stepladder.retrieval.index.build import build_index
from stepladder.core.trace import Passage
words = [a + b for a in "bcdfgklmnprstvz" for b in "0123456789bcdfghkl"]
passages = [Passage(str(i), "", " ".join((words * 2)[i : i + 200])) for i in range(100)]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    build_index(passages, Path(sys.argv[1]), overwrite=True)
except StepladderError as error:
    print(error)
"""


@pytest.mark.parametrize("limit", [20_000, 75_000])
def test_a_disk_that_takes_no_more_leaves_the_old_index(tmp_path: Path, limit: int) -> None:
    folder = make(tmp_path / "ix")
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, folder, str(limit)], capture_output=True, text=True, check=True
    )
    reason = "File too large" if limit < 65_000 else "requested and"
    assert done.stdout.startswith(f"could not write the index {folder}: ")
    assert reason in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["ix"]
    assert index_info(folder).passages == 50
    assert open_index(folder).search(["town"], 1)[0]


def test_the_message_for_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numpy.save", full)
    with pytest.raises(WriteError, match=r"No space left on device\. [\d,.]+ MB are free .* No partial files"):
        make(tmp_path / "ix")
    assert list(tmp_path.iterdir()) == []


def test_passages_are_read_once_and_one_at_a_time(tmp_path: Path) -> None:
    def passages() -> Iterator[Passage]:
        for number in range(3):
            (partial,) = tmp_path.iterdir()
            assert partial.name == ".ix.unfinished"
            yield Passage(str(number), "", "word")

    assert build_index(passages(), tmp_path / "ix").passages == 3


def test_damage_to_an_open_index_is_named_when_it_is_met(tmp_path: Path) -> None:
    build_index([Passage("1", "Orm", "a tower"), Passage("2", "Velm", "a city")], tmp_path / "index")
    opened, lines = open_index(tmp_path / "index"), tmp_path / "index" / "passages.jsonl"
    lines.write_bytes(b"\x00" * lines.stat().st_size)
    with pytest.raises(StepladderError, match="the index is damaged: passage 1"):
        opened.search(["city"], 1)


def test_a_manifest_with_nonsense_in_it_is_refused(tmp_path: Path) -> None:
    build_index([Passage("1", "Orm", "a tower")], tmp_path / "index")
    edit_manifest(tmp_path / "index", files=None)
    with pytest.raises(IndexFolderError, match="files: Input should be a valid dictionary"):
        index_info(tmp_path / "index")


def test_a_folder_is_not_an_index_because_of_a_name(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text('{"name": "my site"}')
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(IndexFolderError, match="contains files that are not part of an index"):
        build_index([Passage("1", "Orm", "a tower")], tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_what_was_added_to_an_index_folder_is_not_deleted_with_it(tmp_path: Path) -> None:
    build_index([Passage("1", "Orm", "a tower")], tmp_path / "index")
    (tmp_path / "index" / "notes.txt").write_text("mine")
    with pytest.raises(IndexFolderError, match="contains files that are not part of an index"):
        build_index([Passage("1", "Orm", "a tower")], tmp_path / "index", overwrite=True)


@pytest.mark.parametrize("name", ["data.csc.index.npy", "params.index.json", "vocab.index.json"])
def test_files_of_the_right_size_with_nothing_in_them(tmp_path: Path, name: str) -> None:
    build_index([Passage("1", "Orm", "a tower")], tmp_path / "index")
    file = tmp_path / "index" / name
    file.write_bytes(b"\x00" * file.stat().st_size)
    with pytest.raises(IndexFolderError, match="is damaged"):
        open_index(tmp_path / "index")


def test_paths_may_be_strings(tmp_path: Path) -> None:
    build_index([Passage("1", "Orm", "a tower")], str(tmp_path / "index"))
    retriever = open_index(str(tmp_path / "index"))
    assert retriever.search(["tower"], 1)[0][0].id == "1"
    with pytest.raises(TypeError, match=r"takes a list of queries: search\(\['tower'\], 1\)"):
        retriever.search("tower", 1)
