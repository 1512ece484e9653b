"""Read documents: PDF, HTML, DOCX and CSV files as sections with a place to cite.

In: a file of a type in `DOCUMENTS`. Out: its chunks, whose title is the place in the document:

    .pdf          "page 3"                pypdf. Encrypted files, and pages that are images only, cannot be read
    .html .htm    "Heading > Subheading"  lxml
    .docx         "Heading > Subheading"  python-docx
    .csv          "row 12"                every row is a text, "column: value"; the header is row 1, as in a spreadsheet

A document is converted page by page or, for DOCX, in memory, if it unpacks to at most `MAX_UNPACKED` bytes. Whatever is
wrong with a file is a `DocumentError` with the reason. The libraries are those of the extra `documents`.
"""

import csv
import logging
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.core.extras import install_command
from stepladder.core.io.jsonl import Watch, text_lines
from stepladder.core.memory import format_bytes
from stepladder.core.unicode import replace_surrogates
from stepladder.retrieval.corpus.html_blocks import html_blocks
from stepladder.retrieval.corpus.splitting import Chunk, Section, by_heading, split_sections
from stepladder.retrieval.corpus.tables import CorpusError

if TYPE_CHECKING:
    from docx.table import Table
    from docx.text.paragraph import Paragraph
    from pypdf import PageObject

#: Maximum unpacked bytes of a DOCX file, which is read into memory.
MAX_UNPACKED = 2**28
#: PDF pages after which objects are read again: otherwise those of all pages, and their images, stay in memory.
_PAGES = 20
_OLD_OFFICE = bytes.fromhex("d0cf11e0")
_HEADING_STYLE = re.compile(r"heading (\d)", re.IGNORECASE)
_HYPHEN = re.compile(r"(?<=[a-z])-\n(?=[a-z])")


class DocumentError(CorpusError):
    """A document that cannot be read, or only in part. The message is the reason, without the file."""


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """How a type of document is read."""

    name: str
    #: The module that it needs; empty if none.
    module: str
    sections: Callable[[Path, Watch], Iterator[Section]]
    #: Why a document may be without any text.
    empty: str


def check_installed(kinds: Iterable[str]) -> None:
    """Raise if a library that one of these types needs is not installed."""
    for suffix in kinds:
        module = DOCUMENTS[suffix].module if suffix in DOCUMENTS else ""
        if module and find_spec(module) is None:
            raise CorpusError(
                f"{DOCUMENTS[suffix].name} files need the library {module}. Install it with: "
                f"{install_command('documents')}"
            )


def read_document(path: Path, kind: str, words: int, overlap: int, watch: Watch) -> Iterator[Chunk]:
    """The chunks of a document, each with its place as the title."""
    known, found = DOCUMENTS[kind], False
    try:
        if not path.stat().st_size:
            raise DocumentError("the file is empty")
        for chunk in split_sections(known.sections(path, watch), words, overlap):
            found = True
            yield chunk
    except (CorpusError, MemoryError):
        raise
    except Exception as error:  # the libraries raise anything on a broken file
        raise DocumentError(f"broken, or not {known.name}: {_cause(error)}") from error
    if not found:
        raise DocumentError(known.empty)


