"""Runs in the constrained format: the library that masks tokens is missed before any stage starts."""

import sys
from pathlib import Path

import pytest

from stepladder.core.errors import BackendDown
from stepladder.pipeline import run_recipe
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.resources import RunContext


def recipe(**shared: object) -> Recipe:
    stages = {"sft": {"questions": 2}, "eval": {"limit": 1}}
    data = {"name": "atlas-small"}
    return Recipe.read({"name": "r", "policy": "tiny", "data": data, **shared, "stages": stages}, "r")


def test_a_missing_library_is_an_error_before_the_first_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    constrained = recipe(agent="prorag-brief", prompting={"format": "constrained"})
    with pytest.raises(BackendDown, match=r"needs llguidance, which is not installed: .*or use format: lenient"):
        run_recipe(constrained, tmp_path / "run")
    assert not list((tmp_path / "run").glob("*/*"))


@pytest.mark.parametrize(
    ("format", "engine", "trains"), [("lenient", "transformers", True), ("constrained", "vllm", False)]
)
def test_it_is_not_needed_where_it_is_not_used(
    format: str, engine: str, trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    shared = recipe(agent="prorag-brief", prompting={"format": format}, engine=engine).shared
    RunContext(shared).check_decoding(trains=trains)
