"""The Triton kernel that samples: on a GPU, or interpreted by Triton on a CPU (TRITON_INTERPRET=1)."""

import pytest
import torch

from stepladder.core.requests import Sampling
from stepladder.engines.paged import sampling_kernel
from stepladder.engines.paged.sampling_kernel import sample_tokens
from stepladder.engines.paged.triton_launch import INTERPRETED
from stepladder.engines.transformers.token_sampler import GREEDY_BELOW, Row, Sampler

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.skipif(
    sampling_kernel.triton is None or not (torch.cuda.is_available() or INTERPRETED),
    reason="there is no Triton, or no GPU for it (TRITON_INTERPRET=1 does too)",
)


def rows_at(temperatures: list[float]) -> list[Row]:
    return [
        Row(number, (), [1], (), Sampling(temperature, 1.0, 8), number, 8)
        for number, temperature in enumerate(temperatures)
    ]


def logits_of(rows: int, vocabulary: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (4 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(1))).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "half"])
@pytest.mark.parametrize("vocabulary", [37, 4096, 20_011])
def test_it_draws_what_torch_draws(vocabulary: int, dtype: torch.dtype) -> None:
    rows = rows_at([0.0, 0.3, 1.0, 1.7] * 8)
    logits_BV = logits_of(len(rows), vocabulary, dtype)
    ours, theirs = Sampler(rows, DEVICE), Sampler(rows, DEVICE)
    for _ in range(3):  # positions have draws of their own
        found_2B = ours.draw(logits_BV, rows)
        expected_2B = theirs._draw_by_torch(logits_BV.float())
        theirs.steps += 1
        assert torch.equal(found_2B[0], expected_2B[0])
        assert torch.allclose(found_2B[1], expected_2B[1], atol=1e-4)
    assert not sampling_kernel.LAUNCHER.broken
    assert sampling_kernel.LAUNCHER.checked


def test_the_shares_of_tokens_are_their_probabilities() -> None:
    logits_BV = logits_of(1, 12).div(4).expand(4000, -1).contiguous()
    draws_B = torch.linspace(0, 1, 4001, device=DEVICE)[:-1]
    drawn_2B = sample_tokens(logits_BV, torch.full((4000,), 0.5, device=DEVICE), draws_B, GREEDY_BELOW)
    assert drawn_2B is not None
    shares = torch.bincount(drawn_2B[0].long(), minlength=12) / 4000
    assert torch.allclose(shares, (logits_BV[0] / 0.5).softmax(0), atol=1e-3)


def test_tokens_without_mass_are_never_drawn() -> None:
    logits_BV = torch.full((3, 10_000), float("-inf"), device=DEVICE)
    logits_BV[:, 8500] = 1.0
    logits_BV[:, 9000] = 0.0
    draws_B = torch.tensor([0.0, 0.9, 1.0], device=DEVICE)  # a draw just below 1 is rounded to 1
    drawn_2B = sample_tokens(logits_BV, torch.ones(3, device=DEVICE), draws_B, GREEDY_BELOW)
    assert drawn_2B is not None
    assert drawn_2B[0].tolist() == [8500, 9000, 9000]
    assert drawn_2B[1].exp().tolist() == pytest.approx([0.7311, 0.2689, 0.2689], abs=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_is_told_by_the_log_prob(temperature: float) -> None:
    logits_BV = logits_of(2, 100)
    logits_BV[1, 7] = float("nan")
    drawn_2B = sample_tokens(
        logits_BV, torch.full((2,), temperature, device=DEVICE), torch.tensor([0.5, 0.5], device=DEVICE), GREEDY_BELOW
    )
    assert drawn_2B is not None
    assert drawn_2B[1].isnan().tolist() == [False, True]


def test_a_kernel_that_draws_something_else_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sampling_kernel, "_launch", lambda *inputs: inputs[3].fill_(-1.0))
    monkeypatch.setattr(sampling_kernel.LAUNCHER, "broken", False)
    monkeypatch.setattr(sampling_kernel.LAUNCHER, "checked", set())
    rows = rows_at([1.0, 0.0])
    logits_BV = logits_of(2, 50)
    expected_2B = Sampler(rows, DEVICE)._draw_by_torch(logits_BV)
    assert torch.equal(Sampler(rows, DEVICE).draw(logits_BV, rows), expected_2B)
    assert sampling_kernel.LAUNCHER.broken
    assert "sampling kernel is disabled" in caplog.text
