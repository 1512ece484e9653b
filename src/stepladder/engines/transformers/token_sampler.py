"""Rows being generated, and the sampler: each row has its own temperature, top-p and seed, independent of the batch.

In: logits, one vector per row. Out: one token per row with its log-prob under the model (temperature 1, no top-p), of a
row with a grammar under the model restricted to the allowed tokens. Sampling depends on the request's seed and the
position alone.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from stepladder.core.requests import Finish, Sampling
from stepladder.core.trace import Segment
from stepladder.engines.paged.sampling_kernel import sample_tokens
from stepladder.engines.transformers.constrained import TokenConstraint, mask_logits

#: Below this temperature, decoding is greedy.
GREEDY_BELOW = 1e-6
#: Number of tokens sorted for top-p on a CPU, unless more are needed.
TOP_P_HEAD = 128


@dataclass(slots=True)
class Row:
    """A request being generated."""

    #: The caller's key of the request.
    key: Hashable
    context: tuple[Segment, ...]
    prompt_tokens: list[int]
    stops: tuple[str, ...]
    sampling: Sampling
    seed: int
    max_new_tokens: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None
    #: The tokens after which it may end.
    watched: frozenset[int] | None = None
    #: The grammar of its text, as it is stored; its state, in engines that mask tokens; its regex, for vLLM.
    grammar: str = ""
    constraint: TokenConstraint | None = None
    regex: str = ""


#: Appends a token and its log-prob to a row, and sets `row.finish` if it ends the row.
Append = Callable[[Row, int, float], None]


class Sampler:
    """Samples the tokens of a batch of rows. Rows can be removed and added."""

    def __init__(self, rows: Sequence[Row], device: torch.device) -> None:
        self.device = device
        #: Number of tokens sampled per row.
        self.steps = np.zeros(len(rows), dtype=int)
        self.sampled = np.array([row.sampling.temperature >= GREEDY_BELOW for row in rows], dtype=bool)
        self.temperature = np.array([row.sampling.temperature for row in rows])
        self.top_p = np.array([row.sampling.top_p for row in rows])
        #: One uniform number in [0, 1) per row and position.
        self.draws = np.zeros((len(rows), max(row.max_new_tokens for row in rows) if self.sampled.any() else 0))
        for index in np.flatnonzero(self.sampled):
            row = rows[index]
            self.draws[index, : row.max_new_tokens] = np.random.default_rng(row.seed % 2**63).random(row.max_new_tokens)
        self._upload()

    def select(self, indices: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        kept = np.array(indices)
        self.sampled, self.temperature, self.top_p = self.sampled[kept], self.temperature[kept], self.top_p[kept]
        self.steps, self.draws = self.steps[kept], self.draws[kept]
        self._upload()

    def extend(self, other: "Sampler") -> None:
        """Append the rows of another sampler."""
        for name in ("sampled", "temperature", "top_p", "steps"):
            setattr(self, name, np.concatenate([getattr(self, name), getattr(other, name)]))
        width = max(self.draws.shape[1], other.draws.shape[1])
        both = [np.pad(each.draws, ((0, 0), (0, width - each.draws.shape[1]))) for each in (self, other)]
        self.draws = np.concatenate(both)
        self._upload()

    def _upload(self) -> None:
        """Copy the per-row parameters to the device."""
        indices = np.flatnonzero(self.sampled)
        self.temperature_B = torch.from_numpy(self.temperature).to(self.device, torch.float32)
        self.chosen_H = torch.from_numpy(indices).to(self.device)
        self.temperature_H1 = self._column(self.temperature[indices]).float()
        self.top_p_H1 = self._column(self.top_p[indices]) if (self.top_p[indices] < 1).any() else None

    def _column(self, values: np.ndarray[Any, np.dtype[np.float64]]) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)[:, None]

    def draw(self, logits_BV: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
        """The next token of every row and its log-prob, as numbers of [2, B]."""
        logits_BV = mask_logits(logits_BV, [row.constraint for row in rows])
        drawn_2B = self._draw_by_kernel(logits_BV)
        if drawn_2B is None:
            drawn_2B = self._draw_by_torch(logits_BV.float())
        self.steps += 1
        return drawn_2B

    def _draw_by_kernel(self, logits_BV: torch.Tensor) -> torch.Tensor | None:
        if self.top_p_H1 is not None:
            return None
        draws = np.zeros(len(self.steps), dtype=np.float32)
        draws[self.sampled] = self.draws[self.sampled, self.steps[self.sampled]]
        return sample_tokens(logits_BV, self.temperature_B, torch.from_numpy(draws).to(self.device), GREEDY_BELOW)

    def _draw_by_torch(self, logits_BV: torch.Tensor) -> torch.Tensor:
        if self.sampled.all():
            tokens_B = self._sample(logits_BV)
        else:
            tokens_B = logits_BV.argmax(dim=-1)
            if self.sampled.any():
                tokens_B = tokens_B.index_copy(0, self.chosen_H, self._sample(logits_BV[self.chosen_H]))
        chosen_B = logits_BV.gather(1, tokens_B[:, None])[:, 0]
        logprobs_B = (chosen_B - logits_BV.logsumexp(dim=-1)).clamp(max=0.0)
        return torch.stack([tokens_B.double(), logprobs_B.double()])

    def _sample(self, logits_HV: torch.Tensor) -> torch.Tensor:
        """Inverse transform sampling: the first token whose cumulative mass exceeds the draw."""
        weights_HV = ((logits_HV - logits_HV.amax(dim=-1, keepdim=True)) / self.temperature_H1).exp_()
        if self.top_p_H1 is not None:
            weights_HV = keep_top_p(weights_HV, self.top_p_H1)
        mass_HV = weights_HV.cumsum(dim=-1)
        total_H1 = mass_HV[:, -1:]
        drawn_H1 = (self._column(self.draws[self.sampled, self.steps[self.sampled]]) * total_H1).float()
        # Rounding must not raise a draw to the total mass, which no token exceeds.
        drawn_H1 = torch.minimum(drawn_H1, total_H1.nextafter(torch.zeros_like(total_H1)))
        # NaN logits lead beyond the last token; the log-prob is NaN too and reports them.
        return torch.searchsorted(mass_HV, drawn_H1, right=True)[:, 0].clamp(max=logits_HV.shape[1] - 1)


def keep_top_p(weights_HV: torch.Tensor, top_p_H1: torch.Tensor) -> torch.Tensor:
    """The weights with everything outside the nucleus (the smallest set with a share top-p of the mass) set to zero.

    >>> keep_top_p(torch.tensor([[0.5, 0.2, 0.3]]), torch.tensor([[0.7]])).tolist()[0][1]
    0.0
    """
    share_H1 = weights_HV.sum(dim=-1, keepdim=True, dtype=torch.float64) * top_p_H1
    if weights_HV.device.type != "cpu" or weights_HV.shape[1] <= TOP_P_HEAD:
        return _keep(weights_HV, share_H1, *weights_HV.sort(dim=-1, descending=True))
    # Sorting is slow on a CPU: only the likeliest tokens are sorted, unless they hold too little mass.
    head_HK, order_HK = weights_HV.topk(TOP_P_HEAD, dim=-1)
    kept_HV = _keep(weights_HV, share_H1, head_HK, order_HK)
    incomplete = (head_HK.sum(dim=-1, keepdim=True, dtype=torch.float64) < share_H1)[:, 0]
    if bool(incomplete.any()):
        rest_WV = weights_HV[incomplete]
        kept_HV[incomplete] = _keep(rest_WV, share_H1[incomplete], *rest_WV.sort(dim=-1, descending=True))
    return kept_HV


def _keep(
    weights_HV: torch.Tensor, share_H1: torch.Tensor, sorted_HK: torch.Tensor, order_HK: torch.Tensor
) -> torch.Tensor:
    before_HK = sorted_HK.cumsum(dim=-1, dtype=torch.float64) - sorted_HK
    return torch.zeros_like(weights_HV).scatter(1, order_HK, sorted_HK.masked_fill(before_HK >= share_H1, 0.0))
