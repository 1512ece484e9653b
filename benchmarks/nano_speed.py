"""How fast the default model is on this machine: its transcripts, its single answers, its training.

Generation is compared with plain `model.generate` on the same model, with the same contexts and limits, in batches of
the same size in order of arrival, and in the same run, taking turns:

- transcripts: a prompt of 30 tokens, then five times up to 24 tokens written and some 90 read. `generate` reads the
  whole transcript at every step; the engine only what is new;
- single answers: prompts of 100 to 400 tokens, every row writes 64 tokens, or rows write between 8 and 128.

`generate` pads a batch to its longest row and goes on until its last one has ended; tokens beyond a row's own limit are
computed, but not counted. Contexts are random tokens: speed does not depend on what they mean. On a GPU the model has
0.3B parameters, random ones: nano is too small to keep one busy.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from stepladder.core.requests import Generate, Generation, Sampling
from stepladder.core.trace import Author, Segment
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.models.loading import load_model
from stepladder.models.tiny import tiny_tokenizer

PROMPT, READ, WRITTEN, STEPS = 30, (60, 121), (8, 25), 5
NEVER = ("</never written>",)


def model_to_measure(device: str) -> tuple[Any, PreTrainedTokenizerBase, str]:
    if device == "cpu":
        return *load_model("nano", None, torch.float32), "nano"
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=4,
        tie_word_embeddings=True,
        eos_token_id=256,
        pad_token_id=256,
    )
    return LlamaForCausalLM(config), tiny_tokenizer(), "random weights"


@dataclass
class Work:
    """Contexts to go on from, and how many tokens to write behind each."""

    contexts: list[list[int]]
    limits: list[int]


def write_by_engine(engine: TransformersEngine, work: Work) -> list[list[int]]:
    def request(context: list[int], limit: int) -> Generate:
        segment = Segment(Author.PROMPT, "?", tuple(context), vocabulary=engine.encoding.vocabulary)
        return Generate((segment,), stop=NEVER, sampling=Sampling(max_tokens=limit))

    written = []
    requests = list(map(request, work.contexts, work.limits))
    for start in range(0, len(requests), engine.max_batch):  # as the driver calls it
        replies = engine.generate(requests[start : start + engine.max_batch])
        written += [list(reply.written.tokens) for reply in replies if isinstance(reply, Generation)]
    return written


@torch.inference_mode()
def write_by_generate(engine: TransformersEngine, work: Work) -> list[list[int]]:
    written = []
    for start in range(0, len(work.contexts), engine.max_batch):
        contexts = work.contexts[start : start + engine.max_batch]
        limits = work.limits[start : start + engine.max_batch]
        width = max(map(len, contexts))
        ids = torch.tensor([[0] * (width - len(context)) + context for context in contexts])
        mask = torch.tensor([[0] * (width - len(context)) + [1] * len(context) for context in contexts])
        longest = max(limits)
        out = engine.model.generate(
            input_ids=ids.to(engine.device),
            attention_mask=mask.to(engine.device),
            max_new_tokens=longest,
            min_new_tokens=longest,
            do_sample=False,
        )[:, width:].tolist()
        written += [tokens[:limit] for tokens, limit in zip(out, limits)]
    return written


Way = Callable[[TransformersEngine, Work], list[list[int]]]


def transcripts(engine: TransformersEngine, way: Way, count: int) -> int:
    """Plays transcripts of five steps; the number of tokens written."""
    rng = np.random.default_rng(0)
    vocabulary = engine.config.vocab_size
    contexts = rng.integers(0, vocabulary, (count, PROMPT)).tolist()
    total = 0
    for _ in range(STEPS):
        limits = rng.integers(*WRITTEN, count).tolist()
        written = way(engine, Work(contexts, limits))
        assert list(map(len, written)) == limits
        total += sum(limits)
        contexts = [
            context + tokens + rng.integers(0, vocabulary, rng.integers(*READ)).tolist()
            for context, tokens in zip(contexts, written)
        ]
    return total


def answers(engine: TransformersEngine, way: Way, count: int, shortest: int, longest: int) -> int:
    """Single answers to prompts of mixed length; the number of tokens written."""
    rng = np.random.default_rng(1)
    contexts = [rng.integers(0, engine.config.vocab_size, rng.integers(100, 400)).tolist() for _ in range(count)]
    limits = rng.integers(shortest, longest + 1, count).tolist()
    assert list(map(len, way(engine, Work(contexts, limits)))) == limits
    return sum(limits)


def train(model: Any, autocast: bool, batch: int, length: int = 512) -> int:
    """One step of AdamW on a batch of transcripts; the number of tokens."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    device = next(model.parameters()).device
    ids = torch.randint(0, model.config.vocab_size, (batch, length), device=device)
    with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return ids.numel()


def rate(work: Callable[[], int]) -> float:
    started = time.perf_counter()
    tokens = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return tokens / (time.perf_counter() - started)


def compare(label: str, engine: TransformersEngine, work: Callable[..., int], rounds: int) -> None:
    plain, ours = [], []
    for _ in range(rounds):
        plain.append(rate(partial(work, engine, write_by_generate)))
        engine.reset_prefix_cache()
        ours.append(rate(partial(work, engine, write_by_engine)))
    a, b = statistics.median(plain), statistics.median(ours)
    print(f"{engine.dtype!s:<16}{label:<36}{a:>20,.0f}{b:>18,.0f}{b / a:>15.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer, label = model_to_measure(device)
    model = model.to(device).eval()
    count, batch = (512, 256) if device == "cuda" else (64, 64)
    size = sum(weights.numel() for weights in model.parameters())
    print(f"{size / 1e6:.1f}M parameters ({label}), {device}, {torch.get_num_threads()} threads, batches of {batch}")
    print(f"{'dtype':<16}{'workload':<36}{'generate, tokens/s':>20}{'engine, tokens/s':>18}{'times as fast':>15}")
    for dtype in (torch.bfloat16,) if device == "cuda" else (torch.bfloat16, torch.float32):
        engine = TransformersEngine(model.to(dtype), tokenizer, max_batch=batch)
        engine.end_tokens = frozenset()  # random weights may end a turn anywhere; here every row runs to its limit
        write_by_engine(engine, Work([[1, 2, 3]] * 8, [4] * 8))  # warm up
        compare("transcripts of five steps", engine, partial(transcripts, count=count), rounds)
        alike, mixed = (partial(answers, count=count, shortest=a, longest=b) for a, b in ((64, 64), (8, 128)))
        compare("answers of 64 tokens", engine, alike, rounds)
        compare("answers of 8 to 128 tokens", engine, mixed, rounds)
    print("\ntraining: forward, backward and AdamW on transcripts of 512 tokens")
    model = model.float().train()
    for autocast in (False, True):
        rates = [rate(partial(train, model, autocast, batch=16)) for _ in range(rounds + 1)][1:]
        print(f"{'bf16 autocast' if autocast else 'fp32':<16}{statistics.median(rates):>12,.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
