"""A GPU's memory, shared by several runs."""

from types import SimpleNamespace

import pytest
import torch

from stepladder.core.errors import StepladderError
from stepladder.engines.paged.kv_cache import kv_bytes_per_token, make_paged_kv_cache
from stepladder.models.devices import pick_device
from stepladder.models.gpu_memory import SHARE, free_bytes, gpu_share, shared_bytes
from stepladder.reporting.studies import study_runner as runner

GPU = torch.device("cuda")
GB = 10**9
CONFIG = SimpleNamespace(num_attention_heads=9, num_key_value_heads=3, hidden_size=576, num_hidden_layers=30)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A GPU of 100 GB, 80 of them free, of which torch has 10, half of it in use; what torch was told."""
    found: dict[str, float] = {}
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=100 * GB))
    monkeypatch.setattr(cuda, "mem_get_info", lambda _: (80 * GB, 100 * GB))
    monkeypatch.setattr(cuda, "memory_reserved", lambda _: 10 * GB)
    monkeypatch.setattr(cuda, "memory_allocated", lambda _: 5 * GB)
    monkeypatch.setattr(cuda, "current_device", lambda: 0)
    monkeypatch.setattr(
        cuda, "set_per_process_memory_fraction", lambda share, device: found.update({f"share of {device}": share})
    )
    return found


def test_alone_all_of_it_is_ours(told: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SHARE, raising=False)
    assert pick_device("auto") == GPU
    assert told == {}
    assert shared_bytes(GPU) == 100 * GB
    assert free_bytes(GPU) == 85 * GB
    assert make_paged_kv_cache(GPU, CONFIG, torch.bfloat16, None).budget == 100 * GB * 3 // 8


@pytest.mark.parametrize(("name", "number"), [("auto", 0), ("cuda", 0), ("cuda:1", 1)])
def test_a_share_bounds_what_torch_takes_and_what_we_plan_with(
    told: dict[str, float], monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    monkeypatch.setenv(SHARE, "0.25")
    pick_device(name)
    assert told == {f"share of {number}": 0.25}
    assert shared_bytes(GPU) == 25 * GB
    assert free_bytes(GPU) == 20 * GB
    assert make_paged_kv_cache(GPU, CONFIG, torch.bfloat16, None).budget == 25 * GB * 3 // 8


@pytest.mark.parametrize("wrong", ["half", "0", "1.5", "-1", "nan"])
def test_a_share_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv(SHARE, wrong)
    with pytest.raises(StepladderError, match="expected a number above 0 and at most 1"):
        gpu_share()


def test_runs_that_go_on_together_share_cores_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (SHARE, "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert runner._environment(4)[SHARE] == "0.2500"
    assert SHARE not in runner._environment(1)
    monkeypatch.setenv(SHARE, "0.5")  # the user knows better
    assert runner._environment(4)[SHARE] == "0.5"


def test_what_a_token_takes_is_told_by_the_configuration() -> None:
    assert kv_bytes_per_token(CONFIG, torch.bfloat16) == 30 * 2 * 3 * 64 * 2
    plain = SimpleNamespace(num_attention_heads=4, hidden_size=64, head_dim=32, num_hidden_layers=2)
    assert kv_bytes_per_token(plain, torch.float32) == 2 * 2 * 4 * 32 * 4
