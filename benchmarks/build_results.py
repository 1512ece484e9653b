"""The tables of the pages docs/results*.md, built from the files in benchmarks/results.

    python benchmarks/build_results.py           # writes every table anew, between its markers
    python benchmarks/build_results.py --check   # fails where a page is not what the files give

In: one JSON file per table, with what it was made by (benchmarks/results/README.md has the fields), and the pages:
prose with the markers `<!-- table: NAME -->` and `<!-- end of table -->`. Out: the pages with their tables. Prose is
not changed.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import Field

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
#: The first one begins with what is known.
PAGES = tuple(sorted((ROOT / "docs").glob("results*.md"), key=lambda page: (len(page.name), page.name)))
BEGIN, END = "<!-- table: {} -->", "<!-- end of table -->"
_BLOCK = re.compile(r"<!-- table: ([\w-]+) -->\n.*?<!-- end of table -->", re.DOTALL)
_SCALES = {"k": 1e3, "M": 1e6}

Text = Annotated[str, Field(min_length=1)]
Cell = int | float | str | tuple[int | float, ...] | None


# --- what a file holds ------------------------------------------------------------------------------------------


class Log(Config):
    """What the work took. None is not known."""

    seconds: float | None
    tokens: int | None
    #: What these are of.
    about: Text


class Provenance(Config):
    """What the numbers were made by. Each field must be there; those that may be None say so where it is not known."""

    command: Text
    #: Names or files, more than one where the lines of a table have several.
    recipe: tuple[Text, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    data: Text
    split: Text
    questions: int = Field(ge=1)
    hardware: Text
    #: The day of the measurement; where it is not known, the day on which the table appeared.
    date: date
    commit: str | None
    recipe_sha256: str | None
    versions: dict[str, str] | None
    log: Log | None


class Column(Config):
    """A column: which cell of a row it shows, and how. Two columns may show one cell in two ways."""

    label: str
    cell: Text
    show: Literal["text", "number", "interval", "mean", "range", "seeds"]
    format: Annotated[str, Field(pattern=r"^\+?,?\.\d(f[kM]?|%)$")] | None = None


def column(label: str, cell: str, show: str, form: str | None = None) -> dict[str, Any]:
    """A column as a file has it, for those who write such files."""
    return {"label": label, "cell": cell, "show": show} | ({"format": form} if form else {})


class Row(Config):
    """A line: a cell for each that the columns name, None where it is empty; and what was otherwise in its making."""

    cells: dict[str, Cell]
    provenance: dict[str, Any] = Field(default={})


class Table(Config):
    """One table."""

    id: Text
    title: Text
    #: A file with more of the same numbers, from the root of the repository.
    source: str | None
    #: Of all lines, but for what a line says of itself.
    provenance: dict[str, Any]
    columns: tuple[Column, ...] = Field(min_length=1)
    rows: tuple[Row, ...] = Field(min_length=1)

    def provenance_of(self, row: Row, where: str) -> Provenance:
        """All that is known of how a line was made."""
        return Provenance.read({**self.provenance, **row.provenance}, f"{where}: provenance")


def table_of(data: object, file: str) -> Table:
    """The table of a file, with all of it checked: what is wrong is an error that names the file and the field."""
    table = Table.read(data, file)
    if f"{table.id}.json" != file:
        raise StepladderError(f"{file}: id: expected {file.removesuffix('.json')!r}, as the file, found {table.id!r}")
    if table.source is not None and not (ROOT / table.source).is_file():
        raise StepladderError(f"{file}: source: {table.source} does not exist")
    rendered(table)
    return table


# --- a table ----------------------------------------------------------------------------------------------------


def rendered(table: Table) -> str:
    """The table in Markdown."""
    wanted = dict.fromkeys(column.cell for column in table.columns)
    lines = [_line([column.label for column in table.columns]), "|" + "---|" * len(table.columns)]
    for number, row in enumerate(table.rows, start=1):
        where = f"{table.id}.json: row {number}"
        if row.cells.keys() != wanted.keys():
            raise StepladderError(
                f"{where}: expected the cells {', '.join(wanted)} (an empty one is null), found {', '.join(row.cells)}"
            )
        seeds = len(table.provenance_of(row, where).seeds)
        texts = [_shown(row.cells[each.cell], each, seeds, f"{where}: {each.cell}") for each in table.columns]
        lines.append(_line(texts))
    return "\n".join(lines) + "\n"


def _line(texts: Sequence[str]) -> str:
    return "|" + "".join(f" {text} |" if text else " |" for text in texts)


def _shown(cell: Cell, column: Column, seeds: int, where: str) -> str:
    """A cell as its column shows it. Text is shown as it is, whatever the column."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        if "|" in cell or "\n" in cell:
            raise StepladderError(f"{where}: {cell!r} would break the table: it has a | or a new line in it")
        return cell
    many = cell if isinstance(cell, tuple) else ()
    if column.format is None or column.show == "text":
        raise StepladderError(f"{where}: found {cell!r}, but the column has no format or shows text")
    texts = [number_text(each, column.format) for each in many]
    match column.show:
        case "number" if isinstance(cell, int | float):
            return number_text(cell, column.format)
        case "interval" if len(many) == 3 and many[1] <= many[0] <= many[2]:
            return f"{texts[0]} [{texts[1]}, {texts[2]}]"
        case "range" if len(many) > 1:
            return f"{number_text(min(many), column.format)} to {number_text(max(many), column.format)}"
        case "mean" if len(many) == seeds:
            return number_text(fmean(many), column.format)
        case "seeds" if len(many) == seeds:
            return " ".join(texts)
    expected = {
        "number": "a number",
        "interval": "[mean, low, high]",
        "range": "a list of two or more numbers",
    }.get(column.show, f"a list of {seeds} numbers, one a seed")
    raise StepladderError(f"{where}: expected {expected}, found {list(many) if many else cell!r}")


