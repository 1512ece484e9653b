"""Corpora of the usual kinds are read; what is wrong with one is named by file and line."""

import csv
import gzip
import io
import json
import os
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings, strategies as st
from pyarrow import parquet

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Passage
from stepladder.retrieval.corpus.reader import Corpus, check_unique_ids, read_corpus
from stepladder.retrieval.corpus.splitting import Chunk, split_markdown, split_text
from stepladder.retrieval.corpus.tables import CorpusError


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


def parquet_file(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    parquet.write_table(pyarrow.table(columns), path, **options)
    return path


GOOD = {"id": "a", "text": "Good."}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"id": "b", "text": "cut', "not JSON: Unterminated string starting at, at column 21"),
        ("[" * 100_000, "unreadable JSON"),
        (["b"], r'expected a JSON object, found \["b"\]'),
        ({"text": "x"}, "expected the columns 'id' .* found 'text': there is no 'id'"),
        ({"id": " ", "text": "x"}, "'id' should be a non-empty string, found \" \""),
        ({"id": 1.5, "text": "x"}, "'id' should be a non-empty string, found 1.5"),
        ({"id": True, "text": "x"}, "'id' should be a non-empty string, found true"),
        ({"id": "b", "body": "x"}, "and 'text' .or 'contents'.*; found 'id', 'body': there is no 'text'"),
        ({"id": "b", "content": "x"}, "found 'id', 'content': rename 'content' to 'contents'$"),
        ({"doc_id": 7, "Text": "x"}, "found 'doc_id', 'Text': rename 'doc_id' to 'docid', rename 'Text' to 'text'$"),
        ({"id": "b", "contents": 7}, "'contents' should be a string, found 7"),
        ({"id": "b", "text": ["x"]}, r"'text' should be a string, found \[\"x\"\]"),
        ({"id": "b", "title": 7, "text": "x"}, "'title' should be a string, found 7"),
        ({"id": "a", "text": "Again."}, r"id 'a' with another text, see .*corpus.jsonl:1; ids must"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: Any, message: str) -> None:
    path = write(tmp_path / "corpus.jsonl", GOOD, "", bad)
    passages = iter(read_corpus(path))
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
    parquet_file(tmp_path / "whole.parquet", {"id": ["a"], "text": ["t"]})
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "whole.parquet").read_bytes()[:-20])
    (tmp_path / "notes.odt").write_text("x")
    for path, message in {
        tmp_path / "none.jsonl": "no such file or folder",
        tmp_path / "cut.jsonl.gz": r"truncated or corrupt after line \d+",
        tmp_path / "plain.jsonl.gz": "the content is not gzip",
        tmp_path / "blank.jsonl": "no passages found. Files read: 1, blank passages: 0",
        tmp_path / "cut.parquet": "cannot be read as Parquet after row 0",
        tmp_path / "notes.odt": r"known kinds: .jsonl, .jsonl.gz, .parquet, .tsv, .tsv.gz, .txt, .md, .pdf, .html",
        tmp_path / "*.odt": "no file of a known kind, 1 others; known kinds: .jsonl",
        tmp_path / "a**b": "invalid glob pattern",
    }.items():
        with pytest.raises(CorpusError, match=message) as caught:
            list(read_corpus(path))
        assert str(path) in str(caught.value)


def test_passages_made_in_a_program_need_distinct_ids_too() -> None:
    passages = [Passage("a", "", "one"), Passage("b", "", "two"), Passage("a", "", "three")]
    with pytest.raises(CorpusError, match="passages 0 and 2 have the same id 'a'"):
        list(check_unique_ids(passages))
    with pytest.raises(CorpusError, match="there are no passages"):
        list(check_unique_ids([]))


def test_blank_passages_and_copies_are_left_out_and_counted(tmp_path: Path) -> None:
    corpus = read_corpus(
        write(
            tmp_path / "corpus.jsonl",
            {"id": "a", "title": "Orla", "text": "A city."},
            {"id": "b", "contents": " \n "},
            {"id": "c", "text": None},
            {"id": "d", "contents": '"Orla"\n A city.'},
            {"id": "a", "title": "Orla", "text": "A city."},
            {"id": "e", "title": "Orl", "text": "aA city."},
        )
    )
    for _ in range(2):  # read anew, counted anew
        assert [passage.id for passage in corpus] == ["a", "e"]
        assert (corpus.passages, corpus.blank, corpus.duplicates) == (2, 2, 2)


