"""Read corpora: tables of passages, or texts that are split into passages.

In: a file, a folder with such files at any depth, or a glob pattern ("wiki/part-*.jsonl.gz"); files are read in order
of their paths. Tables have one passage a line or row, in one of two layouts; further keys and columns are ignored, and
an id may also be called `_id` (BEIR) or `docid` (Tevatron, MIRACL):

    {"id": "7", "contents": "\\"Title\\"\\nText of the passage ..."}     FlashRAG, Search-R1
    {"id": "7", "title": "Title", "text": "Text of the passage ..."}   the title may be missing

    .jsonl .jsonl.gz    one such object a line
    .parquet            such columns
    .tsv .tsv.gz        such columns, named by the first line, quoted as csv does: DPR's id, text, title
    .txt .md            split by splitting.py; the ids are "folder/file.md#1", "folder/file.md#2", ...

Out: its `Passage`s, one at a time. Blank passages and copies of earlier ones are left out and counted. What cannot be a
passage is an error that names the file and the line or row.
"""

import csv
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from stepladder.errors import StepladderError
from stepladder.jsonl import Line, parsed, raw_lines, shown
from stepladder.retrieval.splitting import Piece, check_sizes, split_markdown, split_text
from stepladder.trace import Passage

_IDS = ("id", "_id", "docid")
_TEXTS = ("contents", "text")


class CorpusError(StepladderError):
    """A corpus that cannot be read."""


@dataclass
class Corpus:
    """The passages of some files. Every iteration reads the files anew, in flat memory, and counts anew."""

    #: What the corpus was asked for as.
    path: Path
    #: The files, in the order of reading.
    files: tuple[Path, ...]
    #: Ids of texts begin with the path of the file from here.
    root: Path
    #: How many files of other kinds stand among them.
    skipped: int
    #: At most so many words make a passage of a text, and it begins with so many of the one before.
    words: int
    overlap: int
    #: Passages read so far, without those left out.
    passages: int = field(default=0, init=False)
    #: Left out because they have neither title nor text.
    blank: int = field(default=0, init=False)
    #: Left out because an earlier passage has the same title and text.
    duplicates: int = field(default=0, init=False)

    @property
    def left_out(self) -> dict[str, int]:
        """What is not among the passages, and how much of it."""
        counts = {"blank passages": self.blank, "duplicates": self.duplicates, "other files": self.skipped}
        return {name: count for name, count in counts.items() if count}

    def signature(self) -> str:
        """Equal as long as the files have not been changed and are split the same way."""
        stats = ((file, file.stat()) for file in self.files)
        files = [(os.fsencode(file.absolute()).hex(), stat.st_size, stat.st_mtime_ns) for file, stat in stats]
        return blake2b(repr((files, self.words, self.overlap)).encode(), digest_size=16).hexdigest()

    def __iter__(self) -> Iterator[Passage]:
        self.passages = self.blank = self.duplicates = 0
        with closing(_Seen(self.files)) as seen:
            for position, file in enumerate(self.files):
                for number, passage in self._read(file):
                    if not passage.title and not passage.text:
                        self.blank += 1
                    elif seen.before(passage, position, number):
                        self.duplicates += 1
                    else:
                        self.passages += 1
                        yield passage
        if not self.passages:
            raise CorpusError(
                f"{self.path}: there are no passages. Files read: {len(self.files)}, blank passages: {self.blank}"
            )

    def _read(self, file: Path) -> Iterator[tuple[int, Passage]]:
        """The passages of a file, each with its line or row, or its number where the file is a text."""
        kind = _kind(file)
        if kind in _TABLES:
            for line in _TABLES[kind](file):
                yield line.number, _passage(line)
            return
        name = os.fsencode(file.relative_to(self.root).as_posix()).decode(errors="replace")
        stem = Path(name).stem
        number = 0
        for number, piece in enumerate(_TEXT_FILES[kind](_lines(file), self.words, self.overlap), start=1):
            yield number, Passage(f"{name}#{number}", f"{stem}: {piece.title}" if piece.title else stem, piece.text)
        if not number:
            yield 0, Passage(name, "", "")


def read_corpus(path: str | Path, *, words: int = 100, overlap: int = 20) -> Corpus:
    """The corpus in a file, a folder, or the files that a glob pattern names.

    Texts are split into passages of at most `words` words, each beginning with the last `overlap` words of the one
    before; tables are not split.
    """
    check_sizes(words, overlap)
    path = Path(path)
    if path.is_file():
        if not _kind(path):
            raise CorpusError(f"{path}: a file of this kind cannot be read; known kinds: {_KNOWN}")
        return Corpus(path, (path,), path.parent, 0, words, overlap)
    root = path if path.is_dir() else next((parent for parent in path.parents if not _is_pattern(parent)), path)
    found = _find(path, root)
    files = tuple(found[name] for name in sorted(found) if _kind(found[name]))
    _check_files(path, files, len(found))
    return Corpus(path, files, root, len(found) - len(files), words, overlap)


