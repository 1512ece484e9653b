"""A recipe that ranks actions, then imitates the best, prefers them in pairs and trains a reward model on them."""

import json
from pathlib import Path

import pytest

from stepladder.explore.tree_store import read_trees
from stepladder.pipeline import run_recipe
from stepladder.pipeline.recipe import Recipe
from stepladder.reporting.compare.evaluations import load_sources
from stepladder.reporting.compare.provenance import ProvenanceResolver


@pytest.mark.slow
def test_a_run_ranks_then_imitates_prefers_and_scores(tmp_path: Path) -> None:
    """All three uses of the data, with the tiny model: what matters is who takes what from whom."""
    quick = {"batch_size": 2, "dev_questions": 0}
    recipe = Recipe.read(
        {
            "policy": "nano",
            "agent": "search-r1-brief",
            "data": {"name": "atlas-small"},
            "search": {"k": 1},
            "episode": {"max_steps": 4, "max_tokens": 60},
            "device": "cpu",
            "stages": {
                "warm": {"kind": "sft", "questions": 16, "num_train_epochs": 2, "learning_rate": 1e-3, **quick},
                "rank": {"questions": 8, "n": 4, "temperature": 0.6},
                "pairs": {"judge": "rank", "per_state": 1},
                "imitated": {
                    "kind": "sft",
                    "source": "trees",
                    "policy": "warm",
                    "min_f1": 0.01,
                    "num_train_epochs": 0.5,
                    **quick,
                },
                "prm": {"policy": "warm", "num_train_epochs": 0.5, "batch_size": 2},
                "reranked": {"kind": "rank", "policy": "warm", "judge": "prm", "questions": 2, "n": 2},
                "after": {"kind": "eval", "policy": "imitated", "limit": 2, "guide": {"n": 2}},
            },
        }
    )
    report = run_recipe(recipe, tmp_path / "run")
    stages = {stage.name: stage for stage in report.stages}
    assert stages["imitated"].inputs == {"policy": "warm", "trees": "rank"}
    assert stages["reranked"].inputs == {"policy": "warm", "reward": "prm"}
    assert stages["after"].inputs == {"policy": "imitated", "reward": "prm"}
    trees = list(read_trees(tmp_path / "run" / "rank" / "trees.jsonl.gz"))
    assert len(trees) == 8
    assert stages["rank"].summary["trees"] == 8
    assert 0 < stages["imitated"].summary["transcripts"] <= 8
    for tree in read_trees(tmp_path / "run" / "reranked" / "trees.jsonl.gz"):
        assert all(0 < node.value < 1 for node in tree.nodes[1:])
    warm, questions = stages["warm"].summary["asked"], {tree.question.id for tree in trees}
    trained = {name: ProvenanceResolver().resolve([(tmp_path / "run", name)]) for name in ("warm", "imitated")}
    warmed = trained["warm"].stages[0].questions or frozenset()
    both = {each for _, each in warmed} | questions
    assert (len(warmed), trained["imitated"].questions) == (warm, len(both))
    assert trained["imitated"].tokens_written == stages["rank"].summary["tokens_written"]
    (guided,) = load_sources([str(tmp_path / "run")])
    assert guided.provenance is not None
    assert {use.stage for use in guided.provenance.stages} == {"warm", "rank", "pairs", "imitated", "prm"}
    rows = (tmp_path / "run" / "after" / "evaluation" / "scores.jsonl").read_text().splitlines()
    assert all(json.loads(row)["searches_made"] is not None for row in rows)