def test_the_id_of_a_passage_that_was_left_out_is_taken_too(tmp_path: Path) -> None:
    write(tmp_path / "1.jsonl", {"id": "a", "text": "Same."}, {"id": "b", "text": "Same."})
    write(tmp_path / "2.jsonl", {"id": "c", "text": "Fine."}, {"id": "b", "text": "Other."})
    with pytest.raises(CorpusError, match=r"2\.jsonl:2: duplicate id 'b' with another text, see .*1\.jsonl:2"):
        list(read_corpus(tmp_path))


def test_another_thread_may_read_on(tmp_path: Path) -> None:
    passages = iter(read_corpus(write(tmp_path / "corpus.jsonl", GOOD, {"id": "b", "text": "Better."})))
    next(passages)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(next, passages).result() == Passage("b", "", "Better.")


def test_a_corpus_in_many_files_is_read_in_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    write(tmp_path / "part-2.jsonl", {"id": "b", "text": "two"})
    write(tmp_path / "part-1.tsv", "id\ttext\ttitle", "a\tone\tOne")
    parquet_file(tmp_path / "sub" / "part-0.PARQUET", {"_id": [7], "title": ["Three"], "text": ["three"]})
    write(tmp_path / ".git" / "part-0.jsonl", {"id": "x", "text": "hidden"})
    (tmp_path / ".part-0.jsonl").write_text("hidden")
    (tmp_path / "LICENSE").write_text("free")
    expected = [Passage("a", "One", "one"), Passage("b", "", "two"), Passage("7", "Three", "three")]
    corpus = read_corpus(tmp_path)
    assert list(corpus) == expected
    assert ([file.name for file in corpus.files], corpus.left_out) == (
        ["part-1.tsv", "part-2.jsonl", "part-0.PARQUET"],
        {"other files": 1},
    )
    assert list(read_corpus(str(tmp_path / "part-*"))) == expected[:2]
    assert list(read_corpus(tmp_path / "**" / "*.[Pp]*")) == expected[2:]


def test_the_order_is_that_of_the_names(tmp_path: Path) -> None:
    for number in reversed(range(10, 50)):
        (tmp_path / f"{number}.txt").write_text(f"Number {number}.")
    assert [passage.title for passage in read_corpus(tmp_path)] == [str(number) for number in range(10, 50)]


