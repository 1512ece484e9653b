"""What a training run left in its folder: weights, an ordinary model, and the rows of its curves."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from trl.trainer import base_trainer

from stepladder.driver import Outcome
from stepladder.models.loading import quiet_libraries
from stepladder.models.tiny import tiny_model
from stepladder.train.loop.metrics_log import read_metrics
from stepladder.train.loop.training_loop import TrainingReport


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same_weights(one: Path, other: Path) -> bool:
    return all(torch.equal(tensor, weights(other)[name]) for name, tensor in weights(one).items())


def expect_plain_policy(policy: Path, beside: Sequence[str]) -> None:
    """The policy is an ordinary model folder of the tiny model, with these files beside it and nothing else."""
    assert sorted(path.name for path in policy.parent.iterdir()) == sorted([*beside, policy.name])
    assert sorted(path.name for path in policy.iterdir()) == [
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert not list(policy.parent.rglob("README*"))
    with quiet_libraries():
        after = AutoModelForCausalLM.from_pretrained(policy).config.to_dict()
    changes = {name for name, value in tiny_model().config.to_dict().items() if after[name] != value}
    assert changes <= {"architectures", "dtype", "_name_or_path", "transformers_version"}, "use_cache among them"


def expect_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, telemetry of trl fails the test."""
    monkeypatch.delenv("CI", raising=False)  # where trl sends none anyway
    monkeypatch.setattr(base_trainer, "send_telemetry", lambda *_, **__: pytest.fail("telemetry was sent"))


def plain_rows(folder: Path) -> list[dict[str, Any]]:
    """MetricsLog without the times, which differ from run to run, and the trainer's rounding of epochs."""
    rows = read_metrics(folder / "curves.jsonl")
    return [{name: value for name, value in row.items() if "seconds" not in name and name != "epoch"} for row in rows]


def expect_reproducible(train: Callable[..., TrainingReport], finished: TrainingReport, folder: Path) -> None:
    """The same seed gives the same numbers, and a finished run is not trained again."""

    def never(outcome: Outcome[Any]) -> None:
        pytest.fail("there was nothing left to do")

    again = train(folder)
    assert plain_rows(folder) == plain_rows(finished.policy.parent)
    assert same_weights(again.policy, finished.policy)
    assert train(folder, watch=never).numbers == again.numbers


def updates(folder: Path) -> list[dict[str, Any]]:
    return [row for row in plain_rows(folder) if "loss" in row]


def losses(folder: Path, name: str = "loss") -> list[float]:
    return [row[name] for row in read_metrics(folder / "curves.jsonl") if name in row]
