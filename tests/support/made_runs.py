"""Run folders that look like those of `stepladder run` and are made in a moment: nothing is trained."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from stepladder.core.answer_metrics import QuestionScore
from stepladder.core.trace import Passage, Question, StopReason, Tree
from stepladder.driver import Driver
from stepladder.engines.scripted import ScriptedEngine
from stepladder.evaluation.evaluator import Evaluation
from stepladder.explore.mcts import mcts_search
from stepladder.explore.tree_store import TreeFile
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.run_folder import RunFolder, StageRecord, claim
from stepladder.pipeline.stage import EVALUATION
from stepladder.pipeline.stages.eval import main_numbers
from tests.support.samples import PASSAGES, QUESTION, WordRetriever
from tests.support.trees import AGENT, SETTINGS, stroll

RECIPE: dict[str, Any] = {
    "name": "example",
    "policy": "tiny",
    "agent": "prorag-brief",
    "device": "cpu",
    "stages": {"sft": {"questions": 4, "num_train_epochs": 2}, "explore": {"questions": 6}, "after": {"kind": "eval"}},
}
HOSTILE = Passage(
    "evil", "A <b>bold</b> title", "<script>document.title = 'taken over'</script> & more about the Tower"
)


class MadeRun:
    """A run's folder, to which stages are added one by one."""

    def __init__(self, path: Path, recipe: Mapping[str, Any] = RECIPE) -> None:
        self.path = path
        self.recipe = Recipe.read(dict(recipe))
        path.parent.mkdir(parents=True, exist_ok=True)
        with claim(path) as run:
            run.add_session({"started": "2026-01-02T03:04:05+00:00", "command": ["stepladder", "run", "example"]})
            run.write_recipe(self.recipe)
        self.run = RunFolder(path)

    def _record(self, name: str) -> StageRecord:
        stage = next(stage for stage in self.recipe.stages if stage.name == name)
        return StageRecord(name, stage.kind, "f", {}, dict(stage.inputs), seconds=61.0)

    def begin(self, name: str) -> Path:
        """Start a stage; returns its folder."""
        return self.run.begin(self._record(name))

    def finish(self, name: str, summary: Mapping[str, Any] = {}, outputs: Mapping[str, str] = {}) -> None:
        """End a stage."""
        self.run.finish(replace(self._record(name), summary=dict(summary), outputs=dict(outputs)))

    def trained(self, name: str = "sft", updates: int = 40) -> None:
        """A training stage with curves."""
        folder = self.begin(name)
        (folder / "policy").mkdir()
        write_curves(folder / "curves.jsonl", updates)
        numbers = {"transcripts": 4, "asked": 4, "tokens": 400, "steps": updates, "first_loss": 2.0, "last_loss": 0.1}
        self.finish(name, numbers, {"policy": "policy"})

    def explored(self, trees: Iterable[Tree], name: str = "explore") -> None:
        """A stage of search trees."""
        add_trees(self.begin(name), trees)
        numbers = {"trees": 6, "nodes": 9.0, "simulations": 24.0, "mean_f1": 0.5, "solved": 0.5, "tokens_written": 60}
        self.finish(name, {**numbers, "shared": 0.1, "failed": 0, "failures": {}}, {"trees": "trees.jsonl.gz"})

    def evaluated(self, name: str = "after", right: Sequence[bool] = (True, True, False, False)) -> None:
        """An evaluation of as many questions."""
        rows = [
            QuestionScore(f"q{number}", "bridge", 2, "Velm", StopReason.ANSWERED, em=float(good), f1=float(good))
            for number, good in enumerate(right)
        ]
        evaluation = Evaluation(tuple(rows), (None,) * len(rows))
        evaluation.save(self.begin(name) / EVALUATION, {})
        self.finish(name, main_numbers(evaluation), {EVALUATION: EVALUATION})


def made_run(path: Path, trees: int = 6) -> MadeRun:
    """A finished run."""
    run = MadeRun(path)
    run.trained()
    run.explored(grown_trees(trees))
    run.evaluated()
    return run


def curve_rows(updates: int, start: int = 1, columns: int = 3) -> list[dict[str, Any]]:
    """Rows of a metrics log: loss, KL and others, and a dev score every tenth update."""
    rows: list[dict[str, Any]] = []
    for step in range(start, start + updates):
        others = {f"metric_{number}": math.sin(step / 9 + number) for number in range(columns - 2)}
        rows.append({"step": step, "epoch": step / 20, "loss": 2 / step, "kl": 0.01 * step, **others})
        if step % 10 == 0:
            rows.append({"step": step, "dev_f1": min(step / 100, 0.9)})
    return rows


def write_curves(path: Path, updates: int, columns: int = 3) -> None:
    """A metrics log."""
    path.write_text("".join(json.dumps(row) + "\n" for row in curve_rows(updates, columns=columns)))


def grown_trees(count: int, first: int = 0, *, hostile: bool = False) -> list[Tree]:
    """Search trees of a wandering policy, one per question; all questions have the same text and another id."""
    passages = (HOSTILE,) if hostile else PASSAGES
    questions = [replace(QUESTION, id=f"q{number}") for number in range(first, first + count)]
    driver = Driver(ScriptedEngine(stroll), WordRetriever(passages))
    outcomes = driver.run([partial(_search, question) for question in questions])
    return [outcome.value for outcome in outcomes if outcome.value is not None]


def _search(question: Question) -> Any:
    return mcts_search(AGENT, question, SETTINGS, 7)


def add_trees(stage: Path, trees: Iterable[Tree]) -> None:
    """Append trees to the file of a stage."""
    with TreeFile(stage / "trees.jsonl.gz") as file:
        for tree in trees:
            file.add(tree)
