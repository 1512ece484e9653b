"""Read corpora: tables of passages, or texts that are split into passages.

In: a file, a folder with such files at any depth, or a glob pattern ("wiki/part-*.jsonl.gz"); files are read in order
of their paths:

    .jsonl .jsonl.gz    one object per line, with id and contents, or id, title and text (tables.py)
    .parquet            the same as columns
    .tsv .tsv.gz        the same as columns, with a header line and csv quoting: DPR's id, text, title
    .txt .md            split by splitting.py; the ids are "folder/file.md#1", "folder/file.md#2", ...
    .pdf .html .docx    converted by documents.py and split; the titles are "file.pdf, page 3", "file.html, Heading"
    .csv                a passage per row, "file.csv, row 12"; with the columns of a table, it is one

Out: `Passage`s, one at a time. Blank and duplicate passages are skipped and counted, and so are links that lead out of
the folder and files that are not regular ones (a pipe would be read forever). Of a folder or pattern, texts and
documents that cannot be read are listed with the reason in `Corpus.unread`. Invalid rows of tables are errors that name
the file and the line or row, and so is whatever is wrong with a single file.
"""

import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import blake2b
from pathlib import Path

from stepladder.core.io.jsonl import text_lines
from stepladder.core.trace import Passage
from stepladder.retrieval.corpus.documents import DOCUMENTS, check_installed, csv_delimiter, csv_header, read_document
from stepladder.retrieval.corpus.splitting import Chunk, check_chunk_sizes, split_markdown, split_text
from stepladder.retrieval.corpus.tables import (
    TABLES,
    CorpusError,
    are_passages,
    read_passage,
    read_table,
    separated_rows,
)

#: Reasons to skip a file.
_OUTSIDE, _SPECIAL = "links out of the folder", "pipes, sockets, devices or broken links"
UNREADABLE, OTHERS, UNKNOWN_FORMAT = "unreadable files", "other files", "unknown format"
#: How the reason of a file begins of which passages were read.
IN_PART = "read only in part"


