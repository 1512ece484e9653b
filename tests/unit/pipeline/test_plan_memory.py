"""The shapes and the memory of `stepladder plan`, against real models."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from stepladder.core.errors import StepladderError
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from stepladder.pipeline.plan.cost_constants import constants
from stepladder.pipeline.plan.model_shape import ModelShape, find_shape, shape_from_config

#: Billions of parameters, as the model cards say.
SIZES = {
    "smollm2-135m": 0.135,
    "Qwen/Qwen2.5-0.5B-Instruct": 0.494,
    "Qwen/Qwen2.5-1.5B-Instruct": 1.54,
    "Qwen/Qwen2.5-3B-Instruct": 3.09,
    "Qwen/Qwen2.5-7B-Instruct": 7.62,
    "Qwen/Qwen2.5-14B-Instruct": 14.8,
    "Qwen/Qwen3-8B": 8.19,
    "Qwen/Qwen3-4B": 4.02,
    "meta-llama/Llama-3.1-8B-Instruct": 8.03,
}


def small_model(kind: type[Any], layers: int = 2, **changes: Any) -> Any:
    config = kind(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        **changes,
    )
    return AutoModelForCausalLM.from_config(config)


def saved_bytes(model: Any, tokens: int, *, bf16: bool) -> int:
    """What the layers of a model save for the backward pass, without its weights."""
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    found: dict[int, int] = {}
    kept = []

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)  # so that no address is used twice
        return tensor

    core = model.get_base_model().model if hasattr(model, "get_base_model") else model.model
    ids = torch.randint(0, 60, (2, tokens // 2))
    saving = torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor)
    with saving, torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        core(input_ids=ids, use_cache=False)
    return sum(found.values())


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("lora", [None, 8])
@pytest.mark.parametrize("kind", [LlamaConfig, Qwen2Config, Qwen3Config])
def test_activations_are_those_that_torch_saves(kind: type[Any], lora: int | None, bf16: bool) -> None:
    def of(layers: int, tokens: int) -> int:
        model = small_model(kind, layers)
        if lora is not None:
            model = model.to(torch.bfloat16 if bf16 else torch.float32)
            model = get_peft_model(model, LoraConfig(r=lora, target_modules="all-linear"))
        return saved_bytes(model.train(), tokens, bf16=bf16)

    # The difference of two lengths and of two depths: without what does not depend on them, such as casted weights.
    counted = ((of(3, 96) - of(3, 32)) - (of(1, 96) - of(1, 32))) / 64 / 2
    shape = shape_from_config("model", small_model(kind).config)
    assert shape.layer_activation_bytes(lora=lora, bf16=bf16) == pytest.approx(counted, rel=0.05)


@pytest.mark.parametrize("kind", [LlamaConfig, Qwen2Config, Qwen3Config])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_adapters_and_keys_are_those_of_the_model(kind: type[Any], tied: bool) -> None:
    model = small_model(kind, tie_word_embeddings=tied)
    shape = shape_from_config("model", model.config)
    assert shape.parameters == pytest.approx(sum(each.numel() for each in model.parameters()), rel=0.01)
    cache = model(input_ids=torch.ones(1, 10, dtype=torch.long), use_cache=True).past_key_values
    held = sum(each.keys.numel() + each.values.numel() for each in cache.layers)
    assert shape.kv_bytes(bf16=False) * 10 == held * 4
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
    adapters = sum(each.numel() for name, each in adapted.named_parameters() if "lora_" in name)
    assert shape.lora_parameters(4) == adapters


@pytest.mark.parametrize("name", SIZES)
def test_stored_shapes_have_the_size_of_their_models(name: str) -> None:
    assert find_shape(name, constants()["models"]).parameters / 1e9 == pytest.approx(SIZES[name], rel=0.01)


def test_the_shape_is_read_from_a_folder(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    shape = find_shape(str(tmp_path), constants()["models"])
    assert (shape.layers, shape.hidden, shape.vocabulary, shape.tied) == (2, 64, 257, True)
    assert shape == ModelShape(str(tmp_path), **_sizes(find_shape("tiny", {})))


def _sizes(shape: ModelShape) -> dict[str, Any]:
    return {name: getattr(shape, name) for name in ModelShape.__slots__ if name != "name"}


def test_a_model_of_unknown_shape_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match=r"Somebody/Model-70B' is unknown.*--set policy=DIR"):
        find_shape("Somebody/Model-70B", constants()["models"])
    with pytest.raises(StepladderError, match=r"has no config\.json"):
        find_shape(str(tmp_path), constants()["models"])
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(StepladderError, match="unknown"):
        find_shape(str(tmp_path), constants()["models"])


def test_gradient_checkpointing_keeps_a_fraction() -> None:
    shape = find_shape("Qwen/Qwen3-8B", constants()["models"])
    all_kept, few_kept = (
        shape.activation_bytes(lora=None, bf16=True, checkpointing=checkpointing) for checkpointing in (False, True)
    )
    assert few_kept < all_kept / 8