def distinct(passages: Iterable[Passage]) -> Iterator[Passage]:
    """The passages as they come; an error when two have the same id, or when there are none."""
    first_seen: dict[str, int] = {}
    for position, passage in enumerate(passages):
        if passage.id in first_seen:
            raise CorpusError(
                f"passages {first_seen[passage.id]} and {position} have the same id {passage.id!r}; ids must differ"
            )
        first_seen[passage.id] = position
        yield passage
    if not first_seen:
        raise CorpusError("there are no passages")


class _Seen:
    """The ids and texts so far, in a temporary database that moves to disk when it grows and vanishes when closed.

    Texts are told apart by hashes of 16 bytes: the chance that any two of 21 million agree is below 1e-24.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        # Whoever reads the passages may go on in another thread, one at a time.
        self._database = sqlite3.connect("", check_same_thread=False)
        self._database.executescript(
            "PRAGMA journal_mode = OFF; PRAGMA cache_size = -262144;"  # in KiB
            "CREATE TABLE ids (id BLOB PRIMARY KEY, content BLOB, file INTEGER, number INTEGER) WITHOUT ROWID;"
            "CREATE TABLE contents (content BLOB PRIMARY KEY) WITHOUT ROWID;"
        )

    def before(self, passage: Passage, file: int, number: int) -> bool:
        """Whether there was a passage like this; an error if there was another one with its id."""
        key = passage.id.encode("utf-8", "surrogatepass")
        both = f"{len(passage.title)} {passage.title}{passage.text}"
        content = blake2b(both.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        try:
            if self._is_new("INSERT OR IGNORE INTO ids VALUES (?, ?, ?, ?)", key, content, file, number):
                return not self._is_new("INSERT OR IGNORE INTO contents VALUES (?)", content)
            found = self._database.execute("SELECT content, file, number FROM ids WHERE id = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            raise CorpusError(
                f"the ids so far could not be kept in a temporary file: {error}. Is the disk full? The environment "
                "variable SQLITE_TMPDIR names another folder for it"
            ) from error
        if found[0] == content:
            return True
        here, first = f"{self._files[file]}:{number}", f"{self._files[found[1]]}:{found[2]}"
        raise CorpusError(f"{here}: id {passage.id!r} was used before with another text, at {first}; ids must differ")

    def _is_new(self, statement: str, *values: object) -> bool:
        return self._database.execute(statement, values).rowcount == 1

    def close(self) -> None:
        self._database.close()


def _is_pattern(path: Path) -> bool:
    return not {"*", "?", "["}.isdisjoint(str(path))


def _find(path: Path, root: Path) -> dict[str, Path]:
    """The files of a folder, or those that a pattern names, by their paths from the root; hidden ones are left out."""
    if not path.is_dir() and not _is_pattern(path):
        raise CorpusError(f"{path}: there is no such file or folder")
    try:
        found = list(root.glob("**/*" if path.is_dir() else str(path.relative_to(root))))
    except ValueError as error:
        raise CorpusError(f"{path}: not a pattern for files: {error}") from error
    files = {file.relative_to(root).as_posix(): file for file in found if not file.is_dir()}
    return {name: file for name, file in files.items() if not any(part.startswith(".") for part in name.split("/"))}


def _kind(file: Path) -> str:
    """What a file is read as; empty for files that cannot be read."""
    return next((kind for kind in (*_TABLES, *_TEXT_FILES) if file.name.lower().endswith(kind)), "")


def _check_files(path: Path, files: Sequence[Path], found: int) -> None:
    tables = [file for file in files if _kind(file) in _TABLES]
    texts = [file for file in files if _kind(file) in _TEXT_FILES]
    if not files:
        raise CorpusError(f"{path}: no file of a known kind there, {found} others; known kinds: {_KNOWN}")
    if tables and texts:  # a README beside the parts of a corpus, most often: it should not slip in
        raise CorpusError(
            f"{path}: there are tables of passages ({tables[0].name}) and texts ({texts[0].name}); say which of them "
            f"are the corpus with a pattern such as '{path if path.is_dir() else path.parent}/**/*{_kind(tables[0])}'"
        )


def _objects(path: Path) -> Iterator[Line]:
    for number, raw in raw_lines(path, CorpusError):
        if raw.strip():
            yield Line(path, number, parsed(path, number, raw, CorpusError), CorpusError)


def _tsv_rows(path: Path) -> Iterator[Line]:
    rows = csv.reader(_lines(path), delimiter="\t", strict=True)
    names: list[str] = []
    number = 1
    try:
        for row in rows:
            line = Line(path, number, dict(zip(names, row)), CorpusError)
            number = rows.line_num + 1  # a row may take several lines
            if not names:
                names = row
                if not set(names) & set(_IDS) or not set(names) & set(_TEXTS):
                    raise line.wrong(f"expected the names of the columns, 'id', 'text' and 'title'; found {shown(row)}")
            elif len(row) == len(names):
                yield line
            elif row:
                raise line.wrong(f"expected {len(names)} fields ({', '.join(names)}), found {len(row)}")
    except csv.Error as error:
        raise CorpusError(
            f"{path}:{number}: not tab-separated values: {error}. A field with a quote in it is written as csv does: "
            'in quotes, its own quotes doubled, "like ""this"""'
        ) from error


