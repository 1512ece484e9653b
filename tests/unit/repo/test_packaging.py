"""What is published: the wheel, the container images and the citation."""

import fnmatch
import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from stepladder import __version__
from tests.support import ROOT

_SPEC = importlib.util.spec_from_file_location("wheel", ROOT / "checks/wheel.py")
assert _SPEC is not None and _SPEC.loader is not None  # noqa: PT018 - one condition for the type checker
wheel = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(wheel)

#: (instruction, words) of each line of the Dockerfile, with continued lines joined and comments left out.
DOCKERFILE = [
    (line.split()[0], line.split()[1:])
    for line in re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M)).splitlines()
    if line.strip()
]


# --- the wheel ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_wheel_has_the_package_its_weights_and_recipes_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = tmp_path.glob("stepladder-*.whl")
    names = set(zipfile.ZipFile(built).namelist())
    assert wheel.contents(names, wheel.tracked_files()) == []
    assert {
        "stepladder/models/nano/model.safetensors",
        "stepladder/recipes/prorag-nano.yaml",
        "stepladder/reporting/report/templates/report.html",
        "stepladder/py.typed",
    } <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]
    assert built.stat().st_size < wheel.MAX_MEGABYTES * 1e6


def test_a_wheel_with_a_stray_file_or_without_a_recipe_is_refused() -> None:
    tracked = {"src/stepladder/a.py", "recipes/b.yaml", "tests/test_a.py"}
    assert wheel.contents({"stepladder/a.py", "stepladder/recipes/b.yaml"}, tracked) == []
    assert wheel.contents({"stepladder/a.py", "stepladder/key.txt"}, tracked) == [
        "missing: stepladder/recipes/b.yaml",
        "unexpected: stepladder/key.txt",
    ]


# --- the container images -----------------------------------------------------------------------------------------


def stages() -> dict[str, list[tuple[str, list[str]]]]:
    """The instructions of each stage by its name."""
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for instruction, words in DOCKERFILE:
        if instruction == "FROM":
            assert words[1] == "AS", f"FROM {words[0]} has no name"
            found[words[2]] = []
        if found:
            list(found.values())[-1].append((instruction, words))
    return found


def test_there_is_an_image_for_cpus_and_one_for_gpus_and_neither_runs_as_root() -> None:
    for name in ("cpu", "gpu"):
        users = [words for instruction, words in stages()[name] if instruction == "USER"]
        assert users, f"the image {name} runs as root"
        assert users[-1][0].isdigit(), "Kubernetes can only check a number"
        assert int(users[-1][0]) > 0


def test_base_images_are_pinned_to_an_exact_version() -> None:
    arguments = dict(words[0].split("=", 1) for instruction, words in DOCKERFILE if instruction == "ARG")
    for name, instructions in stages().items():
        base = re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], instructions[0][1][0])
        assert base in stages() or re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+-[\w.-]+", base), f"{name} is made from {base}"


def test_what_the_images_copy_exists_and_is_let_through() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    for instruction, words in DOCKERFILE:
        assert instruction != "ADD"
        if instruction == "COPY" and not words[0].startswith("--from"):
            for source in words[:-1]:
                assert (ROOT / source).exists()
                assert f"!{source}" in rules
    assert rules[0] == "*", "everything that is not named stays out of the images"
    assert any(fnmatch.fnmatch("src/stepladder/.env", rule.replace("**/", "*")) for rule in rules)


def test_images_install_tested_versions_and_hold_no_secrets() -> None:
    for instruction, words in DOCKERFILE:
        line = " ".join(words)
        if "pip install" in line or "pip wheel" in line:
            assert "--constraint" in line
        if instruction in ("ARG", "ENV"):
            assert not re.search(r"token|secret|password|api_?key", line, re.IGNORECASE)


# --- citation and changes -----------------------------------------------------------------------------------------


def test_the_citation_and_the_changelog_name_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == __version__
    released = re.findall(r"^## \[(\d[^\]]*)\] - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert released[0] == (__version__, str(citation["date-released"]))
    assert [date for _, date in released] == sorted((date for _, date in released), reverse=True)
