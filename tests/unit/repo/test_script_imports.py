"""Scripts that CI does not run, such as benchmarks, still find what they import from the package."""

import ast
from pathlib import Path

import pytest

from tests.support import ROOT

FOLDERS = ("benchmarks", "checks", "docs", "examples", "experiments", "pretrain", "tests/gpu", "tests/support")
SCRIPTS = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def defined(path: Path) -> set[str]:
    """The names at the top of a module, also those below an `if` or `try`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def missing(path: Path) -> list[str]:
    """What a script imports from the package, and the package does not have."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] != "stepladder":
            continue
        place = ROOT / "src" / str(node.module).replace(".", "/")
        module = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        known = defined(module) if module.is_file() else set()
        known |= {each.stem for each in place.iterdir()} if place.is_dir() else set()
        if "__getattr__" not in known:  # such a module makes its names when they are asked for
            found += [f"{node.module}.{alias.name}" for alias in node.names if alias.name not in known]
    return found


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_script_finds_what_it_imports(path: Path) -> None:
    assert missing(path) == []


def test_a_missing_name_is_found(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from stepladder.core.trace import Pair, Missing\nfrom stepladder.core.gone import x\n")
    assert missing(script) == ["stepladder.core.trace.Missing", "stepladder.core.gone.x"]