def _pdf_sections(path: Path, watch: Watch) -> Iterator[Section]:
    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns of every small defect
    with PdfReader(path) as reader:
        if reader.is_encrypted and not reader.decrypt(""):
            raise DocumentError("encrypted: it needs a password. Save a copy without one: qpdf --decrypt IN OUT")
        size, total, number = path.stat().st_size, len(reader.pages), 0
        images, broken = list[str](), list[str]()
        watch(lambda: size * number // max(total, 1))
        for number in range(1, total + 1):
            try:
                page = reader.pages[number - 1]
                text = replace_surrogates(_HYPHEN.sub("", page.extract_text())).strip()
                images += [str(number)] if not text and _has_image(page) else []
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - the other pages can be read
                broken.append(f"page {number}: {_cause(error)}")
                continue
            if text:
                yield f"page {number}", text.splitlines()
            if number % _PAGES == 0:
                reader.resolved_objects.clear()
    if broken:
        raise DocumentError(f"{len(broken)} of {total} pages are broken ({'; '.join(broken[:3])})")
    if images and len(images) < total:
        raise DocumentError(f"no text on {len(images)} of {total} pages, which are images ({', '.join(images[:20])})")


def _cause(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]


def _has_image(page: "PageObject") -> bool:
    resources = page.get("/Resources")
    objects = resources.get_object().get("/XObject") if resources else None
    found = (each.get_object() for each in objects.get_object().values()) if objects else ()
    return any(each.get("/Subtype") == "/Image" for each in found)


def _html_sections(path: Path, watch: Watch) -> Iterator[Section]:
    return by_heading(html_blocks(path, watch))


def _docx_sections(path: Path, _watch: Watch) -> Iterator[Section]:
    with path.open("rb") as file:
        if file.read(4) == _OLD_OFFICE:
            raise DocumentError("encrypted, or a .doc file of an old version: save it as .docx without a password")
        with zipfile.ZipFile(file) as parts:
            unpacked = sum(each.file_size for each in parts.infolist())
    if unpacked > MAX_UNPACKED:
        size, limit = format_bytes(unpacked), format_bytes(MAX_UNPACKED)
        raise DocumentError(f"it unpacks to {size}, more than the limit of {limit}: split it")
    return by_heading(_docx_blocks(path))


def _docx_blocks(path: Path) -> Iterator[tuple[int, str]]:
    import docx
    from docx.table import Table

    levels: dict[str | None, int] = {}  # by style id: looking up a style takes milliseconds
    for each in docx.Document(str(path)).iter_inner_content():
        if isinstance(each, Table):
            yield from ((0, row) for row in _table_rows(each))
        else:
            if (style := each._p.style) not in levels:
                levels[style] = _heading_level(each)
            level = levels[style]
            yield from ((level, line) for line in ([each.text.strip()] if level else each.text.splitlines()))
        yield 0, ""


def _heading_level(paragraph: "Paragraph") -> int:
    """The level of a heading, below the document's title (1); 0 for text."""
    style, seen = paragraph.style, set[str]()
    while style is not None and style.style_id not in seen:  # styles of a broken file may be based on each other
        seen.add(style.style_id)
        if style.name == "Title":
            return 1
        if found := _HEADING_STYLE.fullmatch(style.name or ""):
            return int(found[1]) + 1
        style = style.base_style
    return 0


def _table_rows(table: "Table") -> Iterator[str]:
    """The rows as text. A merged cell is in every row that it spans, once.

    `row.cells` would repeat a cell for every column that it claims to span, and refuse one without a cell to continue.
    """
    from docx.table import _Cell

    above: dict[int, str] = {}  # by column
    for row in table.rows:
        column, texts = row.grid_cols_before, list[str]()
        for cell in row._tr.tc_lst:
            own = " ".join(_Cell(cell, table).text.split())
            text = above.get(column, own) if cell.vMerge == "continue" else own
            texts.append(text)
            above[column] = text
            column += cell.grid_span
        yield " | ".join(filter(None, texts))


def _csv_sections(path: Path, watch: Watch) -> Iterator[Section]:
    names: list[str] = []
    for number, row in enumerate(csv.reader(text_lines(path, CorpusError, watch), delimiter=csv_delimiter(path)), 1):
        if not names:
            names = row
            continue
        values = [value.strip() for value in row]
        named = zip([*names, *[""] * len(values)], values)
        if lines := [f"{name}: {value}" if name else value for name, value in named if value]:
            yield f"row {number}", lines


def csv_header(path: Path) -> list[str]:
    """The column names of a CSV file."""
    try:
        return next(csv.reader(text_lines(path, CorpusError), delimiter=csv_delimiter(path)), [])
    except csv.Error as error:  # line breaks of an old Mac, an endless field
        raise DocumentError(f"broken, or not CSV: {error}") from error


def csv_delimiter(path: Path) -> str:
    """The character that separates columns: the most frequent one of , ; tab and | in the first line."""
    return max(",;\t|", key=next(text_lines(path, CorpusError), "").count)


_NO_TEXT = "it has no text"
#: By file suffix.
DOCUMENTS = {
    ".pdf": DocumentKind(
        "PDF",
        "pypdf",
        _pdf_sections,
        "it has no text, only images (a scan?) or nothing: recognize the text first, for instance with ocrmypdf IN OUT",
    ),
    ".html": DocumentKind("HTML", "lxml", _html_sections, _NO_TEXT),
    ".htm": DocumentKind("HTML", "lxml", _html_sections, _NO_TEXT),
    ".docx": DocumentKind("DOCX", "docx", _docx_sections, _NO_TEXT),
    ".csv": DocumentKind("CSV", "", _csv_sections, "it has no rows below the header"),
}