def test_a_readme_does_not_slip_into_a_corpus(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", GOOD)
    (tmp_path / "README.md").write_text("# How to cite")
    with pytest.raises(
        CorpusError, match=r"\(train.jsonl\) and texts \(README.md\).* pattern such as '.*/\*\*/\*.jsonl'"
    ):
        read_corpus(tmp_path)
    assert list(read_corpus(tmp_path / "**" / "*.jsonl")) == [Passage("a", "", "Good.")]


def test_texts_in_folders(tmp_path: Path) -> None:
    (tmp_path / "b" / "deep").mkdir(parents=True)
    (tmp_path / "a.txt").write_bytes("\ufeffOne two three.\r\nFour.\r\n\r\nFive \0 six.".encode())
    (tmp_path / "b" / "deep" / "guide.md").write_text("Intro.\n# Set-up #\n## On C#\nRun it.\n")
    (tmp_path / "b" / "empty.txt").write_text(" \n\n")
    (tmp_path / "b" / "photo.png").write_bytes(b"\x89PNG")
    corpus = read_corpus(tmp_path, words=4, overlap=1)
    expected = [
        Passage("a.txt#1", "a", "One two three.\nFour."),
        Passage("a.txt#2", "a", "Four.\n\nFive \0 six."),
        Passage("b/deep/guide.md#1", "guide", "Intro."),
        Passage("b/deep/guide.md#2", "guide: Set-up > On C#", "Run it."),
    ]
    assert list(corpus) == expected
    assert (corpus.passages, corpus.left_out) == (4, {"blank passages": 1, "other files": 1})
    # Ids depend on the file alone.
    assert list(read_corpus(tmp_path / "*" / "**" / "*.md")) == expected[2:]
    assert [passage.id for passage in read_corpus(tmp_path / "b" / "deep" / "guide.md")] == ["guide.md#1", "guide.md#2"]


def test_a_file_name_that_is_not_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    try:
        (tmp_path / name).write_text("Open daily.")
    except OSError:
        pytest.skip("this file system has no such names")
    assert list(read_corpus(tmp_path)) == [Passage("caf\ufffd.txt#1", "caf\ufffd", "Open daily.")]


@pytest.mark.parametrize("name", ["corpus.tsv", "corpus.txt", "corpus.md"])
def test_the_byte_that_is_not_utf8_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes("id\ttext\ttitle\n7\tOrléans\t-".encode("latin-1"))
    with pytest.raises(CorpusError, match=rf"{name}:2: not UTF-8: byte 0xe9 at position 5; save the file as UTF-8"):
        list(read_corpus(path))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["1\tText.\tTitle"],
            ":1: expected the columns 'id' .*; found '1', 'Text.', 'Title': .*rename 'Text.' to 'text'",
        ),
        (["id\ttext\ttitle", '1\t"two\nlines"\tT', "2\tx"], r":4: expected 3 fields \(id, text, title\), found 2"),
        (["id\ttext\ttitle", '1\t"Heroes" is a song\tT'], r":2: not tab-separated values: .*inner quotes doubled"),
        (["id\ttext\ttitle", '1\t"open\tT', "2\tx\tT"], r":2: not tab-separated values: unexpected end of data"),
        (["id\ttext\ttitle", " \tx\tT"], ":2: 'id' should be a non-empty string"),
    ],
)
def test_a_bad_line_of_a_tsv_file_is_named(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        list(read_corpus(write(tmp_path / "corpus.tsv", *lines)))


NOT_UTF8 = pyarrow.StringArray.from_buffers(2, *pyarrow.array([b"fine", b"caf\xe9"]).buffers()[1:])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": ["a"], "body": ["x"]}, ": expected the columns 'id' .* found 'id', 'body': there is no 'text'"),
        ({"id": ["a"], "text": [[1.0]]}, "column 'text' should contain strings, found list<"),
        ({"id": [1.5], "text": ["x"]}, "column 'id' should contain strings, found double"),
        ({"pid": ["1"], "text": ["x"]}, ": expected the columns 'id' .* found 'pid', 'text': rename 'pid' to 'id'"),
        ({"id": ["a", None], "text": ["x", "y"]}, ":2: 'id' should be a non-empty string, found nothing"),
        ({"id": ["a", "b"], "text": NOT_UTF8}, ":2: not UTF-8: byte 0xe9 at position 3"),
    ],
)
def test_a_bad_parquet_file_is_named(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    path = parquet_file(tmp_path / "corpus.parquet", columns)
    with pytest.raises(CorpusError, match=f"corpus.parquet{message}" if message[0] == ":" else message):
        list(read_corpus(path))


def test_what_parquet_files_are_like_in_the_wild(tmp_path: Path) -> None:
    columns = {
        "docid": pyarrow.array(["a", "b"]).dictionary_encode(),
        "text": pyarrow.array(["one", None], pyarrow.large_string()),
        "title": pyarrow.array([None, "Two"]),
        "embeddings": [[0.5], [0.25]],
    }
    path = parquet_file(tmp_path / "corpus.parquet", columns, row_group_size=1)
    assert list(read_corpus(path)) == [Passage("a", "", "one"), Passage("b", "Two", "")]


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        columns = {"id": range(count), "text": [f"{number} " + "word " * 50 for number in range(count)]}
        path = parquet_file(tmp_path / f"{count}.parquet", columns, row_group_size=500)
        del columns
        tracemalloc.start()
        try:
            assert sum(1 for _ in read_corpus(path)) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)  # what is imported on first use
    assert peak(8000) < 2 * peak(1000)


# Every kind of table gives the same passages.