def _parquet_rows(path: Path) -> Iterator[Line]:
    # Imported here because it takes a while, and nothing else needs it.
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            names = _columns(path, file.schema_arrow)
            # A part of a row group at a time, and only these columns: embeddings beside them cost nothing.
            for batch in file.iter_batches(batch_size=1024, columns=names):
                for row in zip(*(batch.column(name) for name in names)):
                    data = {name: value.as_py() for name, value in zip(names, row)}
                    number += 1
                    yield Line(path, number, data, CorpusError)
    except UnicodeDecodeError as error:
        found = f"byte 0x{error.object[error.start]:02x} at position {error.start}"
        raise CorpusError(f"{path}:{number + 1}: not UTF-8: {found} of a string") from error
    except (OSError, pyarrow.ArrowException) as error:
        raise CorpusError(
            f"{path}: cannot be read as Parquet after row {number}: {error}; get the file again"
        ) from error


def _columns(path: Path, schema: Any) -> list[str]:
    """Names of the columns to read; their types must be those of passages."""
    from pyarrow import types

    names = [name for name in schema.names if name in (*_IDS, *_TEXTS, "title")]
    if not set(names) & set(_TEXTS):
        raise _unknown_layout(str(path), schema.names)
    for name in names:
        kind = schema.field(name).type
        inner = kind.value_type if types.is_dictionary(kind) else kind
        is_text = types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner)
        if not is_text and not types.is_null(inner) and not (name in _IDS and types.is_integer(inner)):
            raise CorpusError(f"{path}: column '{name}' should be of strings, found {kind}")
    return names


def _lines(path: Path) -> Iterator[str]:
    for number, raw in raw_lines(path, CorpusError):
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            found = f"byte 0x{raw[error.start]:02x} at position {error.start}"
            raise CorpusError(f"{path}:{number}: not UTF-8: {found}; save the file as UTF-8") from error


def _passage(line: Line) -> Passage:
    key = next((name for name in _IDS if name in line.data), "id")
    found = line.data.get(key)
    if isinstance(found, int) and not isinstance(found, bool):
        found = str(found)
    if not isinstance(found, str) or not found.strip():
        raise line.wrong(f"{key!r} should be a string that is not empty, found {shown(found)}")
    if "contents" in line.data:
        title, newline, text = _text(line, "contents").partition("\n")
        return Passage(found, _unquoted(title.strip()), text.strip()) if newline else Passage(found, "", title.strip())
    if "text" in line.data:
        return Passage(found, _text(line, "title").strip(), _text(line, "text").strip())
    raise _unknown_layout(f"{line.path}:{line.number}", line.data)


def _text(line: Line, key: str) -> str:
    return "" if line.data.get(key) is None else line.text(key)


def _unquoted(title: str) -> str:
    quoted = len(title) >= 2 and title.startswith('"') and title.endswith('"')
    return title[1:-1].strip() if quoted else title


def _unknown_layout(where: str, names: Iterable[str]) -> CorpusError:
    keys = ", ".join(repr(name) for name in names)
    return CorpusError(f"{where}: expected 'contents', or 'text' with or without 'title'; found the keys {keys}")


_TABLES: dict[str, Callable[[Path], Iterator[Line]]] = {
    ".jsonl": _objects,
    ".jsonl.gz": _objects,
    ".parquet": _parquet_rows,
    ".tsv": _tsv_rows,
    ".tsv.gz": _tsv_rows,
}
_TEXT_FILES: dict[str, Callable[[Iterable[str], int, int], Iterator[Piece]]] = {
    ".txt": split_text,
    ".md": split_markdown,
}
_KNOWN = f"{', '.join((*_TABLES, *_TEXT_FILES))}, or a folder of them"