@dataclass
class Corpus:
    """The passages of some files. Every iteration reads the files again, in constant memory, and resets the counts."""

    #: The path or pattern that was given.
    path: Path
    #: The files, in reading order.
    files: tuple[Path, ...]
    #: Passage ids of text files start with the file's path relative to this folder.
    root: Path
    #: Numbers of files that are skipped, by reason.
    skipped: dict[str, int]
    #: Maximum words per passage of a text, and the words it shares with the previous passage.
    words: int
    overlap: int
    #: Passages read so far, without skipped ones.
    passages: int = field(default=0, init=False)
    #: Skipped passages without title and text.
    blank: int = field(default=0, init=False)
    #: Skipped passages with the title and text of an earlier one.
    duplicates: int = field(default=0, init=False)
    #: The texts and documents so far that could not be read, or only in part, with the reason.
    unread: dict[str, str] = field(default_factory=dict, init=False)
    #: Files of other types, which are not read.
    others: tuple[Path, ...] = ()
    #: Total bytes of the files that were read, the file that is being read, and the position in it.
    _done: int = field(default=0, init=False)
    _file: int = field(default=0, init=False)
    _tell: Callable[[], int] = field(default=int, init=False)

    @property
    def left_out(self) -> dict[str, int]:
        """Counts of what was skipped, by reason."""
        counts = {"blank passages": self.blank, "duplicates": self.duplicates, **self.skipped}
        counts |= {UNREADABLE: len(self.unread), OTHERS: len(self.others)}
        return {name: count for name, count in counts.items() if count}

    @property
    def not_read(self) -> dict[str, str]:
        """All files that were not read, with the reason."""
        return {**self.unread, **{self.name_of(file): UNKNOWN_FORMAT for file in self.others}}

    @property
    def progress(self) -> tuple[str, int, int]:
        """What is being read: a description, kilobytes read so far, total."""
        try:
            here = self._tell()
        except ValueError:  # the last passages of a file that is closed already
            here = self._sizes[self._file]
        return "Reading the corpus (kB)", (self._done + here) // 1000, max(self._size // 1000, 1)

    @cached_property
    def _size(self) -> int:
        return sum(self._sizes)

    @cached_property
    def _sizes(self) -> list[int]:
        return [file.stat().st_size for file in self.files]

    @property
    def documents(self) -> set[str]:
        """The names of the texts and documents, with which the ids of their passages start."""
        return {self.name_of(file) for file in self.files if _kind(file) not in TABLES}

    def name_of(self, file: Path) -> str:
        """The name of a file in ids and lists: its path relative to the folder."""
        return os.fsencode(file.relative_to(self.root).as_posix()).decode(errors="replace")

    def signature(self) -> str:
        """A hash of the files' paths, sizes and modification times and of the split parameters."""
        stats = ((file, file.stat()) for file in self.files)
        files = [(os.fsencode(file.absolute()).hex(), stat.st_size, stat.st_mtime_ns) for file, stat in stats]
        return blake2b(repr((files, self.words, self.overlap)).encode(), digest_size=16).hexdigest()

    def __iter__(self) -> Iterator[Passage]:
        self.passages = self.blank = self.duplicates = self._done = 0
        self.unread = {}
        check_installed({_kind(file) for file in self.files})
        with closing(_Seen(self.files)) as seen:
            for position, file in enumerate(self.files):
                self._file = position
                for number, passage in self._read(file):
                    if not passage.title and not passage.text:
                        self.blank += 1
                    elif seen.before(passage, position, number):
                        self.duplicates += 1
                    else:
                        self.passages += 1
                        yield passage
                self._tell = int
                self._done += self._sizes[position]
        if not self.passages:
            unread = "".join(f"; {name}: {reason}" for name, reason in list(self.unread.items())[:3])
            raise CorpusError(
                f"{self.path}: no passages found. Files read: {len(self.files)}, blank passages: {self.blank}, "
                f"unreadable files: {len(self.unread)}{unread}"
            )

    def _read(self, file: Path) -> Iterator[tuple[int, Passage]]:
        """The passages of a file, each with its line or row or, in a text, its number."""
        kind, number = _kind(file), 0
        if kind in TABLES:
            yield from read_table(file, kind, self._watch)
            return
        try:
            for number, passage in self._read_text(file, kind):
                yield number, passage
        except (CorpusError, OSError) as error:
            cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
            reason = re.sub(r"^:(\d+):", r"line \1:", cause.removeprefix(str(file))).removeprefix(": ")
            if file == self.path:
                raise CorpusError(cause if cause.startswith(str(file)) else f"{file}: {cause}") from error
            self.unread[self.name_of(file)] = f"{IN_PART}: {reason}" if number else reason

    def _read_text(self, file: Path, kind: str) -> Iterator[tuple[int, Passage]]:
        name, path = self.name_of(file), Path(file.name)
        if kind == ".csv" and are_passages(csv_header(file)):
            rows = separated_rows(file, self._watch, csv_delimiter(file), "comma-separated values")
            yield from ((line.number, read_passage(line)) for line in rows)
            return
        if kind in DOCUMENTS:
            chunks = read_document(file, kind, self.words, self.overlap, self._watch)
            title, separator = path.name, ", "
        else:
            chunks = _TEXT_FILES[kind](text_lines(file, CorpusError, self._watch), self.words, self.overlap)
            title, separator = path.stem, ": "
        title = os.fsencode(title).decode(errors="replace")
        number = 0
        for number, chunk in enumerate(chunks, start=1):
            yield (
                number,
                Passage(f"{name}#{number}", f"{title}{separator}{chunk.title}" if chunk.title else title, chunk.text),
            )
        if not number:
            yield 0, Passage(name, "", "")

    def _watch(self, tell: Callable[[], int]) -> None:
        self._tell = tell


def read_corpus(path: str | Path, *, words: int = 100, overlap: int = 20) -> Corpus:
    """The corpus in a file, a folder, or the files that match a glob pattern.

    Texts and documents are split into passages of at most `words` words that overlap by `overlap` words; rows of tables
    are not split.
    """
    check_chunk_sizes(words, overlap)
    path = Path(path)
    if path.is_file():
        if not _kind(path):
            raise CorpusError(f"{path}: unsupported file type; known kinds: {_KNOWN}")
        return Corpus(path, (path,), path.parent, {}, words, overlap)
    root = path if path.is_dir() else next((parent for parent in path.parents if not _is_pattern(parent)), path)
    found, skipped = _find(path, root)
    files = tuple(found[name] for name in sorted(found) if _kind(found[name]))
    tables = [file for file in files if _kind(file) in TABLES]
    texts = [file for file in files if _kind(file) not in TABLES]
    if not files:
        counts = {"others": len(found), **skipped}
        others = ", ".join(f"{count} {reason}" for reason, count in counts.items() if count or reason == "others")
        copy = f"; to index files elsewhere, copy them: cp -rL {path} NEW" if skipped[_OUTSIDE] else ""
        raise CorpusError(f"{path}: no file of a known kind, {others}; known kinds: {_KNOWN}{copy}")
    if tables and texts:  # most often a README next to the parts of a corpus, which should not be indexed
        raise CorpusError(
            f"{path}: there are tables of passages ({tables[0].name}) and texts ({texts[0].name}); select the corpus "
            f"with a pattern such as '{path if path.is_dir() else path.parent}/**/*{_kind(tables[0])}'"
        )
    unknown = tuple(found[name] for name in sorted(found) if not _kind(found[name]))
    return Corpus(path, files, root, skipped, words, overlap, unknown)


