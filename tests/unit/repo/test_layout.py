"""The layout of the source and of the tests: sizes of folders and files, names of modules, imports between tests."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.support import ROOT

PACKAGE = ROOT / "src" / "stepladder"
TESTS = ROOT / "tests"
SOURCES = sorted(PACKAGE.rglob("*.py"))
#: Names that may occur in several packages, because the package says which one. Stages are named after what they run.
SHARED_NAMES = {"__init__", "base", "config", "engine", "registry", "trainer", "trl_trainer"}


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def imported(path: Path) -> set[str]:
    """The modules that a file imports, by their full names, wherever in it; also what it imports from them."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_no_folder_has_more_than_16_python_files() -> None:
    counts = Counter(path.parent.relative_to(PACKAGE).as_posix() for path in SOURCES)
    assert {folder: count for folder, count in counts.items() if count > 16} == {}


def test_the_package_has_at_most_20_entries_at_its_top() -> None:
    top = {path.relative_to(PACKAGE).parts[0] for path in SOURCES}
    assert len(top) <= 20, sorted(top)


def test_modules_have_names_of_their_own() -> None:
    stages = PACKAGE / "pipeline" / "stages"
    counts = Counter(path.stem for path in SOURCES if path.parent != stages)
    assert {name: count for name, count in counts.items() if count > 1 and name not in SHARED_NAMES} == {}


def test_no_file_is_longer_than_400_lines() -> None:
    assert {str(path.relative_to(ROOT)): lines(path) for path in SOURCES if lines(path) > 400} == {}


def test_the_source_is_at_most_66000_lines() -> None:
    assert sum(map(lines, SOURCES)) <= 66_000


def test_every_test_is_in_the_folder_of_its_kind() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    folders = {path.parent.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")}
    assert folders <= {"e2e", "gpu", "unit/repo"} | {f"unit/{package}" for package in packages}


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: path.relative_to(TESTS).as_posix())
def test_test_modules_do_not_import_each_other(path: Path) -> None:
    found = {name for name in imported(path) if any(part.startswith(("test_", "conftest")) for part in name.split("."))}
    assert found == set(), "what several tests need belongs into tests/support"
