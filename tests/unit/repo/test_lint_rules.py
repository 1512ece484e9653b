"""`make lint` fails on an upward import and on a word of the old vocabulary."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


def lint_imports(copy: Path) -> subprocess.CompletedProcess[str]:
    """Run the import contract of pyproject.toml on a copy of the sources."""
    return subprocess.run(
        [LINT_IMPORTS, "--no-cache"], cwd=copy, env={"PYTHONPATH": str(copy / "src")}, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("core/seeding.py", "from stepladder.cli import main", "Imports point downwards"),
        ("train/rft/filters.py", "from stepladder.train.sft import trainer", "Trainers do not import each other"),
        ("pipeline/stages/rft.py", "from stepladder.pipeline.stages import sft", "Stages do not import stages"),
    ],
)
def test_a_planted_import_breaks_its_contract(tmp_path: Path, file: str, line: str, contract: str) -> None:
    ignored = shutil.ignore_patterns("*.safetensors", "__pycache__", "tokenizer.json")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    path = tmp_path / "src/stepladder" / file
    path.write_text(path.read_text() + f"\n{line}\n")
    result = lint_imports(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{contract} BROKEN" in result.stdout


def check_words(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, ROOT / "checks/words.py", folder], capture_output=True, text=True)


def test_a_planted_word_is_found_with_what_to_write_instead(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/module.py").write_text('"""One row per update."""\n')
    assert check_words(tmp_path).returncode == 0
    (tmp_path / "src/module.py").write_text('"""What the policy has learnt."""\n')  # word-check: ignore
    result = check_words(tmp_path)
    assert result.returncode == 1
    assert result.stdout == "src/module.py:1: 'learnt': write 'learned, trained'\n"  # word-check: ignore
    (tmp_path / "src/module.py").write_text('seed_of("spoilt")  # word-check: ignore\n')
    assert check_words(tmp_path).returncode == 0
