"""PRM losses by name: the values of `loss_type`. A new one is a function in a file and one line here."""

from collections.abc import Callable
from typing import Any

from stepladder.core.registry import Registry

#: (better, worse, margins) -> one loss per pair; the first is the default.
PAIR_LOSSES: Registry[Callable[..., Any]] = Registry(
    "loss_type of pairs", {"ranking": ("stepladder.train.prm.prm_losses:ranking_loss", "-log sigmoid(r+ - r- - m)")}
)
#: (scores, targets) -> one loss per step; the first is the default.
STEP_LOSSES: Registry[Callable[..., Any]] = Registry(
    "loss_type of steps",
    {"cross_entropy": ("stepladder.train.prm.prm_losses:value_loss", "cross-entropy of sigmoid(r) with a value")},
)
