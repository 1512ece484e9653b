"""Training speed with LoRA: our fused layers against peft's and Liger's, on the same batch in one run, alternating.

    python benchmarks/lora_speed.py --model smollm2-135m --rows 16 --width 1024

- peft: the model in fp32 as a trainer gets it, LoRA as peft builds it; on a GPU under autocast;
- peft, frozen in bf16: the same, with the frozen weights in bf16 (on a GPU);
- liger: frozen weights and adapters in bf16 (`autocast_adapter_dtype=False`) with Liger's fused norms, rotary
  embeddings and SwiGLU, if `liger-kernel` is installed (on a GPU);
- stepladder: LoRA products added in place (`train/loop/fused_lora.py`) and fused norms.

A batch is rows of random tokens of which every sixth is a target, about as in transcripts; a pass is loss and
gradients. The last column is the distance of the gradients of all trained weights to those of peft, as a share
of them. On a CPU training keeps peft's layers, because fusing gains nothing there; here it shows that both agree.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from stepladder.engines.paged.fused_norms import fuse_norms
from stepladder.models.loading import quiet_libraries
from stepladder.train.loop.config import LoraConfig
from stepladder.train.loop.fused_lora import fuse_lora
from stepladder.train.loop.policy_weights import load_policy, skip_lora_input_casts
from stepladder.train.transcripts.fine_tune import weighted_nll


@dataclass
class Way:
    """A model, made in one of the ways."""

    label: str
    model: Any
    seconds: list[float]


def made(label: str, source: str, device: torch.device, *, bf16: bool, fused: bool) -> Way:
    torch.manual_seed(0)
    model = load_policy(source, LoraConfig(r=16, lora_alpha=32), bf16=bf16, device=device).model.train()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "lora_B" in name:  # else nothing would flow back to the other matrices
                weights.normal_(std=0.01)
    skip_lora_input_casts(model)
    if fused:
        fuse_norms(model)
        fuse_lora(model)
    return Way(label, model, [])


def made_by_liger(source: str, device: torch.device) -> Way:
    """peft with adapters in bf16 and Liger's kernels."""
    from liger_kernel.transformers import _apply_liger_kernel_to_instance  # type: ignore[import-not-found]
    from peft import LoraConfig as PeftLoraConfig, get_peft_model

    torch.manual_seed(0)
    base = load_policy(source, None, bf16=True, device=device).model.to(torch.bfloat16)
    _apply_liger_kernel_to_instance(model=base, fused_linear_cross_entropy=False, cross_entropy=False)
    config = PeftLoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, config, autocast_adapter_dtype=False).train()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "lora_B" in name:
                weights.normal_(std=0.01)
    return Way("liger", model, [])


def learning(way: Way, batch: Any, device: torch.device) -> Callable[[], None]:
    def once() -> None:
        way.model.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = weighted_nll(way.model, batch)
        loss.backward()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return once


def gradients(model: Any) -> torch.Tensor:
    return torch.cat([weights.grad.float().flatten() for weights in model.parameters() if weights.grad is not None])


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpu = device.type == "cuda"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m" if gpu else "nano")
    parser.add_argument("--rows", type=int, default=16 if gpu else 4)
    parser.add_argument("--width", type=int, default=1024 if gpu else 256)
    parser.add_argument("--rounds", type=int, default=10 if gpu else 5)
    chosen = parser.parse_args()
    with quiet_libraries():
        ways = [made("peft", chosen.model, device, bf16=False, fused=False)]
        if gpu:
            ways.append(made("peft, frozen in bf16", chosen.model, device, bf16=True, fused=False))
            if find_spec("liger_kernel") is not None:
                ways.append(made_by_liger(chosen.model, device))
        ways.append(made("stepladder", chosen.model, device, bf16=gpu, fused=True))
    words = ways[0].model.config.get_text_config().vocab_size
    ids = torch.randint(5, words, (chosen.rows, chosen.width), generator=torch.Generator().manual_seed(0))
    wanted = (torch.arange(chosen.width) % 6 == 0).float().expand(chosen.rows, -1)
    batch = {"input_ids": ids.to(device), "weights": wanted.to(device)}
    passes = [learning(way, batch, device) for way in ways]
    peaks = []
    for once in passes:
        if gpu:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        once()
        peaks.append(torch.cuda.max_memory_allocated() - before if gpu else 0)
    for _ in range(chosen.rounds):
        for way, once in zip(ways, passes):
            began = time.perf_counter()
            once()
            way.seconds.append(time.perf_counter() - began)
    tokens, base = chosen.rows * chosen.width, statistics.median(ways[0].seconds)
    expected = gradients(ways[0].model)
    print(f"{chosen.model}, LoRA of rank 16, {chosen.rows} x {chosen.width} tokens, {device.type}")
    print(f"{'way':24}{'tokens/s':>12}{'times':>8}{'activations, GB':>18}{'gradients apart':>18}")
    for way, peak in zip(ways, peaks):
        seconds = statistics.median(way.seconds)
        apart = float((gradients(way.model) - expected).norm() / expected.norm())
        held = f"{peak / 1e9:.1f}" if gpu else ""
        print(f"{way.label:24}{tokens / seconds:>12,.0f}{base / seconds:>8.2f}{held:>18}{apart:>18.1e}")


if __name__ == "__main__":
    main()
