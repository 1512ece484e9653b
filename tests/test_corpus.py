"""Corpora of the usual layouts are read; what is wrong with one is named by file and line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from stepladder.retrieval.corpus import CorpusError, distinct, read_corpus
from stepladder.trace import Passage


def write(path: Path, *lines: Any) -> Path:
    """A file of these lines; what is not text yet is written as JSON."""
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_flashrag_layout(tmp_path: Path) -> None:
    path = write(
        tmp_path / "corpus.jsonl",
        {"id": "a", "contents": '"Orla"\nOrla is a city.\nIt has a bridge.', "source": "ignored"},
        {"id": 2, "contents": "Span One\nA bridge."},
        "",
        {"id": "c", "contents": "Just text."},
        {"id": "d", "contents": '"Heroes" and "Villains"\nA song.'},
    )
    assert list(read_corpus(path)) == [
        Passage("a", "Orla", "Orla is a city.\nIt has a bridge."),
        Passage("2", "Span One", "A bridge."),
        Passage("c", "", "Just text."),
        Passage("d", 'Heroes" and "Villains', "A song."),
    ]


def test_title_and_text_layout_in_gzip(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl.gz"
    lines = [
        {"id": "a", "title": "Orla", "text": " A city. "},
        {"id": "b", "text": "No title."},
        {"id": "c", "title": None, "text": "Nor here."},
        {"id": "d", "title": "A stub", "text": ""},
    ]
    path.write_bytes(gzip.compress("\r\n".join(map(json.dumps, lines)).encode("utf-8-sig")))
    assert list(read_corpus(path)) == [
        Passage("a", "Orla", "A city."),
        Passage("b", "", "No title."),
        Passage("c", "", "Nor here."),
        Passage("d", "A stub", ""),
    ]


def test_lone_surrogates_are_replaced_and_pairs_are_joined(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", r'{"id": "a", "title": "\ud83d\ude42", "text": "\ud83d half"}')
    assert list(read_corpus(path)) == [Passage("a", "\N{SLIGHTLY SMILING FACE}", "\ufffd half")]


GOOD = {"id": "a", "text": "Good."}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"id": "b", "text": "cut', "not JSON: Unterminated string starting at, at column 21"),
        ("[" * 100_000, "not JSON that can be read"),
        (["b"], r'expected a JSON object, found \["b"\]'),
        ({"text": "x"}, "'id' should be a string that is not empty, found nothing"),
        ({"id": " ", "text": "x"}, "'id' should be a string that is not empty, found \" \""),
        ({"id": 1.5, "text": "x"}, "'id' should be a string that is not empty, found 1.5"),
        ({"id": True, "text": "x"}, "'id' should be a string that is not empty, found true"),
        ({"id": "b", "body": "x"}, "expected 'contents', or 'text' .*; found the keys 'id', 'body'"),
        ({"id": "b", "contents": None}, "'contents' should be a string, found nothing"),
        ({"id": "b", "text": ["x"]}, r"'text' should be a string, found \[\"x\"\]"),
        ({"id": "b", "title": 7, "text": "x"}, "'title' should be a string, found 7"),
        ({"id": "b", "contents": " \n "}, "the passage is blank"),
        ({"id": "a", "text": "Again."}, "id 'a' was used before, on line 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: Any, message: str) -> None:
    path = write(tmp_path / "corpus.jsonl", GOOD, "", bad)
    passages = read_corpus(path)
    assert next(passages) == Passage("a", "", "Good.")
    with pytest.raises(CorpusError, match=message) as caught:
        next(passages)
    assert str(caught.value).startswith(f"{path}:3: ")


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "latin1.jsonl"
    path.write_bytes('{"id": "a", "text": "Orléans"}\n'.encode("latin-1"))
    with pytest.raises(CorpusError, match=r"latin1.jsonl:1: not UTF-8: byte 0xe9 at position 24"):
        list(read_corpus(path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    whole = gzip.compress("".join(json.dumps({"id": i, "text": f"t{i}"}) + "\n" for i in range(2000)).encode())
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "plain.jsonl.gz").write_text("{}")
    (tmp_path / "blank.jsonl").write_text("\n\n")
    for path, message in {
        tmp_path / "none.jsonl": "there is no such file",
        tmp_path / "cut.jsonl.gz": r"cut off or damaged after line \d+",
        tmp_path / "plain.jsonl.gz": "the name says gzip, the content is not",
        tmp_path / "blank.jsonl": "the file is empty",
        tmp_path: "cannot be read: Is a directory",
    }.items():
        with pytest.raises(CorpusError, match=message) as caught:
            list(read_corpus(path))
        assert str(path) in str(caught.value)


def test_passages_made_in_a_program_need_distinct_ids_too() -> None:
    passages = [Passage("a", "", "one"), Passage("b", "", "two"), Passage("a", "", "three")]
    with pytest.raises(CorpusError, match="passages 0 and 2 have the same id 'a'"):
        list(distinct(passages))
    with pytest.raises(CorpusError, match="there are no passages"):
        list(distinct([]))
