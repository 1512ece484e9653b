"""Generation speed of the transformers engine against plain `model.generate`: same model, prompts and tokens, one run.

The model has random weights (speed does not depend on them): 5M parameters on a CPU, 0.3B on a GPU. Two workloads:
every row writes 64 tokens, or rows write between 8 and 128, as steps of an episode do. `generate` pads a batch to its
longest prompt and goes on until its last row has ended; its finished rows are computed along.
"""

import time

import numpy as np
import torch

from stepladder.engines.tiny import tiny_model, tiny_tokenizer
from stepladder.engines.transformers import TransformersEngine
from stepladder.request import Generate, Generation, Sampling
from stepladder.trace import Author, Segment

SIZES = {
    "cpu": {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 4},
    "cuda": {"hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24, "num_attention_heads": 16},
}


def requests(count: int, lengths: list[int]) -> list[Generate]:
    rng = np.random.default_rng(0)
    prompts = ["".join(map(chr, rng.integers(97, 123, rng.integers(100, 400)))) for _ in range(count)]
    return [
        Generate((Segment(Author.PROMPT, prompt),), sampling=Sampling(max_tokens=length))
        for prompt, length in zip(prompts, lengths)
    ]


def ours(engine: TransformersEngine, batch: list[Generate]) -> tuple[int, float]:
    started = time.perf_counter()
    replies = engine.generate(batch)
    seconds = time.perf_counter() - started
    return sum(reply.usage.written for reply in replies if isinstance(reply, Generation)), seconds


@torch.inference_mode()
def plain(engine: TransformersEngine, batch: list[Generate]) -> tuple[int, float]:
    """The same in batches of the same size; tokens beyond a row's own limit are computed but not counted."""
    engine.tokenizer.padding_side = "left"
    written = 0
    started = time.perf_counter()
    for start in range(0, len(batch), engine.max_batch):
        part = batch[start : start + engine.max_batch]
        inputs = engine.tokenizer([request.context[0].text for request in part], return_tensors="pt", padding=True)
        longest = max(request.sampling.max_tokens for request in part)
        engine.model.generate(
            **inputs.to(engine.device), max_new_tokens=longest, min_new_tokens=longest, do_sample=False
        )
        written += sum(request.sampling.max_tokens for request in part)
    return written, time.perf_counter() - started


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = tiny_model(num_key_value_heads=2, initializer_range=0.02, **SIZES[device]).to(device, dtype)
    count, max_batch = (1024, 256) if device == "cuda" else (64, 32)
    engine = TransformersEngine(model, tiny_tokenizer(), max_batch=max_batch)
    engine.end_tokens = frozenset()  # random weights may end a turn anywhere; here every row runs to its limit
    mixed = np.random.default_rng(1).integers(8, 129, count).tolist()
    size = sum(weights.numel() for weights in model.parameters())
    print(f"{size / 1e6:.0f}M parameters, {engine.dtype}, {engine.device}, {count} prompts, batches of {max_batch}")
    print(f"{'workload':<24}{'generate, tokens/s':>20}{'engine, tokens/s':>20}{'times as fast':>16}")
    ours(engine, requests(max_batch, [4] * max_batch))  # warm up
    for label, lengths in (("64 tokens a row", [64] * count), ("8 to 128 tokens a row", mixed)):
        batch = requests(count, lengths)
        rates = []
        for way in (plain, ours):
            best = 0.0
            for _ in range(2):
                written, seconds = way(engine, batch)
                assert written == sum(lengths)
                best = max(best, written / seconds)
            rates.append(best)
        print(f"{label:<24}{rates[0]:>20,.0f}{rates[1]:>20,.0f}{rates[1] / rates[0]:>16.2f}")


if __name__ == "__main__":
    main()
