"""A study that takes seconds: a model of random weights, trained for one epoch or two."""

from pathlib import Path
from typing import Any

import yaml

from stepladder.reporting.studies import Study, find_study
from stepladder.reporting.studies.study_arms import prepare

RECIPE = {
    "policy": "tiny",
    "agent": "prorag-brief",
    "device": "cpu",
    "search": {"k": 1},
    "episode": {"max_tokens": 4},
    "stages": {
        "before": {"kind": "eval", "limit": 3},
        "sft": {"questions": 4, "num_train_epochs": 1, "dev_questions": 2, "eval_steps": 1, "batch_size": 4},
        "after": {"kind": "eval", "limit": 3},
    },
}
STUDY: dict[str, Any] = {
    "question": "Is longer better?",
    "recipe": "small-recipe.yaml",
    "arms": {"short": None, "long": {"stages.sft.num_train_epochs": 2}},
    "baseline": "short",
    "seeds": 1,
    "estimand": {"stage": "after"},
    "budget": {"updates": "equal"},
    "by_hops": "after",
    "gates": {"warm": {"stage": "before", "metric": "f1.mean", "most": 0.45}},
}


def small_study_file(folder: Path) -> Path:
    """The file of the study, with its recipe beside it."""
    path = folder / "small.yaml"
    for file, data in ((folder / "small-recipe.yaml", RECIPE), (path, STUDY)):
        file.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


def small_study(folder: Path) -> Study:
    """The study, prepared."""
    return prepare(find_study(small_study_file(folder)))