Row = tuple[str, str, str]


def tsv(rows: Iterable[Row]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t")
    writer.writerows([("id", "text", "title"), *((key, body, title) for key, title, body in rows)])
    return text.getvalue().encode()


def jsonl(rows: Iterable[Row]) -> bytes:
    return "".join(json.dumps({"id": key, "title": t, "text": b}) + "\n" for key, t, b in rows).encode()


def contents(rows: Iterable[Row]) -> bytes:
    lines = (json.dumps({"id": key, "contents": f'"{t}"\n{b}'}, ensure_ascii=False) + "\n" for key, t, b in rows)
    return "".join(lines).encode("utf-8-sig")


def parquet_bytes(rows: Sequence[Row]) -> bytes:
    sink = io.BytesIO()
    columns = {name: [row[i] for row in rows] for i, name in enumerate(("id", "title", "text"))}
    parquet.write_table(pyarrow.table(columns), sink, row_group_size=2)
    return sink.getvalue()


TABLES: dict[str, Callable[[Sequence[Row]], bytes]] = {
    "title-and-text.jsonl": jsonl,
    "contents.jsonl": contents,
    "packed.jsonl.gz": lambda rows: gzip.compress(jsonl(rows)),
    "dpr.tsv": tsv,
    "dpr.tsv.gz": lambda rows: gzip.compress(tsv(rows)),
    "table.parquet": parquet_bytes,
}
CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXTS = st.text(CHARACTERS, max_size=12) | st.sampled_from(['"', '"quoted" \t tab', "two\r\nlines", "\0", "a\rb", ""])
TITLES = TEXTS.filter(lambda text: "\n" not in text)


@given(st.lists(st.tuples(TITLES, TEXTS), min_size=1, max_size=6))
@settings(max_examples=60)
def test_equal_content_gives_equal_passages_in_every_kind_of_table(texts: list[tuple[str, str]]) -> None:
    rows = [("last", "Title", "Not blank."), *((str(i), title, text) for i, (title, text) in enumerate(texts))]
    expected: dict[tuple[str, str], Passage] = {}
    for key, title, text in rows:
        if title.strip() or text.strip():
            expected.setdefault((title.strip(), text.strip()), Passage(key, title.strip(), text.strip()))
    with TemporaryDirectory() as folder:
        for name, make in TABLES.items():
            path = Path(folder) / name
            path.write_bytes(make(rows))
            corpus = read_corpus(path)
            assert list(corpus) == list(expected.values()), name
            assert corpus.passages + corpus.blank + corpus.duplicates == len(rows)


# Texts are split without loss.

WORDS = st.sampled_from(
    ["one", "two.", "three?", '"four!"', "5", "#", "##", "x\0y", "é", "```", "~~~", "- item", "e.g."]
)
GAPS = st.sampled_from([" ", " ", "  ", "\n", "\n\n", "\r\n", "\t", "\u2028", "\n\n\n    ", "\n# ", "\n```\n"])
DOCUMENTS = st.lists(st.tuples(GAPS, WORDS), max_size=60).map(lambda pairs: "".join(gap + word for gap, word in pairs))
SIZES = st.integers(1, 12).flatmap(lambda words: st.tuples(st.just(words), st.integers(0, words - 1)))
Splitter = Callable[[Iterable[str], int, int], Iterator[Chunk]]


def fresh_words(pieces: Iterable[Chunk]) -> list[str]:
    """The words of pieces, without those that were carried over."""
    return [word for piece in pieces for word in piece.text.split()[piece.overlap :]]


@given(DOCUMENTS | st.text(CHARACTERS, max_size=80), SIZES)
@settings(max_examples=200)
def test_splitting_loses_no_word_and_no_order(text: str, sizes: tuple[int, int]) -> None:
    words, overlap = sizes
    pieces = list(split_text(text.split("\n"), words, overlap))
    assert fresh_words(pieces) == text.split()
    for piece, after in pairwise(pieces):
        assert 0 <= after.overlap <= overlap
        assert after.text.split()[: after.overlap] == piece.text.split()[len(piece.text.split()) - after.overlap :]
    for piece in pieces:
        assert piece.overlap < len(piece.text.split()) <= words


@given(DOCUMENTS, SIZES)
@settings(max_examples=200)
def test_markdown_loses_no_word_either(text: str, sizes: tuple[int, int]) -> None:
    pieces = list(split_markdown(text.split("\n"), *sizes))
    marks = {"#", "##", ">"}
    kept = {word for piece in pieces for word in piece.title.split()} | set(fresh_words(pieces))
    assert set(text.split()) - marks <= kept
    body = iter(text.split())
    assert all(word in body for word in fresh_words(pieces))  # in the order of the text
    assert all(len(piece.text.split()) <= sizes[0] for piece in pieces)


@given(st.lists(DOCUMENTS, min_size=1, max_size=4), SIZES)
@settings(max_examples=40)
def test_ids_are_unique_and_depend_on_the_file_alone(texts: list[str], sizes: tuple[int, int]) -> None:
    words, overlap = sizes
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "0.txt").write_text("Not blank.")
        for number, text in enumerate(texts):
            (folder / f"{number}.md").write_bytes(text.encode())
        together = list(read_corpus(folder, words=words, overlap=overlap))
        assert len({passage.id for passage in together}) == len(together)
        alone = read_corpus(folder / "0.md", words=words, overlap=overlap)
        assert [passage for passage in together if passage.id.startswith("0.md#")] == passages_or_none(alone)