def check_unique_ids(passages: Iterable[Passage]) -> Iterator[Passage]:
    """Yield the passages unchanged; raise if two have the same id or if there are none."""
    first_seen: dict[str, int] = {}
    for position, passage in enumerate(passages):
        if passage.id in first_seen:
            raise CorpusError(
                f"passages {first_seen[passage.id]} and {position} have the same id {passage.id!r}; ids must be unique"
            )
        first_seen[passage.id] = position
        yield passage
    if not first_seen:
        raise CorpusError("there are no passages")


def content_hash(passage: Passage) -> bytes:
    """A hash of the title and the text."""
    both = f"{len(passage.title)} {passage.title}{passage.text}"
    return blake2b(both.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class _Seen:
    """The ids and texts so far, in a temporary database that spills to disk and is deleted when closed.

    Texts are compared by 16-byte hashes: the probability of any collision among 21 million is below 1e-24.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        # The consumer may continue in another thread, one at a time.
        self._database = sqlite3.connect("", check_same_thread=False)
        self._database.executescript(
            "PRAGMA journal_mode = OFF; PRAGMA cache_size = -262144;"  # in KiB
            "CREATE TABLE ids (id BLOB PRIMARY KEY, content BLOB, file INTEGER, number INTEGER) WITHOUT ROWID;"
            "CREATE TABLE contents (content BLOB PRIMARY KEY) WITHOUT ROWID;"
        )

    def before(self, passage: Passage, file: int, number: int) -> bool:
        """Whether the same passage was seen before; raises if another passage has its id."""
        key, content = passage.id.encode("utf-8", "surrogatepass"), content_hash(passage)
        try:
            if self._is_new("INSERT OR IGNORE INTO ids VALUES (?, ?, ?, ?)", key, content, file, number):
                return not self._is_new("INSERT OR IGNORE INTO contents VALUES (?)", content)
            found = self._database.execute("SELECT content, file, number FROM ids WHERE id = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            raise CorpusError(
                f"passage ids could not be stored in a temporary file: {error}. If the disk is full, set the "
                "environment variable SQLITE_TMPDIR to another folder"
            ) from error
        if found[0] == content:
            return True
        here, first = f"{self._files[file]}:{number}", f"{self._files[found[1]]}:{found[2]}"
        raise CorpusError(f"{here}: duplicate id {passage.id!r} with another text, see {first}; ids must be unique")

    def _is_new(self, statement: str, *values: object) -> bool:
        return self._database.execute(statement, values).rowcount == 1

    def close(self) -> None:
        self._database.close()


def _is_pattern(path: Path) -> bool:
    return not {"*", "?", "["}.isdisjoint(str(path))


def _find(path: Path, root: Path) -> tuple[dict[str, Path], dict[str, int]]:
    """The files of a folder or pattern, by their paths relative to the root, and counts of what is skipped.

    Hidden files are neither found nor counted.
    """
    if path.exists() and not path.is_dir():
        raise CorpusError(f"{path}: not a regular file; write the passages to a file first")
    if not path.is_dir() and not _is_pattern(path):
        raise CorpusError(f"{path}: no such file or folder")
    try:
        found = list(root.glob("**/*" if path.is_dir() else str(path.relative_to(root))))
    except ValueError as error:
        raise CorpusError(f"{path}: invalid glob pattern: {error}") from error
    files, skipped = dict[str, Path](), {_OUTSIDE: 0, _SPECIAL: 0}
    inside, real = os.path.realpath(root), cache(os.path.realpath)  # cached: for folders, which have many files
    for file in found:
        name = file.relative_to(root).as_posix()
        if any(part.startswith(".") for part in name.split("/")):
            continue
        if not Path(os.path.realpath(file) if file.is_symlink() else real(file.parent)).is_relative_to(inside):
            skipped[_OUTSIDE] += 1
        elif file.is_file():
            files[name] = file
        elif not file.is_dir():
            skipped[_SPECIAL] += 1
    return files, skipped


def _kind(file: Path) -> str:
    """The file type, by suffix; empty if unsupported."""
    return next((kind for kind in (*TABLES, *_TEXT_FILES, *DOCUMENTS) if file.name.lower().endswith(kind)), "")


_TEXT_FILES: dict[str, Callable[[Iterable[str], int, int], Iterator[Chunk]]] = {
    ".txt": split_text,
    ".md": split_markdown,
}
_KNOWN = f"{', '.join((*TABLES, *_TEXT_FILES, *DOCUMENTS))}, or a folder of them"
