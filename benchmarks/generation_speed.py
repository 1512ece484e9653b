"""How fast a real model writes many transcripts at once: our engines against plain `generate`, in the same run.

    python benchmarks/generation_speed.py --model smollm2-135m --model random-1.5b --transcripts 1024

`random-135m` and `random-1.5b` have the shapes of SmolLM2-135M and Qwen2.5-1.5B, and weights drawn at random; a folder
with the model itself does as well.

A transcript is a prompt, then twice a step that searches, the passages it reads, and a step that says what they tell:
four times some tokens are written and twice some hundred read. All ways get the same contexts and write the same number
of tokens, sampled at temperature 1:

- generate: transformers as it is; every step reads the whole transcript again, in one left-padded batch that goes on
  until its longest row has ended (tokens beyond a row's own limit are computed, but not counted);
- transformers: our driver and our engine on transformers; a transcript goes on as soon as its step is written;
- vllm: the same with our engine on vLLM, where that is installed and the model is a folder; with a seed for every row,
  and without.

What is read are random tokens: speed does not depend on what they mean, nor on what weights are. Without a GPU the
sizes are small.
"""

import argparse
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from stepladder.core.requests import Algorithm, Generate, Sampling
from stepladder.core.trace import Author, Segment
from stepladder.driver import Driver
from stepladder.engines.base import Engine
from stepladder.engines.paged.fused_norms import fuse_norms
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.engines.transformers.in_process import InProcessEngine
from stepladder.models.loading import load_model
from stepladder.models.tiny import tiny_tokenizer

PROMPT, READ, WRITTEN = 60, (300, 461), (16, 65)
#: Tokens to read before each step that writes: nothing, passages, nothing, passages.
TURNS = (False, True, False, True)
NEVER = ("</never written>",)
#: Models that need no download, and their shapes.
RANDOM: dict[str, dict[str, Any]] = {
    "random-135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49_152,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "random-1.5b": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
    },
}


@dataclass
class Transcript:
    """What is read before each step that writes, and how many tokens that writes."""

    reads: list[list[int]]
    limits: list[int]


#: Writes all transcripts.
Way = Callable[[list[Transcript]], None]


def transcripts(vocabulary: int, count: int) -> list[Transcript]:
    rng = np.random.default_rng(0)

    def read(turn: int) -> list[int]:
        size = PROMPT if turn == 0 else int(rng.integers(*READ)) if TURNS[turn] else 0
        return [int(token) for token in rng.integers(5, vocabulary, size)]

    return [
        Transcript([read(turn) for turn in range(len(TURNS))], rng.integers(*WRITTEN, len(TURNS)).tolist())
        for _ in range(count)
    ]


def by_engine(engine: InProcessEngine) -> Way:
    engine.end_tokens = frozenset()  # every row runs to its limit

    def job(work: Transcript, number: int) -> Algorithm[None]:
        context: tuple[Segment, ...] = ()
        for read, limit in zip(work.reads, work.limits):
            if read:
                context = (*context, Segment(Author.ENVIRONMENT, "?", tuple(read), (), engine.encoding.vocabulary))
            sampling = Sampling(temperature=1.0, max_tokens=limit)
            reply = yield Generate(context, stop=NEVER, sampling=sampling, seed=number)
            assert len(reply.written.tokens) == limit
            context = (*reply.context, reply.written)

    def write(work: list[Transcript]) -> None:
        engine.on_idle()  # nothing is known from the round before
        driver = Driver(engine, in_flight=len(work))
        outcomes = driver.run([partial(job, each, number) for number, each in enumerate(work)])
        failed = [outcome.failure for outcome in outcomes if outcome.failure is not None]
        assert not failed, failed[0]

    return write


