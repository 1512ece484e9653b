"""Read HTML as headings and lines of text, in constant memory.

In: an HTML file. Out: its blocks, in order: headings with their level, lines of text with level 0, an empty line
between paragraphs. The page's title is a heading of level 1, up to the first `<h1>`. Scripts, styles,
navigation, footers and the controls of forms are left out. lxml parses without building a tree.
"""

import codecs
import re
from collections.abc import Iterator
from pathlib import Path

from stepladder.core.io.jsonl import Watch

_CHARSET = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
#: As browsers do: these names mean another encoding. A declaration that can be read as ASCII is not UTF-16.
_MEANT = {"ascii": "windows-1252", "iso8859-1": "windows-1252", "gb2312": "gb18030", "gbk": "gb18030"}
_NOT_MEANT = ("utf-16", "utf-32")
#: Bytes in which an encoding may be declared, and bytes read at a time.
_DECLARED, _BLOCK = 4096, 1 << 16

_LEFT_OUT = re.compile("script|style|noscript|template|svg|nav|footer|button|select|textarea|iframe|object")
_INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|ins|kbd|label|mark|q|s|samp|small|span|strike|"
    "strong|sub|sup|time|tt|u|var|wbr|html|body|head|meta|link"
)
#: Followed by an empty line; other elements only by a line break.
_PARAGRAPHS = re.compile("p|pre|blockquote|table|ul|ol|dl|section|article|main|figure|hr")
_CELLS = frozenset(("td", "th"))
_HEADINGS = {f"h{level}": level for level in range(1, 7)}

Block = tuple[int, str]


def html_blocks(path: Path, watch: Watch) -> Iterator[Block]:
    """The headings and lines of an HTML file."""
    from lxml import etree

    page = _Page()
    parser = etree.HTMLParser(target=page, encoding="utf-8", huge_tree=True)
    with path.open("rb") as file:
        watch(file.tell)
        decoder = codecs.getincrementaldecoder(_encoding(path))(errors="replace")
        while block := file.read(_BLOCK):
            parser.feed(_plain(decoder.decode(block)))
            yield from page.take()
        parser.feed(_plain(decoder.decode(b"", final=True)) + b"<br>")  # lxml refuses to close what has no element
    parser.close()
    yield from page.take()


def _plain(text: str) -> bytes:
    return text.replace("\0", "").encode("utf-8", "replace")


def _encoding(path: Path) -> str:
    """The encoding of a page: as marked, as declared, UTF-8 if valid, else windows-1252."""
    with path.open("rb") as file:
        start = file.read(_DECLARED)
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        declared = None if start.startswith(codecs.BOM_UTF8) else _CHARSET.search(start)
        if declared:
            try:
                name = codecs.lookup(declared[1].decode("ascii", "replace")).name
                if not name.startswith(_NOT_MEANT):
                    return _MEANT.get(name, name)
            except LookupError:
                pass
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        try:
            decoder.decode(start)
            while block := file.read(_BLOCK):
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return "windows-1252"
    return "utf-8-sig"


class _Page:
    """Collects blocks from the events of a parser."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._line: list[str] = []
        #: Open elements that are left out, and the heading that is open.
        self._hidden: list[str] = []
        self._heading = ""
        #: The page's title, as long as nothing follows it.
        self._title = ""
        self._pre = 0

    def take(self) -> list[Block]:
        """The blocks since the last call."""
        taken, self._blocks = self._blocks, []
        return taken

    def start(self, tag: str, _attributes: object) -> None:
        if self._hidden or _LEFT_OUT.fullmatch(tag):
            self._hidden += [tag] if _LEFT_OUT.fullmatch(tag) else []
        elif self._heading:
            self._line.append(" ")
        elif tag == "title" or tag in _HEADINGS:
            self._end_line()
            self._heading = tag
        elif tag in _CELLS:
            if any(map(str.strip, self._line)):
                self._line.append(" | ")
            else:
                self._line = []
        elif not _INLINE.fullmatch(tag):
            self._end_line(paragraph=_PARAGRAPHS.fullmatch(tag) is not None)
            self._pre += tag == "pre"

    def end(self, tag: str) -> None:
        if self._hidden:
            if tag == self._hidden[-1]:
                self._hidden.pop()
        elif self._heading:
            if tag == self._heading:
                text = " ".join("".join(self._line).split())
                if tag == "title":
                    self._title = text
                elif text:
                    self._add(_HEADINGS[tag], text)
                self._line, self._heading = [], ""
        elif tag not in _CELLS and not _INLINE.fullmatch(tag):
            self._end_line(paragraph=_PARAGRAPHS.fullmatch(tag) is not None)
            self._pre -= tag == "pre"

    def data(self, text: str) -> None:
        if self._hidden:
            return
        first, *others = text.split("\n") if self._pre else [text]
        self._line.append(first)
        for line in others:
            self._end_line()
            self._line.append(line)

    def close(self) -> None:
        self._end_line()

    def _end_line(self, *, paragraph: bool = False) -> None:
        text = "".join(self._line).rstrip() if self._pre else " ".join("".join(self._line).split())
        self._line = []
        if text:
            self._add(0, text)
        if paragraph and self._blocks and self._blocks[-1] != (0, ""):
            self._blocks.append((0, ""))

    def _add(self, level: int, text: str) -> None:
        if self._title and level != 1:
            self._blocks.append((1, self._title))
        self._title = ""
        self._blocks.append((level, text))
