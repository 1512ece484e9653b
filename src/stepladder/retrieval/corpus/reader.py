"""Read corpora: tables of passages, or texts that are split into passages.

In: a file, a folder with such files at any depth, or a glob pattern ("wiki/part-*.jsonl.gz"); files are read in order
of their paths:

    .jsonl .jsonl.gz    one object per line, with id and contents, or id, title and text (tables.py)
    .parquet            the same as columns
    .tsv .tsv.gz        the same as columns, with a header line and csv quoting: DPR's id, text, title
    .txt .md            split by splitting.py; the ids are "folder/file.md#1", "folder/file.md#2", ...

Out: `Passage`s, one at a time. Blank and duplicate passages are skipped and counted, and so are links that lead out of
the folder and files that are not regular ones (a pipe would be read forever). Invalid passages are errors that name the
file and the line or row.
"""

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from pathlib import Path

from stepladder.core.io.jsonl import text_lines
from stepladder.core.trace import Passage
from stepladder.retrieval.corpus.splitting import Chunk, check_chunk_sizes, split_markdown, split_text
from stepladder.retrieval.corpus.tables import TABLES, CorpusError, read_table


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

    @property
    def left_out(self) -> dict[str, int]:
        """Counts of what was skipped, by reason."""
        counts = {"blank passages": self.blank, "duplicates": self.duplicates, **self.skipped}
        return {name: count for name, count in counts.items() if count}

    def signature(self) -> str:
        """A hash of the files' paths, sizes and modification times and of the split parameters."""
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
                f"{self.path}: no passages found. Files read: {len(self.files)}, blank passages: {self.blank}"
            )

    def _read(self, file: Path) -> Iterator[tuple[int, Passage]]:
        """The passages of a file, each with its line or row or, in a text, its number."""
        kind = _kind(file)
        if kind in TABLES:
            yield from read_table(file, kind)
            return
        name = os.fsencode(file.relative_to(self.root).as_posix()).decode(errors="replace")
        stem = Path(name).stem
        number = 0
        chunks = _TEXT_FILES[kind](text_lines(file, CorpusError), self.words, self.overlap)
        for number, chunk in enumerate(chunks, start=1):
            yield number, Passage(f"{name}#{number}", f"{stem}: {chunk.title}" if chunk.title else stem, chunk.text)
        if not number:
            yield 0, Passage(name, "", "")


def read_corpus(path: str | Path, *, words: int = 100, overlap: int = 20) -> Corpus:
    """The corpus in a file, a folder, or the files that match a glob pattern.

    Texts are split into passages of at most `words` words that overlap by `overlap` words; tables are not split.
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
    texts = [file for file in files if _kind(file) in _TEXT_FILES]
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
    skipped["other files"] = len(found) - len(files)
    return Corpus(path, files, root, skipped, words, overlap)


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
        key = passage.id.encode("utf-8", "surrogatepass")
        both = f"{len(passage.title)} {passage.title}{passage.text}"
        content = blake2b(both.encode("utf-8", "surrogatepass"), digest_size=16).digest()
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
    return next((kind for kind in (*TABLES, *_TEXT_FILES) if file.name.lower().endswith(kind)), "")


_TEXT_FILES: dict[str, Callable[[Iterable[str], int, int], Iterator[Chunk]]] = {
    ".txt": split_text,
    ".md": split_markdown,
}
#: Reasons to skip a file.
_OUTSIDE, _SPECIAL = "links out of the folder", "pipes, sockets, devices or broken links"
_KNOWN = f"{', '.join((*TABLES, *_TEXT_FILES))}, or a folder of them"
