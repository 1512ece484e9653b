"""The work of `generation_speed.py` and `vllm_overhead.py`: transcripts to write, and the ways to write them.

A transcript is a prompt, then twice a step that searches, the passages it reads, and a step that says what they tell:
four times some tokens are written and twice some hundred read. All ways get the same contexts and write the same number
of tokens, sampled at temperature 1. What is read are random tokens: speed does not depend on what they mean, nor on
what weights are.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

from stepladder.core.requests import Algorithm, Generate, Sampling
from stepladder.core.trace import Author, Segment
from stepladder.driver import Driver
from stepladder.engines.transformers.in_process import InProcessEngine
from stepladder.models.loading import load_model
from stepladder.models.tiny import tiny_tokenizer

PROMPT, READ, WRITTEN = 60, (300, 461), (16, 65)
#: Tokens to read before each step that writes: nothing, passages, nothing, passages.
TURNS = (False, True, False, True)
NEVER = ("</never written>",)


def _shape(hidden: int, inner: int, layers: int, heads: int, groups: int, vocabulary: int = 151_936) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "vocab_size": vocabulary,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    }


#: Models that need no download, and their shapes: nano's, SmolLM2-135M's, and Qwen2.5's.
RANDOM = {
    "random-4m": _shape(256, 704, 4, 4, 2, 4096),
    "random-135m": _shape(576, 1536, 30, 9, 3, 49_152),
    "random-0.5b": _shape(896, 4864, 24, 14, 2),
    "random-1.5b": _shape(1536, 8960, 28, 12, 2),
    "random-3b": _shape(2048, 11_008, 36, 16, 2),
}


@dataclass
class Transcript:
    """What is read before each step that writes, and how many tokens that writes."""

    reads: list[list[int]]
    limits: list[int]


#: Writes all transcripts.
Way = Callable[[list[Transcript]], None]


def transcripts(vocabulary: int, count: int) -> list[Transcript]:
    """The same ones every time."""
    rng = np.random.default_rng(0)

    def read(turn: int) -> list[int]:
        size = PROMPT if turn == 0 else int(rng.integers(*READ)) if TURNS[turn] else 0
        return [int(token) for token in rng.integers(5, vocabulary, size)]

    return [
        Transcript([read(turn) for turn in range(len(TURNS))], rng.integers(*WRITTEN, len(TURNS)).tolist())
        for _ in range(count)
    ]


def rate(way: Way, work: list[Transcript], rounds: int = 1) -> float:
    """Tokens written per second: the median of some rounds."""
    tokens = sum(sum(each.limits) for each in work)
    rates = []
    for _ in range(rounds):
        _sync()
        began = time.perf_counter()
        way(work)
        _sync()
        rates.append(tokens / (time.perf_counter() - began))
    return float(np.median(rates))


def by_engine(engine: InProcessEngine) -> Way:
    """Our driver and one of our engines: a transcript continues as soon as its step is written."""
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
        # Nothing is known from the round before; the CUDA graphs of our own engine stay.
        (engine.reset_prefix_cache if engine.name == "vllm" else engine.on_idle)()
        driver = Driver(engine, in_flight=len(work))
        outcomes = driver.run([partial(job, each, number) for number, each in enumerate(work)])
        failed = [outcome.failure for outcome in outcomes if outcome.failure is not None]
        assert not failed, failed[0]

    return write


def by_generate(model: Any) -> Way:
    """transformers as it is: every step reads the whole transcript again, in one left-padded batch that runs until
    its longest row has ended. Tokens beyond a row's own limit are computed, but not counted.
    """

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
        contexts: list[list[int]] = [[] for _ in work]
        for turn in range(len(TURNS)):
            contexts = [context + each.reads[turn] for context, each in zip(contexts, work)]
            written = step(contexts, [each.limits[turn] for each in work])
            contexts = [context + tokens for context, tokens in zip(contexts, written)]

    return write


def by_vllm(llm: Any, *, seeded: bool = False, **options: Any) -> Way:
    """vLLM without Stepladder; a transcript continues once its step is written. `options`: of `SamplingParams`."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    engine = llm.llm_engine

    def write(work: list[Transcript]) -> None:
        assert engine.reset_prefix_cache(), "vLLM still has running requests"
        contexts: list[list[int]] = [[] for _ in work]
        running: dict[str, tuple[int, int]] = {}

        def submit(number: int, turn: int) -> None:
            contexts[number] = contexts[number] + work[number].reads[turn]
            sampling = SamplingParams(
                temperature=1.0,
                max_tokens=work[number].limits[turn],
                ignore_eos=True,
                seed=number if seeded else None,
                output_kind=RequestOutputKind.FINAL_ONLY,  # as in LLM.generate
                **options,
            )
            name = f"{number}.{turn}"
            running[name] = number, turn
            engine.add_request(name, {"prompt_token_ids": contexts[number]}, sampling)

        for number in range(len(work)):
            submit(number, 0)
        while running:
            for output in engine.step():
                number, turn = running.pop(output.request_id)
                tokens = list(output.outputs[0].token_ids)
                assert len(tokens) == work[number].limits[turn]
                contexts[number] = contexts[number] + tokens
                if turn + 1 < len(TURNS):
                    submit(number, turn + 1)

    return write


