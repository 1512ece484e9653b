"""Trained models as small adapters."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

from stepladder.cli import main
from stepladder.core.errors import StepladderError
from stepladder.models.loading import load_model
from stepladder.models.lora_extraction import extract_lora
from stepladder.models.tiny import tiny_model, tiny_tokenizer


def begun(folder: Path) -> str:
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


def trained(rank: int) -> torch.nn.Module:
    """What LoRA of this rank may have made of the tiny model."""
    model = get_peft_model(tiny_model(), LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM", r=rank))
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "lora_B" in name:
                weights.normal_(std=0.05, generator=torch.Generator().manual_seed(len(name)))
    return model.merge_and_unload()


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.arange(5, 45)[None]).logits.float()


def test_what_lora_has_learnt_is_kept(tmp_path: Path) -> None:
    base, model = begun(tmp_path / "base"), trained(rank=4)
    found = extract_lora(model, tiny_model(), base, tiny_tokenizer(), 4, tmp_path / "adapter")
    assert found.kept > 0.999
    assert (found.left_out, found.lost) == (0, 0.0)
    loaded, _ = load_model(tmp_path / "adapter", None, None)
    near, far = (logits(loaded) - logits(model)).abs().max(), (logits(tiny_model()) - logits(model)).abs().max()
    assert near < 0.05 * far
    assert found.bytes == sum(each.nbytes for each in _matrices(tmp_path / "adapter").values())


def _matrices(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "adapter_model.safetensors")


def test_a_smaller_rank_keeps_less_and_a_larger_one_does_no_harm(tmp_path: Path) -> None:
    model = trained(rank=8)
    shares = [
        extract_lora(model, tiny_model(), "base", tiny_tokenizer(), rank, tmp_path / str(rank)).kept
        for rank in (1, 4, 8, 100)
    ]
    assert shares[0] < shares[1] < 0.99
    assert shares[3] == pytest.approx(shares[2], abs=1e-6)
    assert shares[0] < 0.6
    assert shares[2] > 0.999


def test_what_no_adapter_can_hold_is_told(tmp_path: Path) -> None:
    model = trained(rank=2)
    with torch.no_grad():
        model.model.norm.weight.add_(0.5)
    found = extract_lora(model, tiny_model(), "base", tiny_tokenizer(), 2, tmp_path / "adapter")
    assert found.left_out == 1
    assert 0 < found.lost < 1


def test_models_that_do_not_belong_together(tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match="there is nothing to extract"):
        extract_lora(tiny_model(), tiny_model(), "base", tiny_tokenizer(), 2, tmp_path / "adapter")
    other = load_model("nano", None, None)[0]
    with pytest.raises(StepladderError, match="do not have the same shapes"):
        extract_lora(other, tiny_model(), "base", tiny_tokenizer(), 2, tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = begun(tmp_path / "base")
    model = trained(rank=2)
    model.save_pretrained(tmp_path / "policy")
    tiny_tokenizer().save_pretrained(tmp_path / "policy")
    command = ["adapter", "--model", str(tmp_path / "policy"), "--out", str(tmp_path / "small"), "--rank", "2"]
    assert main(command) == 2
    assert "--base" in capsys.readouterr().err
    assert main([*command, "--base", base, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kept"] > 0.999
    assert json.loads((tmp_path / "small" / "adapter_config.json").read_text())["base_model_name_or_path"] == base
    assert main([*command, "--base", base]) == 2
    assert "exists already" in capsys.readouterr().err


def test_an_adapter_knows_the_agent_that_it_was_trained_as(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = begun(tmp_path / "base")
    folder = tmp_path / "adapter"
    extract_lora(trained(rank=2), tiny_model(), base, tiny_tokenizer(), 2, folder, "react-brief")
    asked = ["eval", "--model", str(folder), "--data", "atlas-small", "--limit", "1", "--max-tokens", "2", "--json"]
    assert main(asked) == 0
    assert json.loads(capsys.readouterr().out)["agent"] == "react-brief"
    assert main([*asked, "--agent", "rag"]) == 0
    assert json.loads(capsys.readouterr().out)["agent"] == "rag"
    (tmp_path / "theirs.py").write_text("raise SystemExit('downloaded code ran')")
    (folder / "stepladder.json").write_text(json.dumps({"agent": str(tmp_path / "theirs.py")}))
    assert main(asked) == 2
    assert f"names the agent file {tmp_path / 'theirs.py'}: --agent" in capsys.readouterr().err
    (folder / "stepladder.json").write_text("prorag")
    assert main(asked) == 2
    assert 'expected {"agent": "NAME"}' in capsys.readouterr().err.replace("\n", " ")


def test_an_adapter_is_not_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "adapter"
    extract_lora(trained(rank=2), tiny_model(), begun(tmp_path / "base"), tiny_tokenizer(), 2, folder)
    assert main(["ask", "--run", str(folder)]) == 2
    assert (
        "is a model, not a run: pass it to `ask`, `eval`, `adapter` and `serve-agent` as --model"
        in capsys.readouterr().err.replace("\n", " ")
    )


def test_an_adapter_of_an_adapter_says_how_to_need_only_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extract_lora(trained(rank=2), tiny_model(), begun(tmp_path / "base"), tiny_tokenizer(), 2, tmp_path / "first")
    trained(rank=3).save_pretrained(tmp_path / "policy")
    tiny_tokenizer().save_pretrained(tmp_path / "policy")
    command = ["adapter", "--model", str(tmp_path / "policy"), "--base", str(tmp_path / "first"), "--rank", "2"]
    assert main([*command, "--out", str(tmp_path / "second")]) == 0
    assert f"--base {tmp_path / 'base'} makes an adapter that needs no other" in capsys.readouterr().out


def test_a_change_that_is_mostly_rounding_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun(tmp_path / "base")
    model = tiny_model().bfloat16()
    model.save_pretrained(tmp_path / "base")
    with torch.no_grad():
        weight = model.model.layers[0].mlp.up_proj.weight
        weight.copy_(torch.where(torch.rand(weight.shape) < 0.1, weight * 1.01, weight))
    model.save_pretrained(tmp_path / "policy")
    tiny_tokenizer().save_pretrained(tmp_path / "policy")
    command = ["adapter", "--model", str(tmp_path / "policy"), "--base", str(tmp_path / "base"), "--rank", "2"]
    assert main([*command, "--out", str(tmp_path / "small")]) == 0
    assert "bf16 rounding counts as change too" in capsys.readouterr().out
