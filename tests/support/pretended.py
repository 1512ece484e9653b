"""Stages that only pretend to work: they leave what they should make, and tell something."""

from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stepladder.pipeline import run_recipe, runner
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.stages import STAGES, StageResult, Task, get_stage

TRAINED = {"steps": 3, "first_loss": 0.7, "last_loss": 0.1}
FILTERED = {"sampled": 80, "answered": 70, "right_answer": 40, "good_steps": 30, "distinct": 20, "kept": 9}
#: What stages tell that only pretend to work.
SUMMARIES: dict[str, dict[str, Any]] = {
    "explore": {"trees": 1, "nodes": 2, "simulations": 3, "mean_f1": 1, "solved": 1, "shared": 0, "failed": 0,
                "tokens_written": None},
    "pairs": {"pairs": 1, "questions": 1, "gold": None, "kinds": {}, "depths": {}, "margins": {}, "dropped": {},
              "train": 1, "dev": 0, "judge": "spre"},
    "prm": {"pairs": 9, "held_out_pairs": 0, **TRAINED},
    "rft": {"questions": 10, **FILTERED, "broken": 0, "first_bad_step": {}, "first_bad_kind": {},
            "tokens_sampled": 5000, "skipped_too_long": 0, **TRAINED},
    "dpo": {"pairs": 9, "held_out_pairs": 0, "refused": {}, "questions": 4, **TRAINED},
}  # fmt: skip


Begin = Callable[..., Path]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Begins a run of stages of some kinds, which do nothing but leave what they should make."""

    def worker(kind: str) -> Callable[..., StageResult]:
        def work(settings: object, context: object, task: Task) -> StageResult:
            outputs = {role: task.folder / role for role in get_stage(kind).outputs}
            for path in outputs.values():
                path.write_text("made")
            return StageResult(SUMMARIES.get(kind, {}), outputs)

        return work

    for kind in set(STAGES) - {"eval"}:
        pretended = replace(get_stage(kind), run=worker(kind))
        # Checks look at the data, which takes seconds; but that files are there is for these tests to see.
        unchecked = pretended if kind == "pairs-file" else replace(pretended, check=lambda *_: None)
        monkeypatch.setitem(STAGES._targets, kind, unchecked)

    # A policy that is a line of text plays no dev questions.
    monkeypatch.setattr(runner, "score_policies", lambda *_: None)

    def begun(*kinds: str) -> Path:
        recipe = Recipe.read({"policy": "tiny", "device": "cpu", "stages": {kind: {} for kind in kinds}})
        return run_recipe(recipe, tmp_path / "run", console=Console(file=StringIO())).folder

    return begun
