"""The gold labels that stages say they used, and the ledger that adds them up."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepladder.core.trace import Question
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.run_folder import StageRecord, claim
from stepladder.pipeline.stage import TREES, FinishedStage, Labels
from stepladder.pipeline.stages import STAGES, get_stage
from stepladder.reporting.report.run_data import load_run
from stepladder.reporting.studies.study_ledger import Ledger, LedgerReader, mean_ledger

QUESTIONS = tuple(Question(f"q{number}", f"Question {number}?", ("yes",)) for number in range(8))
ALL = frozenset(question.id for question in QUESTIONS)
TREE_IDS = frozenset({"q1", "q2"})
NONE = frozenset[str]()


def write_trees(path: Path) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"question": {"id": each}}) + "\n" for each in sorted(TREE_IDS))
    return path


def labels(tmp_path: Path, kind: str, **settings: Any) -> Labels | None:
    """What a stage says that it used, with eight train questions and trees of two of them."""
    spec = get_stage(kind)
    context: Any = SimpleNamespace(split=lambda name: QUESTIONS, sft_questions=lambda: QUESTIONS)
    trees = {TREES: write_trees(tmp_path / "trees.jsonl.gz")}
    return spec.labels(FinishedStage(spec.config.read(settings), context, {"episodes": 800}, 0, trees, trees))


@pytest.mark.parametrize(
    ("kind", "settings", "answers", "decompositions"),
    [
        ("eval", {}, NONE, NONE),
        ("sft", {"questions": 8}, ALL, ALL),
        ("sft", {"questions": 8, "source": "mined"}, ALL, NONE),
        ("sft", {"source": "trees"}, TREE_IDS, NONE),
        ("explore", {}, TREE_IDS, NONE),
        ("explore", {"evaluate": "gold"}, TREE_IDS, TREE_IDS),
        ("rank", {"judge": "gold"}, TREE_IDS, TREE_IDS),
        ("pairs", {"judge": "gold"}, TREE_IDS, TREE_IDS),
        ("pairs", {"judge": "spre"}, NONE, NONE),
        ("pairs", {"judge": "llm", "llm": {"model": "m", "mode": "value"}}, TREE_IDS, NONE),
        ("rft", {"questions": 8}, ALL, NONE),
        ("dpo", {}, NONE, NONE),
        ("grpo", {"questions": 8}, ALL, NONE),
        ("grpo", {"questions": 8, "scorer": "gold"}, ALL, ALL),
    ],
)
def test_a_stage_says_which_labels_it_used(
    tmp_path: Path, kind: str, settings: dict[str, Any], answers: frozenset[str], decompositions: frozenset[str]
) -> None:
    assert labels(tmp_path, kind, **settings) == Labels(answers, decompositions)


def test_every_stage_says_so_but_the_one_that_imports_pairs() -> None:
    default = type(get_stage("eval")).__dataclass_fields__["labels"].default
    assert [name for name in STAGES if get_stage(name).labels is default] == ["pairs-file"]


def test_a_ledger_adds_up_what_stages_counted(tmp_path: Path) -> None:
    stages = {
        "explore": {"policy": "base", "questions": 2},
        "pairs": {"judge": "llm", "llm": {"model": "m"}},
        "eval": {"policy": "base"},
    }
    recipe = Recipe.read({"policy": "tiny", "stages": stages})
    summaries: dict[str, dict[str, Any]] = {
        "explore": {"trees": 2, "simulations": 10.0, "tokens_written": 50, "tokens_read": 400},
        "pairs": {"asked": {"asked": 7}, "spend": {"calls": 9}},
        "eval": {"questions": 300},
    }
    with claim(tmp_path / "run") as run:
        run.add_session({"device": "cuda (NVIDIA H200)"})
        run.write_recipe(recipe)
        for stage in recipe.stages:
            done = StageRecord(
                stage.name, stage.kind, "f", {}, dict(stage.inputs), seconds=2.0, cpu_seconds=1.5,
                summary=summaries[stage.name], outputs={TREES: "t.gz"} if stage.name == "explore" else {},
            )  # fmt: skip
            folder = run.begin(done)
            if stage.name == "explore":
                write_trees(folder / "t.gz")
            run.finish(done)
    found = LedgerReader().read(load_run(tmp_path / "run"), ["explore", "pairs", "eval"])
    assert found == Ledger(
        questions=2, answers=2, decompositions=0, judge_calls=9, episodes=20, updates=0, tokens_read=400,
        tokens_sampled=50, tokens_trained=0, seconds=4.0, gpu_seconds=4.0, cpu_seconds=3.0,
    )  # fmt: skip
    assert found.tokens == 450
    assert mean_ledger([found, Ledger(questions=4, answers=2)]).questions == 3
    assert mean_ledger([found, Ledger(questions=4, answers=2)]).judge_calls is None, "not counted in one of them"