def number_text(value: float, form: str) -> str:
    """A number as Python formats it; k and M at the end: in thousands, in millions. Integers are exact, shown whole.

    >>> number_text(0.5, "+.3f"), number_text(1_790_000.0, ".2fM"), number_text(1600, ".1f"), number_text(0.05, ".0%")
    ('+0.500', '1.79M', '1,600', '5%')
    """
    if scale := _SCALES.get(form[-1]):
        return f"{value / scale:{form[:-1]}}{form[-1]}"
    if isinstance(value, int) and form.endswith("f"):
        return f"{value:{'+' if form.startswith('+') else ''},}"
    return f"{value:{form}}"


# --- the page ---------------------------------------------------------------------------------------------------


def load_tables(folder: Path = RESULTS) -> dict[str, Table]:
    """All tables, by their names."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path.stem] = table_of(json.loads(path.read_text(encoding="utf-8")), path.name)
        except ValueError as error:
            raise StepladderError(f"{path.name}: expected JSON: {error}") from error
    return found


def check_places(text: str, tables: Mapping[str, Table]) -> None:
    """Each table must have one place in the text of all pages, and each place a file."""
    named = _BLOCK.findall(text)
    if not text.count("<!-- table:") == text.count(END) == len(named):
        raise StepladderError(
            f"the page has {text.count('<!-- table:')} `{BEGIN.format('NAME')}` and {text.count(END)} `{END}`; "
            "expected them in turn, each on a line of its own"
        )
    for name in dict.fromkeys([*named, *tables]):
        if name not in tables:
            raise StepladderError(f"the page has a place for the table '{name}', but there is no {name}.json")
        if named.count(name) != 1:
            raise StepladderError(
                f"the table '{name}' has {named.count(name)} places on the page, expected one: the lines "
                f"`{BEGIN.format(name)}` and `{END}`"
            )


def built(page: str, tables: Mapping[str, Table]) -> str:
    """A page with its tables as the files give them."""
    return _BLOCK.sub(lambda found: f"{BEGIN.format(found[1])}\n\n{rendered(tables[found[1]])}\n{END}", page)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or check them: 0 when they are as they should be, 1 when not, 2 when a file is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail where a table is not what its file gives"
    )
    parser.add_argument("--page", type=Path, action="append", help="a page, in place of docs/results*.md")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of the JSON files")
    chosen = parser.parse_args(arguments)
    try:
        tables = load_tables(chosen.results)
        pages = {path: path.read_text(encoding="utf-8") for path in chosen.page or PAGES}
        check_places("\n".join(pages.values()), tables)
        wanted = {path: built(page, tables) for path, page in pages.items()}
    except StepladderError as error:
        print(error, file=sys.stderr)
        return 2
    changed = 0
    for path, page in pages.items():
        blocks = zip(_BLOCK.finditer(page), _BLOCK.finditer(wanted[path]), strict=True)
        names = [after[1] for before, after in blocks if before[0] != after[0]]
        changed += len(names)
        if names and chosen.check:
            print(f"{path} is not what the files give: {', '.join(names)}", file=sys.stderr)
        elif names:
            with atomic_file(path) as file:
                file.write(wanted[path])
    if chosen.check and changed:
        print("`python benchmarks/build_results.py` writes them anew", file=sys.stderr)
        return 1
    found = f"{changed} written anew" if changed else "all as in the files"
    print(f"{len(pages)} pages, {len(tables)} tables, {found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
