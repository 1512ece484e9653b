"""PDF, HTML, DOCX and CSV files become passages that name the page, heading or row; broken files are listed."""

import json
import zipfile
from pathlib import Path

import pytest
from pypdf import PageObject, PdfReader, PdfWriter

from stepladder.core.trace import Passage
from stepladder.retrieval.corpus import documents
from stepladder.retrieval.corpus.reader import read_corpus
from stepladder.retrieval.corpus.tables import CorpusError
from stepladder.retrieval.index.build import build_index, open_index
from stepladder.retrieval.index.manifest import check_index, unread_files
from tests.support.document_files import write_docx, write_pdf

TOWNS = ["Orla", "Venmoor", "Tarn", "Quill", "Sedge"]


def passages(path: Path) -> list[tuple[str, str]]:
    """The titles and texts of a corpus."""
    return [(passage.title, passage.text) for passage in read_corpus(path)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """20 files, four of each kind, two of them broken."""
    folder = tmp_path / "library"
    (folder / "more").mkdir(parents=True)
    for number, town in enumerate(TOWNS[:3]):
        pages = [[f"Manual of {town}."], [f"The lighthouse of {town} was", f"built in 18{number}0."], ["The end."]]
        write_pdf(folder / f"manual{number}.pdf", pages)
        write_docx(
            folder / f"report{number}.docx",
            [
                (0, f"Report on {town}"),
                (1, "Trade"),
                (2, "Exports"),
                (None, f"{town} exports barrels of salt{number}."),
            ],
        )
    for number, town in enumerate(TOWNS[:4]):
        (folder / f"page{number}.html").write_text(
            f"<title>{town}</title><nav>Home</nav><h1>{town}</h1><p>Welcome.<h2>Ferry</h2>"
            f"<p>The ferry number F{number} leaves at noon.<script>var x = 'ferry'</script>"
        )
        (folder / f"people{number}.csv").write_text(f"name,role\nAda{number},mayor of {town}\nBo{number},baker\n")
        (folder / "more" / f"notes{number}.md").write_text(
            f"# {town}\n## Weather\nIt rains on {town} in month{number}.\n"
        )
    (folder / "broken.pdf").write_bytes((folder / "manual0.pdf").read_bytes()[:200])
    (folder / "broken.docx").write_bytes((folder / "report0.docx").read_bytes()[:2000])
    assert sum(file.is_file() for file in folder.rglob("*")) == 20
    return folder


def test_a_folder_of_documents_is_indexed_searched_and_cited(folder: Path, tmp_path: Path) -> None:
    info = build_index(folder, tmp_path / "ix")
    assert info.left_out == {"unreadable files": 2}
    unread = unread_files(tmp_path / "ix")
    assert list(unread) == ["broken.docx", "broken.pdf"]
    assert unread["broken.docx"].startswith("broken, or not DOCX: ")
    assert unread["broken.pdf"].startswith("broken, or not PDF: ")
    check_index(tmp_path / "ix")  # the list belongs to the index
    index = open_index(tmp_path / "ix")
    queries = {
        "lighthouse of Venmoor": ("manual1.pdf#2", "manual1.pdf, page 2"),
        "barrels salt2": ("report2.docx#1", "report2.docx, Report on Tarn > Trade > Exports"),
        "ferry F3": ("page3.html#2", "page3.html, Quill > Ferry"),
        "Bo1 baker": ("people1.csv#2", "people1.csv, row 3"),
        "rains month2": ("more/notes2.md#1", "notes2: Tarn > Weather"),
    }
    for (wanted, title), (first, *_) in zip(queries.values(), index.search(list(queries), 3)):
        assert (first.id, first.title) == (wanted, title)
    index.close()


def test_pages_of_a_pdf(tmp_path: Path) -> None:
    lines = ["The light-", "house (old) is a well-known", "Sight-", "Seeing place."]
    path = write_pdf(tmp_path / "guide.pdf", [lines, ["One two three. Four five six."]])
    assert [(each.title, each.text) for each in read_corpus(path, words=5, overlap=0)] == [
        ("guide.pdf, page 1", "The lighthouse (old) is a"),
        ("guide.pdf, page 1", "well-known\nSight-\nSeeing place."),
        ("guide.pdf, page 2", "One two three."),
        ("guide.pdf, page 2", "Four five six."),
    ]


def test_many_pages_of_a_pdf(tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "long.pdf", [[f"Page number {number}."] for number in range(1, 46)])
    assert passages(path) == [(f"long.pdf, page {number}", f"Page number {number}.") for number in range(1, 46)]


def test_a_broken_page_does_not_cost_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pdf(tmp_path / "a.pdf", [["One."], ["Two."], ["Three."]])
    extract = PageObject.extract_text

    def fail(page: PageObject) -> str:
        text = extract(page).strip()
        if text == "Two.":
            raise KeyError("/Font")
        return text + "\ud800"

    monkeypatch.setattr(PageObject, "extract_text", fail)
    corpus = read_corpus(tmp_path)
    assert [(each.title, each.text) for each in corpus] == [
        ("a.pdf, page 1", "One.\ufffd"),
        ("a.pdf, page 3", "Three.\ufffd"),
    ]
    assert corpus.unread == {"a.pdf": "read only in part: 1 of 3 pages are broken (page 2: '/Font')"}


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-256"])
def test_encrypted_pdfs(tmp_path: Path, algorithm: str) -> None:
    plain = write_pdf(tmp_path / "plain.pdf", [["A secret."]])
    for name, password in {"locked": "user", "open": ""}.items():
        writer = PdfWriter(clone_from=PdfReader(plain))
        writer.encrypt(password, "owner", algorithm=algorithm)
        writer.write(tmp_path / f"{name}.pdf")
    message = r"locked.pdf: encrypted: it needs a password. Save a copy without one: qpdf --decrypt IN OUT"
    with pytest.raises(CorpusError, match=message):
        list(read_corpus(tmp_path / "locked.pdf"))
    assert passages(tmp_path / "open.pdf") == [("open.pdf, page 1", "A secret.")]  # only printing is restricted
    corpus = read_corpus(tmp_path / "*.pdf")
    assert len(list(corpus)) == 2
    assert list(corpus.unread) == ["locked.pdf"]


def test_pdfs_without_text(tmp_path: Path) -> None:
    write_pdf(tmp_path / "scan.pdf", [[], []])
    write_pdf(tmp_path / "mixed.pdf", [["Typed."], [], ["Typed again."]])
    (tmp_path / "nothing.pdf").write_bytes(b"")
    corpus = read_corpus(tmp_path)
    assert [passage.title for passage in corpus] == ["mixed.pdf, page 1", "mixed.pdf, page 3"]
    assert corpus.unread == {
        "mixed.pdf": "read only in part: no text on 1 of 3 pages, which are images (2)",
        "nothing.pdf": "the file is empty",
        "scan.pdf": "it has no text, only images (a scan?) or nothing: recognize the text first, for instance with "
        "ocrmypdf IN OUT",
    }
    for name in ("scan.pdf", "nothing.pdf"):
        with pytest.raises(CorpusError, match=rf"{name}: {corpus.unread[name][:10]}"):
            list(read_corpus(tmp_path / name))
    with pytest.raises(CorpusError, match=r"no passages found.* unreadable files: 2; nothing.pdf: the file is empty"):
        list(read_corpus(tmp_path / "[ns]*.pdf"))


def test_what_is_text_in_html(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    page.write_text(
        "<!doctype html><title>The  Site</title><style>p {}</style><body>Before.<nav>Menu</nav>"
        "<h1>Tea &amp; <b>cake</b></h1><p>First\nline, <i>it</i>alic.<p>Second&nbsp;one<br>broken.<ul><li>a<li>b</ul>"
        "<h2>Prices<h2>Open</h2><table><tr><th>Day<th>Hours<tr><td>Monday<td>9-5</table><pre>x = 1\n  y</pre>"
        "<script>if (a < b) {}</script><footer>Imprint</footer><h1>End</h1>"
    )
    assert passages(page) == [
        ("a.html, The Site", "Before."),
        ("a.html, Tea & cake", "First line, italic.\n\nSecond one\nbroken.\n\na\nb"),
        ("a.html, Tea & cake > Prices Open", "Day | Hours\nMonday | 9-5\n\nx = 1\n  y"),
        ("a.html, End", ""),
    ]


@pytest.mark.parametrize(
    "content",
    [
        "<p>Café — olé".encode(),
        "\ufeff<p>Café — olé".encode(),
        "<p>Café — olé".encode("windows-1252"),
        '<meta charset="iso-8859-1"><p>Café — olé'.encode("windows-1252"),
        '<meta charset="no-such"><p>Café — olé'.encode(),
        "<p>Café — olé".encode("utf-16"),
        '<meta http-equiv="Content-Type" content="text/html; charset=macroman"><p>Café — olé'.encode("macroman"),
        "<p>Ca\0fé".encode() + b" \xe2\x80\x94 ol\xc3\xa9",
        '<meta charset="utf-16"><p>Café — olé'.encode(),  # not what it declares, as browsers know
        '<meta charset="gb2312"><p>Café — olé'.encode("gb18030"),
    ],
)
def test_encodings_of_html(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.htm").write_bytes(content)
    assert passages(tmp_path / "a.htm") == [("a.htm", "Café — olé")]


def test_html_without_text_or_of_deep_nesting(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<nav>Home</nav>")
    (tmp_path / "b.html").write_text("<div>" * 5000 + "deep" + "</div>" * 5000)
    corpus = read_corpus(tmp_path)
    assert [passage.text for passage in corpus] == ["deep"]
    assert corpus.unread == {"a.html": "it has no text"}


def test_a_page_within_a_form_is_read_without_its_controls(tmp_path: Path) -> None:
    controls = "<select><option>all</select><textarea>Write</textarea><button>Go</button>"
    (tmp_path / "a.html").write_text(f"<form><h1>Orla</h1><p>A town.</p>{controls}</form>")
    assert passages(tmp_path / "a.html") == [("a.html, Orla", "A town.")]


def test_a_row_of_many_cells_takes_no_time(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<table><tr>" + "<td> " * 30_000 + "".join(f"<td>{n}" for n in range(30_000)))
    assert len(passages(tmp_path / "a.html")) > 100


def test_docx_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old.docx").write_bytes(bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600))
    write_docx(tmp_path / "empty.docx", [])
    with zipfile.ZipFile(tmp_path / "sheet.docx", "w") as file:
        file.writestr("xl/workbook.xml", "<x/>")
    with zipfile.ZipFile(tmp_path / "vast.docx", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("word/document.xml", b" " * 2_000_000)
    monkeypatch.setattr(documents, "MAX_UNPACKED", 1_000_000)
    (tmp_path / "note.txt").write_text("Fine.")
    corpus = read_corpus(tmp_path)
    assert list(corpus) == [Passage("note.txt#1", "note", "Fine.")]
    assert corpus.unread.pop("sheet.docx").startswith("broken, or not DOCX: ")
    assert corpus.unread == {
        "empty.docx": "it has no text",
        "old.docx": "encrypted, or a .doc file of an old version: save it as .docx without a password",
        "vast.docx": "it unpacks to 2.0 MB, more than the limit of 1.0 MB: split it",
    }


def test_styles_of_docx_that_are_based_on_each_other(tmp_path: Path) -> None:
    import docx

    document = docx.Document()
    one, other = (document.styles.add_style(name, 1) for name in ("One", "Other"))
    one.base_style, other.base_style = other, one
    document.add_paragraph("Fine.", style="One")
    document.save(str(tmp_path / "a.docx"))
    assert passages(tmp_path / "a.docx") == [("a.docx", "Fine.")]


def test_tables_in_docx(tmp_path: Path) -> None:
    import docx

    document = docx.Document()
    table = document.add_table(4, 2)
    written = ("Day", "Hours", "all days", "", "Sunday", "9-5", "", "6-8")
    for cell, text in zip((cell for row in table.rows for cell in row.cells), written):
        cell.text = text
    table.cell(1, 0).merge(table.cell(1, 1))
    table.cell(2, 0).merge(table.cell(3, 0))
    document.save(str(tmp_path / "hours.docx"))
    rows = "Day | Hours\nall days\nSunday | 9-5\nSunday | 6-8"
    assert passages(tmp_path / "hours.docx") == [("hours.docx", rows)]
    first, wide = table.cell(0, 0)._tc, table.cell(1, 0)._tc
    first.vMerge = "continue"  # of nothing
    wide.grid_span = 10**9  # as cells, they would take all memory
    document.save(str(tmp_path / "hours.docx"))
    assert passages(tmp_path / "hours.docx") == [("hours.docx", rows)]


def test_rows_of_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('name;note\r\nTea;"hot;\nsweet"\r\n\r\n;\r\nCake;;extra\r\n')
    assert passages(tmp_path / "a.csv") == [
        ("a.csv, row 2", "name: Tea\nnote: hot;\nsweet"),
        ("a.csv, row 5", "name: Cake\nextra"),
    ]
    (tmp_path / "b.csv").write_text('id,title,text\n7,Orla,"A city, large"\n')
    assert list(read_corpus(tmp_path / "b.csv")) == [Passage("7", "Orla", "A city, large")]
    (tmp_path / "c.csv").write_text("name,note\n")
    (tmp_path / "d.csv").write_text("id,text\n7\n")
    (tmp_path / "e.csv").write_bytes(b"name\nOrl\xe9ans\n")
    (tmp_path / "f.csv").write_bytes(b"name,note\rTea,hot\r")
    (tmp_path / "g.csv").write_text(f'name,"{"x" * 200_000}"\n')
    corpus = read_corpus(tmp_path)
    assert len(list(corpus)) == 3
    assert corpus.unread.pop("f.csv").startswith("broken, or not CSV: new-line character")
    assert corpus.unread == {
        "c.csv": "it has no rows below the header",
        "d.csv": "line 2: expected 2 fields (id, text), found 1",
        "e.csv": "line 2: not UTF-8: byte 0xe9 at position 3; save the file as UTF-8",
        "g.csv": "broken, or not CSV: field larger than field limit (131072)",
    }


def test_texts_that_cannot_be_read_and_unknown_formats_are_listed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(b"One two.\n" * 100 + b"Orl\xe9ans")
    (tmp_path / "in" / "b.txt").write_text("Good.")
    (tmp_path / "in" / "c.odt").write_text("?")
    info = build_index(tmp_path / "in", tmp_path / "ix", words=4, overlap=0)
    reason = "read only in part: line 101: not UTF-8: byte 0xe9 at position 3; save the file as UTF-8"
    assert info.left_out == {"duplicates": 48, "unreadable files": 1, "other files": 1}
    assert unread_files(tmp_path / "ix") == {"a.txt": reason, "c.odt": "unknown format"}
    rows = (tmp_path / "ix" / "unread.jsonl").read_text().splitlines()
    assert json.loads(rows[1]) == {"file": "c.odt", "reason": "unknown format"}


def test_progress_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in "ab":
        (tmp_path / "in" / f"{name}.txt").write_text("".join(f"{name} number {number}.\n" for number in range(9_000)))
    told: list[tuple[str, int, int]] = []
    build_index(tmp_path / "in", tmp_path / "ix", words=60, progress=lambda *now: told.append(now))
    done = [now[1] for now in told if now[0] == "Reading the corpus (kB)"]
    total = sum(file.stat().st_size for file in (tmp_path / "in").iterdir()) // 1000
    assert {now[2] for now in told if now[0] == "Reading the corpus (kB)"} == {total}
    assert done == sorted(done)
    assert done[-1] == total
    assert any(total // 2 < each < total for each in done)


def test_progress_after_the_end_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" ".join(f"word{number}" for number in range(900)))  # one sentence, read at once
    told: list[tuple[int, int]] = []
    build_index(tmp_path / "a.txt", tmp_path / "ix", words=2, overlap=0, progress=lambda _, *now: told.append(now))
    assert told[:5] == [(7, 7)] * 5


def test_the_command_that_installs_a_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pdf(tmp_path / "a.pdf", [["Text."]])
    monkeypatch.setattr(documents, "find_spec", lambda name: None)
    with pytest.raises(CorpusError, match=r"PDF files need the library pypdf. Install it with: .*\[documents\]"):
        list(read_corpus(tmp_path))
