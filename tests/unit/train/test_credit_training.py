"""A short training of the tiny model with every estimator and potential."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepladder.core.errors import StepladderError
from tests.support.grpo_training import QUESTIONS, SETTINGS, train
from tests.support.training_runs import same_weights, updates

SHORT = {"num_train_epochs": 1, "dev_questions": 0, "eval_steps": 0, "beta": 0.0}
PLAIN = SETTINGS.model_dump(exclude_unset=True)
MODES: list[dict[str, Any]] = [
    *({"mode": mode} for mode in ("outcome", "process", "dual", "first-error", "tree")),
    {"mode": "dual", "normalize_rewards": "apart", "std": "sample"},
    *(
        {"mode": "gain", "potential": each, "outcome_weight": 0, "process_weight": 1}
        for each in ("prm", "monte-carlo", "likelihood", "recall", "graph", "agreement")
    ),
]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.get("potential", "-".join(map(str, mode.values()))))
def test_every_estimator_trains(tmp_path: Path, mode: dict[str, Any]) -> None:
    settings = type(SETTINGS).read({**PLAIN, **SHORT, **mode})
    questions = [replace(each, id=f"atlas-2000-0-train-{number:05d}") for number, each in enumerate(QUESTIONS)]
    if mode.get("potential") == "graph":  # whose passages have ids of articles
        hops = tuple(
            replace(hop, passages=(f"atlas-2000-0-{place:06d}",)) for place, hop in enumerate(QUESTIONS[0].hops)
        )
        questions = [replace(each, hops=hops) for each in questions]
    report = train(tmp_path, settings, questions=questions)
    rows = updates(tmp_path)
    assert len(rows) == 2
    assert any(row["grad_norm"] > 0 for row in rows)
    potential = mode.get("potential")
    reads = mode["mode"] in ("process", "dual", "first-error") or potential in ("prm", "likelihood")
    assert all((row.get("scored_tokens", 0) > 0) == reads for row in rows)
    own = [5 * 3 * 8] * len(rows)  # the most that eight episodes of three steps can be
    longer = [row["written"] > most for row, most in zip(rows, own)]
    assert potential in ("monte-carlo", "agreement") or not any(longer)
    assert report.numbers["tokens_sampled"] == sum(row["written"] for row in rows)


def test_the_same_seed_gives_the_same_continuations(tmp_path: Path) -> None:
    settings = type(SETTINGS).read({**PLAIN, **SHORT, "mode": "gain", "potential": "monte-carlo"})
    one, other = (train(tmp_path / name, settings) for name in ("1", "2"))
    assert same_weights(one.policy, other.policy)


def test_data_that_lack_what_an_estimator_needs_are_refused_before_training(tmp_path: Path) -> None:
    settings = type(SETTINGS).read({**PLAIN, **SHORT, "mode": "gain", "potential": "graph"})
    with pytest.raises(StepladderError, match=r"potential: graph needs .* With these questions work: mode outcome"):
        train(tmp_path, settings)
    assert not (tmp_path / "curves.jsonl").exists()
