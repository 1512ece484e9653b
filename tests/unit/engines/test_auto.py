"""The engine `auto` follows what was measured."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from stepladder.core.errors import StepladderError
from stepladder.engines import auto, make_engine
from stepladder.engines.auto import Measurement, choose_engine, count_parameters, faster_engine, measurements
from stepladder.engines.base import EngineOptions
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.models.tiny import tiny_model

PUBLISHED = Path(__file__).parents[3] / "benchmarks" / "results" / "generation-speed.json"
MEASURED = (
    Measurement(1e8, 64, 900.0, 800.0),
    Measurement(1e8, 1024, 30_000.0, 20_000.0),
    Measurement(2e9, 64, 500.0, 800.0),
    Measurement(2e9, 1024, 14_000.0, None),
)


@pytest.fixture
def model(tmp_path: Path) -> str:
    tiny_model().save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("parameters", "transcripts", "name"),
    [
        (1e6, 2000, "transformers"),
        (4e8, 64, "transformers"),  # nearer to the smaller model, by factor
        (5e8, 64, "vllm"),
        (8e9, 200, "vllm"),
        (8e9, 300, "transformers"),  # nothing was measured there with vLLM
        (8e9, 1, "vllm"),
    ],
)
def test_the_nearest_measurement_decides(parameters: float, transcripts: int, name: str) -> None:
    assert faster_engine(parameters, transcripts, MEASURED) == name


def test_it_is_vllm_only_on_a_gpu_with_vllm(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = EngineOptions(model=model, max_batch=64)
    monkeypatch.setattr(auto, "measurements", lambda: (Measurement(1e9, 64, 1.0, 2.0),))
    assert choose_engine(EngineOptions(model=model, device="cpu")) == "transformers"
    places = {"auto": torch.device("cuda"), "cuda:1": torch.device("cuda", 1)}
    monkeypatch.setattr(auto, "pick_device", places.__getitem__)
    monkeypatch.setattr(auto, "find_spec", lambda _: None)
    assert choose_engine(options) == "transformers"
    monkeypatch.setattr(auto, "find_spec", lambda _: SimpleNamespace())
    assert choose_engine(options) == "vllm"
    assert choose_engine(EngineOptions(model=model, device="cuda:1")) == "transformers"
    monkeypatch.setattr(auto, "measurements", lambda: (Measurement(1e9, 64, 2.0, 1.0),))
    assert choose_engine(options) == "transformers"
    assert choose_engine(EngineOptions(model=model, vllm={"tensor_parallel_size": 2})) == "vllm"


def test_on_a_cpu_it_is_the_engine_on_transformers() -> None:
    assert isinstance(make_engine("auto", None, model="tiny", device="cpu"), TransformersEngine)


def test_parameters_are_counted_without_weights(model: str) -> None:
    Path(model, "model.safetensors").unlink()
    assert count_parameters(model) == sum(weights.numel() for weights in tiny_model().parameters())
    with pytest.raises(StepladderError, match="nosuch"):
        count_parameters("./nosuch")


def test_what_it_reads_is_what_was_published() -> None:
    """Both are written by benchmarks/generation_speed.py."""
    published = [row["cells"] for row in json.loads(PUBLISHED.read_text())["rows"]]
    assert len(measurements()) == len(published)
    for row, cells in zip(measurements(), published):
        assert row.transformers == cells.get("transformers", cells.get("ours"))
        assert row.vllm == cells.get("vllm")
