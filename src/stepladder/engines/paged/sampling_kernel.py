"""A Triton kernel that samples: one launch instead of thirty, which take longer than the decode pass of a small model.

In: the logits of rows, their temperatures, a uniform number for each. Out: tokens and log-probs; None if it is not
supported: no Triton, no GPU, or the kernel failed.
"""

import torch

from stepladder.engines.paged.triton_launch import Launcher, triton

if triton is not None:
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

#: The most tokens of the vocabulary that a program reads at a time.
_BLOCK = 8192
#: Tolerance of log-probs against torch's.
_TOLERANCE = 1e-3
LAUNCHER = Launcher("the Triton sampling kernel is")


def sample_tokens(
    logits_BV: torch.Tensor, temperature_B: torch.Tensor, draws_B: torch.Tensor, greedy_below: float
) -> torch.Tensor | None:
    """The token of each row and its log-prob at temperature 1, as numbers of [2, B].

    A row's token is the first one whose cumulative mass exceeds its draw; below `greedy_below` the likeliest.
    """
    if not LAUNCHER.usable(logits_BV) or logits_BV.stride(1) != 1:
        return None
    drawn_2B = torch.empty(2, len(logits_BV), dtype=torch.float64, device=logits_BV.device)
    launched = LAUNCHER.launch(
        logits_BV,
        (logits_BV.dtype, logits_BV.shape[1]),
        lambda: _launch(logits_BV, temperature_B, draws_B, drawn_2B, greedy_below),
        lambda: _check(logits_BV, drawn_2B),
    )
    return drawn_2B if launched else None


def _launch(
    logits_BV: torch.Tensor,
    temperature_B: torch.Tensor,
    draws_B: torch.Tensor,
    drawn_2B: torch.Tensor,
    greedy_below: float,
) -> None:
    rows, vocabulary = logits_BV.shape
    block = min(triton.next_power_of_2(vocabulary), _BLOCK)
    _sample[(rows,)](
        logits_BV,
        temperature_B,
        draws_B,
        drawn_2B,
        logits_BV.stride(0),
        rows,
        vocabulary=vocabulary,
        greedy_below=greedy_below,
        block=block,
        num_warps=8 if block > 2048 else 4,
    )


def _check(logits_BV: torch.Tensor, drawn_2B: torch.Tensor) -> None:
    """Compare the log-probs of a newly compiled kernel with torch's; raises if they differ."""
    tokens_B = drawn_2B[0].long()
    if not bool(((tokens_B >= 0) & (tokens_B < logits_BV.shape[1])).all()):
        raise ArithmeticError("it drew tokens that do not exist")
    expected_B = logits_BV.float().log_softmax(dim=-1).gather(1, tokens_B[:, None])[:, 0]
    if not torch.allclose(drawn_2B[1].float(), expected_B.clamp(max=0.0), atol=_TOLERANCE, equal_nan=True):
        raise ArithmeticError("its log-probs differ from torch's")


if triton is not None:

    @triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator, unused-ignore]
    def _sample(  # type: ignore[no-untyped-def]
        logits_ptr,
        temperature_ptr,
        draws_ptr,
        drawn_ptr,
        logits_row,
        rows,
        vocabulary: tl.constexpr,
        greedy_below: tl.constexpr,
        block: tl.constexpr,
    ):
        """One program per row: two passes over its logits."""
        row = tl.program_id(0).to(tl.int64)
        logits_ptr += row * logits_row
        temperature = tl.load(temperature_ptr + row)
        greedy = temperature < greedy_below
        temperature = tl.where(greedy, 1.0, temperature)
        offset_V = tl.arange(0, block)
        # The mass at the temperature and at temperature 1, relative to the largest logit so far.
        largest, mass, total, best = float("-inf"), 0.0, 0.0, 0
        for start in range(0, vocabulary, block):
            token_V = start + offset_V
            logit_V = tl.load(logits_ptr + token_V, mask=token_V < vocabulary, other=float("-inf")).to(tl.float32)
            top = tl.max(logit_V, axis=0)
            best = tl.where(top > largest, start + tl.argmax(logit_V, axis=0), best)
            new = tl.maximum(largest, top)
            scale = tl.where(largest == new, 0.0, largest - new)  # 0 also while both are -inf
            less_V = tl.where(logit_V == new, 0.0, logit_V - new)
            mass = mass * tl.exp(scale / temperature) + tl.sum(tl.exp(less_V / temperature), axis=0)
            total = total * tl.exp(scale) + tl.sum(tl.exp(less_V), axis=0)
            largest = new
        # The first token whose cumulative mass exceeds the draw. Rounding may leave none: then the last one with mass.
        goal = tl.load(draws_ptr + row) * mass
        found, last, before = vocabulary, 0, 0.0
        for start in range(0, vocabulary, block):
            token_V = start + offset_V
            logit_V = tl.load(logits_ptr + token_V, mask=token_V < vocabulary, other=float("-inf")).to(tl.float32)
            mass_V = tl.exp(tl.where(logit_V == largest, 0.0, logit_V - largest) / temperature)
            reached_V = before + tl.cumsum(mass_V, axis=0)
            found = tl.minimum(found, tl.min(tl.where((reached_V > goal) & (mass_V > 0), token_V, vocabulary), axis=0))
            last = tl.maximum(last, tl.max(tl.where(mass_V > 0, token_V, 0), axis=0))
            before += tl.sum(mass_V, axis=0)
        token = tl.where(greedy, best, tl.where(found < vocabulary, found, last))
        logit = tl.load(logits_ptr + token).to(tl.float32)
        logprob = logit - largest - tl.log(total)
        tl.store(drawn_ptr + row, token.to(tl.float64))
        # Not `minimum`, which would hide NaN.
        tl.store(drawn_ptr + rows + row, tl.where(logprob > 0, 0.0, logprob).to(tl.float64))
