"""Importance sampling between vLLM and the trainer: trl's correction for vLLM rollouts.

In: the log-probs of the sampled tokens, in vLLM and in the trainer. Out: the ratios that trl multiplies the loss of
each token with. vLLM's kernels round differently, so tokens are sampled from a slightly different policy than the one
in training. trl's settings and rules are used; the trainer's log-probs come from the pass that computes the loss, as
the weights are those of the rollout, where trl would compute them in a pass of their own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.rollouts import Mean

#: trl's name of the ratios in a batch.
_RATIO = "importance_sampling_ratio"


def importance_ratio(
    trainer_BT: torch.Tensor, engine_BT: torch.Tensor, mask_BT: torch.Tensor, config: GRPOConfig
) -> torch.Tensor:
    """The ratio of each token (B, T), or of each episode (B, 1); 1 where the engine's log-prob is unknown."""
    logs = ((trainer_BT - engine_BT) * mask_BT).nan_to_num(nan=0.0)
    level, _, rule = config.vllm_importance_sampling_mode.partition("_")
    ratio = (logs.sum(dim=-1, keepdim=True) if level == "sequence" else logs).exp()
    least = config.vllm_importance_sampling_clip_min or 0.0
    most = config.vllm_importance_sampling_clip_max
    most = float("inf") if most is None else most
    if rule == "truncate":
        return ratio.clamp(least, most)
    return ratio.masked_fill((ratio < least) | (ratio > most), 0.0)


class ImportanceCorrection:
    """Corrects the loss of one trainer, if its rollouts are vLLM's."""

    def __init__(self, trainer: Any, config: GRPOConfig) -> None:
        self.trainer = trainer
        self.config = config
        self._inputs: dict[str, Any] | None = None
        self._ratios: list[torch.Tensor] = []

    @contextmanager
    def applied(self, inputs: dict[str, Any]) -> Iterator[None]:
        """Within, trl multiplies its loss with the ratios of these rows."""
        if not self.config.corrects_importance or "sampling_per_token_logps" not in inputs:
            yield
            return
        self._inputs, self.trainer.use_vllm = inputs, True
        try:
            yield
        finally:
            self._inputs, self.trainer.use_vllm = None, False

    def compute(self, logps_BT: torch.Tensor, mask_BT: torch.Tensor) -> None:
        """Compute the ratios, from the trainer's log-probs of the tokens in the loss."""
        if self._inputs is None:
            return
        old_BT = self._inputs.get("old_per_token_logps")
        old_BT = logps_BT.detach() if old_BT is None else old_BT
        ratio = importance_ratio(old_BT, self._inputs["sampling_per_token_logps"], mask_BT, self.config)
        self._inputs[_RATIO] = ratio
        self._ratios.append(ratio.expand_as(mask_BT)[mask_BT])

    def take_metrics(self) -> dict[str, Mean]:
        """The mean, the largest, and the share of tokens that the ratios mask out, since the last call."""
        ratios = torch.cat(self._ratios) if self._ratios else torch.zeros(0)
        self._ratios.clear()
        if not ratios.numel():
            return {}
        return {
            "importance_mean": Mean(float(ratios.double().sum()), ratios.numel()),
            "importance_max": Mean(float(ratios.max()), 1),
            "importance_masked": Mean(float((ratios == 0).sum()), ratios.numel()),
        }