def by_generate(model: Any, batch: int) -> Way:
    @torch.inference_mode()
    def step(contexts: list[list[int]], limits: list[int]) -> list[list[int]]:
        width, longest = max(map(len, contexts)), max(limits)
        ids = torch.tensor([[0] * (width - len(row)) + row for row in contexts], device=model.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in contexts], device=model.device)
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=longest,
            min_new_tokens=longest,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            pad_token_id=0,
        )[:, width:].tolist()
        return [tokens[:limit] for tokens, limit in zip(out, limits)]

    def write(work: list[Transcript]) -> None:
        for start in range(0, len(work), batch):
            some = work[start : start + batch]
            contexts: list[list[int]] = [[] for _ in some]
            for turn in range(len(TURNS)):
                contexts = [context + each.reads[turn] for context, each in zip(contexts, some)]
                written = step(contexts, [each.limits[turn] for each in some])
                contexts = [context + tokens for context, tokens in zip(contexts, written)]

    return write


def measure(label: str, way: Way, vocabulary: int, count: int, rounds: int, base: float | None) -> float:
    """The median rate after one round that does not count, unless there is but one."""
    work = transcripts(vocabulary, count)
    tokens = sum(sum(each.limits) for each in work)
    length = (tokens + sum(len(read) for each in work for read in each.reads)) // count
    rates = []
    for _ in range(rounds):
        _sync()
        began = time.perf_counter()
        way(work)
        _sync()
        rates.append(tokens / (time.perf_counter() - began))
    rate = float(np.median(rates[1:] or rates))
    times = f"{rate / base:10.1f}" if base else f"{1.0:10.1f}"
    print(f"{label:34}{tokens:>10,}{length:>10,}{rate:>14,.0f}{times}", flush=True)
    return rate


def _sync() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _let_go(engine: Engine | None) -> None:
    if engine is not None:
        engine.close()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def plain_model(model: str, device: str) -> tuple[Any, Any]:
    """The model as transformers has it, and its tokenizer."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    if model not in RANDOM:
        loaded, words = load_model(model, None, dtype)
        return loaded.to(device).eval(), words
    with torch.device(device):
        return AutoModelForCausalLM.from_config(Qwen2Config(**RANDOM[model]), dtype=dtype).eval(), tiny_tokenizer()


def run(model: str, count: int, batch: int, rounds: int, ways: set[str]) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    base: float | None = None
    if ways & {"generate", "transformers"}:
        plain, words = plain_model(model, device)
        vocabulary = plain.config.get_text_config().vocab_size
        size = sum(weights.numel() for weights in plain.parameters())
        print(f"\n{model}: {size / 1e6:,.0f}M parameters, {plain.dtype}, {device}, {count:,} transcripts at once")
        print(f"{'way':34}{'written':>10}{'length':>10}{'tokens/s':>14}{'times':>10}")
        if "generate" in ways:
            base = measure(f"generate, batches of {batch}", by_generate(plain, batch), vocabulary, count, 1, None)
        engine = None
        if "transformers" in ways:
            if device == "cuda":
                fuse_norms(plain)  # as the engine does with a model that it loads itself
            engine = TransformersEngine(plain, words, max_batch=count)
            measure("stepladder on transformers", by_engine(engine), vocabulary, count, rounds, base)
        _let_go(engine)
        del engine, plain
        _let_go(None)
    if "vllm" in ways and model not in RANDOM and device == "cuda" and find_spec("vllm") is not None:
        from stepladder.engines.vllm import VLLMEngine

        served = VLLMEngine(model, max_batch=count)
        vocabulary = min(served.llm.llm_engine.model_config.get_vocab_size(), len(served.tokenizer))
        measure("stepladder on vLLM", by_engine(served), vocabulary, count, rounds, base)
        served.seeded = False
        measure("stepladder on vLLM, no seeds", by_engine(served), vocabulary, count, rounds, base)
        _let_go(served)


def main() -> None:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="may be given several times; nano without one on a CPU")
    parser.add_argument("--transcripts", type=int, default=1024 if gpu else 32)
    parser.add_argument("--batch", type=int, help="of generate; all transcripts by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default="generate,transformers,vllm")
    chosen = parser.parse_args()
    for model in chosen.model or ["smollm2-135m" if gpu else "nano"]:
        run(model, chosen.transcripts, chosen.batch or chosen.transcripts, chosen.rounds, set(chosen.ways.split(",")))


if __name__ == "__main__":
    main()
