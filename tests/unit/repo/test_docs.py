"""The documentation tells the truth: its Python runs, its commands work, its links lead somewhere."""

import re
from pathlib import Path

import pytest

from stepladder import cli
from tests.support import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
#: Pages with links, but without examples.
MORE_PAGES = [*(ROOT / name for name in ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
MORE_PAGES += sorted((ROOT / "docs/reference").rglob("*.md"))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_run(page: Path) -> None:
    for source in blocks(page, "python"):
        exec(compile(source, str(page), "exec"), {"__name__": "example"})  # noqa: S102 - our own pages


def commands() -> list[str]:
    lines = [line for page in PAGES for block in blocks(page, "bash") for line in block.splitlines()]
    return [line.split("#")[0].strip() for line in lines if line.startswith("stepladder ")]


@pytest.mark.parametrize("command", commands())
def test_commands_work(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(command.split()[1:]) == 0


@pytest.mark.parametrize("page", [*PAGES, *MORE_PAGES], ids=lambda page: page.name)
def test_links_and_named_files_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), f"{page.name} links to {target}"
    for name in re.findall(r"`((?:src|tests|benchmarks|docs)/[\w/.]+)`", page.read_text()):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_make_targets_named_in_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make (\w+)", (ROOT / "README.md").read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"the README says 'make {target}'"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) < 900


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_prose_wrap_at_120_columns(page: Path) -> None:
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    long = [line for line in prose.splitlines() if len(line) > 120]
    assert [line for line in long if not re.match(r" *(\||#|!?\[|<)", line)] == []


def test_the_glossary_has_every_term_once_in_order() -> None:
    rows = re.findall(r"^\| (.+?) \| .+ \|$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    terms = [row.lower() for row in rows if row != "term"]
    assert terms == sorted(set(terms))