def passages_or_none(corpus: Corpus) -> list[Passage]:
    try:
        return list(corpus)
    except CorpusError:
        return []


def texts_of(split: Splitter, text: str, words: int, overlap: int = 0) -> list[str]:
    return [piece.text for piece in split(text.split("\n"), words, overlap)]


def test_sentences_stay_whole_where_they_fit() -> None:
    text = "One two three. Four five! Six seven eight nine ten. Eleven"
    assert texts_of(split_text, text, 6) == ["One two three. Four five!", "Six seven eight nine ten. Eleven"]
    # A long sentence is cut between lines, a long line between words.
    assert texts_of(split_text, "a b c\nd e\nf", 3) == ["a b c", "d e\nf"]
    assert texts_of(split_text, "a b c d e", 2) == ["a b", "c d", "e"]
    # A whole sentence is worth more than the overlap.
    assert texts_of(split_text, "A b c. D e f g.", 5, overlap=3) == ["A b c.", "c. D e f g."]


def test_a_text_without_sentences_is_not_held_in_memory() -> None:
    lines = iter(["word word word"] * 1000)
    assert next(split_text(lines, 6, 2)).text == "word word word\nword word word"
    assert len(list(lines)) > 990


def test_code_stays_whole_where_it_fits() -> None:
    text = "Run.\n```sh\n# not a heading. really\n\n    make all\n```\nDone."
    code = "```sh\n# not a heading. really\n\n    make all\n```"
    assert texts_of(split_markdown, text, 9) == ["Run.", code, "Done."]
    assert texts_of(split_markdown, text, 5) == ["Run.\n```sh", "# not a heading. really", "make all\n```\nDone."]
    # A fence is closed by one at least as long, with nothing behind it.
    nested = "````\n```\n# a\n````python\n# b\n`````\nc"
    assert texts_of(split_markdown, nested, 9) == [nested]


def test_headings_become_titles() -> None:
    text = "```inline``` intro\n# A\n## B ##\ntext b\n### C\n## D\ntext d\n#tag\n# E"
    assert [(piece.title, piece.text) for piece in split_markdown(text.split("\n"), 50, 5)] == [
        ("", "```inline``` intro"),
        ("A > B", "text b"),
        ("A > B > C", ""),
        ("A > D", "text d\n#tag"),
        ("E", ""),
    ]


@pytest.mark.parametrize(("words", "overlap"), [(0, 0), (5, 5), (5, -1)])
def test_sizes_that_cannot_be(tmp_path: Path, words: int, overlap: int) -> None:
    with pytest.raises(
        StepladderError, match=f"passages of {words} words with an overlap of {overlap} are not possible"
    ):
        read_corpus(tmp_path, words=words, overlap=overlap)
