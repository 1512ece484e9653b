"""What a training run left in its folder: weights, and the rows of its curves."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from stepladder.train.loop.metrics_log import read_metrics


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same_weights(one: Path, other: Path) -> bool:
    return all(torch.equal(tensor, weights(other)[name]) for name, tensor in weights(one).items())


def plain_rows(folder: Path) -> list[dict[str, Any]]:
    """MetricsLog without the times, which differ from run to run, and the trainer's rounding of epochs."""
    rows = read_metrics(folder / "curves.jsonl")
    return [{name: value for name, value in row.items() if "seconds" not in name and name != "epoch"} for row in rows]


def updates(folder: Path) -> list[dict[str, Any]]:
    return [row for row in plain_rows(folder) if "loss" in row]


def losses(folder: Path, name: str = "loss") -> list[float]:
    return [row[name] for row in read_metrics(folder / "curves.jsonl") if name in row]