def by_vllm_batches(llm: Any) -> Way:
    """vLLM without Stepladder, `LLM.generate` for all transcripts, turn by turn."""
    from vllm import SamplingParams

    def write(work: list[Transcript]) -> None:
        assert llm.llm_engine.reset_prefix_cache(), "vLLM still has running requests"
        contexts: list[list[int]] = [[] for _ in work]
        for turn in range(len(TURNS)):
            contexts = [context + each.reads[turn] for context, each in zip(contexts, work)]
            sampling = [SamplingParams(temperature=1.0, max_tokens=each.limits[turn], ignore_eos=True) for each in work]
            prompts = [{"prompt_token_ids": context} for context in contexts]
            outputs = llm.generate(prompts, sampling, use_tqdm=False)
            contexts = [context + list(each.outputs[0].token_ids) for context, each in zip(contexts, outputs)]

    return write


# --- models


def plain_model(model: str, device: str) -> tuple[Any, Any]:
    """The model as transformers has it, and its tokenizer."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    if model not in RANDOM:
        loaded, words = load_model(model, None, dtype)
        return loaded.to(device).eval(), words
    with torch.device(device):
        return AutoModelForCausalLM.from_config(Qwen2Config(**RANDOM[model]), dtype=dtype).eval(), tiny_tokenizer()


def vllm_engine(model: str, max_batch: int, folder: Path, tokenizer: str | None = None, **options: Any) -> Any:
    """Our engine on vLLM; random weights are made in vLLM. `tokenizer`: of a random model, instead of a tiny one."""
    from stepladder.engines.vllm.engine import VLLMEngine

    if model not in RANDOM:
        return VLLMEngine(model, max_batch=max_batch, **options)
    Qwen2Config(**RANDOM[model], architectures=["Qwen2ForCausalLM"], dtype="bfloat16").save_pretrained(folder)
    words = tiny_tokenizer() if tokenizer is None else AutoTokenizer.from_pretrained(tokenizer)
    words.save_pretrained(folder)
    others = {"load_format": "dummy", **options.pop("options", {})}
    return VLLMEngine(folder, max_batch=max_batch, chat=False, options=others, **options)


def vocabulary_of(engine: Any) -> int:
    """The vocabulary of a model in vLLM, as in its configuration."""
    return int(engine.llm.llm_engine.model_config.get_vocab_size())


def let_go(engine: Any) -> None:
    """Free the memory of an engine or a model."""
    if hasattr(engine, "close"):
        engine.close()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _sync() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
