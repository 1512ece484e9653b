"""Small PDF and DOCX files: pages of plain text, headings with paragraphs."""

from collections.abc import Iterable, Sequence
from pathlib import Path

_CATALOG = b"<< /Type /Catalog /Pages 2 0 R >>"
_FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
_IMAGE = (
    b"<< /Type /XObject /Subtype /Image /Width 1 /Height 1 /ColorSpace /DeviceGray /BitsPerComponent 8 /Length 1 >>\n"
    b"stream\n0\nendstream"
)


def write_pdf(path: Path, pages: Sequence[Sequence[str]]) -> Path:
    """A PDF whose pages have these lines of ASCII text; a page without lines shows an image."""
    numbers = range(5, 5 + 2 * len(pages), 2)
    kids = " ".join(f"{number} 0 R" for number in numbers)
    objects = [_CATALOG, f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(), _FONT, _IMAGE]
    for number, lines in zip(numbers, pages):
        used = "/Font << /F 3 0 R >>" if lines else "/XObject << /I 4 0 R >>"
        shown = "".join(f"({_escaped(line)}) Tj T*\n" for line in lines)
        content = f"BT /F 10 Tf 12 TL 50 780 Td\n{shown}ET".encode() if lines else b"/I Do"
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << {used} >> "
            f"/Contents {number + 1} 0 R >>".encode(),
            b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
        ]
    body, starts = bytearray(b"%PDF-1.4\n"), list[int]()
    for number, each in enumerate(objects, start=1):
        starts.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = "".join(f"{start:010} 00000 n \n" for start in starts)
    end = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(body)}\n%%EOF\n"
    path.write_bytes(body + f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{end}".encode())
    return path


def _escaped(line: str) -> str:
    return line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")


def write_docx(path: Path, blocks: Iterable[tuple[int | None, str]]) -> Path:
    """A DOCX file of headings (with their level; 0 is the title) and paragraphs (None)."""
    import docx

    document = docx.Document()
    for level, text in blocks:
        if level is None:
            document.add_paragraph(text)
        else:
            document.add_heading(text, level)
    document.save(str(path))
    return path
