"""How fast a real model writes many transcripts at once: our engines against plain `generate`, in the same run.

    python benchmarks/generation_speed.py --model smollm2-135m --model path/to/qwen2.5-1.5b --transcripts 1024

A transcript is a prompt, then twice a step that searches, the passages it reads, and a step that says what they tell:
four times some tokens are written and twice some hundred read. All ways get the same contexts and write the same number
of tokens, sampled at temperature 1:

- generate: transformers as it is; every step reads the whole transcript again, in one left-padded batch that goes on
  until its longest row has ended (tokens beyond a row's own limit are computed, but not counted);
- transformers: our engine on transformers;
- vllm: our engine on vLLM, where that is installed, with a seed for every row; and without.

What is read are random tokens: speed does not depend on what they mean. Without a GPU the sizes are small.
"""

import argparse
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from stepladder.engines.base import Engine
from stepladder.engines.in_process import InProcessEngine
from stepladder.engines.transformers import TransformersEngine
from stepladder.request import Generate, Generation, Sampling
from stepladder.trace import Author, Segment

PROMPT, READ, WRITTEN = 60, (300, 461), (16, 65)
#: Tokens to read before each step that writes: nothing, passages, nothing, passages.
TURNS = (False, True, False, True)
NEVER = ("</never written>",)


@dataclass
class Work:
    """Contexts to go on from, as runs of tokens, and how many tokens to write behind each."""

    contexts: list[list[list[int]]]
    limits: list[int]


Way = Callable[[Work], list[list[int]]]


def by_engine(engine: InProcessEngine) -> Way:
    engine.end_tokens = frozenset()  # every row runs to its limit

    def write(work: Work) -> list[list[int]]:
        def segment(part: list[int], place: int) -> Segment:
            author = Author.POLICY if place % 2 else Author.ENVIRONMENT
            return Segment(author, "?", tuple(part), vocabulary=engine.encoding.vocabulary)

        requests = [
            Generate(
                tuple(segment(part, place) for place, part in enumerate(context)),
                stop=NEVER,
                sampling=Sampling(temperature=1.0, max_tokens=limit),
                seed=number,
            )
            for number, (context, limit) in enumerate(zip(work.contexts, work.limits))
        ]
        session = engine.open()
        assert session is not None
        session.add(dict(enumerate(requests)))
        replies: dict[Any, Any] = {}
        while len(replies) < len(requests):
            replies |= session.work()
        found = [replies[number] for number in range(len(requests))]
        assert all(isinstance(reply, Generation) for reply in found), found[:3]
        return [list(reply.written.tokens) for reply in found]

    return write


def by_generate(model: Any, batch: int) -> Way:
    @torch.inference_mode()
    def write(work: Work) -> list[list[int]]:
        written: list[list[int]] = []
        for start in range(0, len(work.contexts), batch):
            rows = [[token for part in each for token in part] for each in work.contexts[start : start + batch]]
            limits = work.limits[start : start + batch]
            width, longest = max(map(len, rows)), max(limits)
            ids = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=model.device)
            mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=model.device)
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
            written += [tokens[:limit] for tokens, limit in zip(out, limits)]
        return written

    return write


def play(way: Way, vocabulary: int, count: int) -> tuple[int, int]:
    """Play transcripts; how many tokens were written, and how long the transcripts became on average."""
    rng = np.random.default_rng(0)
    contexts = [[each] for each in rng.integers(5, vocabulary, (count, PROMPT)).tolist()]
    total = 0
    for reads in TURNS:
        if reads:
            for context in contexts:
                context.append(rng.integers(5, vocabulary, rng.integers(*READ)).tolist())
        limits = rng.integers(*WRITTEN, count).tolist()
        written = way(Work(contexts, limits))
        assert list(map(len, written)) == limits
        total += sum(limits)
        for context, tokens in zip(contexts, written):
            context.append(tokens)
    return total, sum(len(part) for context in contexts for part in context) // count


def measure(label: str, way: Way, vocabulary: int, count: int, rounds: int, base: float | None) -> float:
    """The median rate after one round that does not count, unless there is but one."""
    rates = []
    for _ in range(rounds):
        _sync()
        began = time.perf_counter()
        tokens, length = play(way, vocabulary, count)
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


def run(model: str, count: int, batch: int, rounds: int, ways: set[str]) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    base: float | None = None
    if ways & {"generate", "transformers"}:
        engine = TransformersEngine(model, device=device, max_batch=count)
        vocabulary = engine.config.vocab_size
        size = sum(weights.numel() for weights in engine.model.parameters())
        print(f"\n{model}: {size / 1e6:,.0f}M parameters, {engine.dtype}, {device}, {count:,} transcripts at once")
        print(f"{'way':34}{'written':>10}{'length':>10}{'tokens/s':>14}{'times':>10}")
        if "generate" in ways:
            base = measure(
                f"generate, batches of {batch}", by_generate(engine.model, batch), vocabulary, count, 1, None
            )
        if "transformers" in ways:
            measure("stepladder on transformers", by_engine(engine), vocabulary, count, rounds, base)
        _let_go(engine)
        del engine
        _let_go(None)
    if "vllm" in ways and device == "cuda" and find_spec("vllm") is not None:
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
