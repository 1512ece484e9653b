"""Where the time goes between vLLM alone and vLLM through our engine: all variants on one vLLM, in one run.

    python benchmarks/vllm_overhead.py --model random-1.5b --tokenizer FOLDER
    python benchmarks/vllm_overhead.py --model FOLDER --transcripts 64 --only alone --only "engine + all" --profile

The work is that of `generation_speed.py`. `alone` variants call vLLM's own engine; `session` ones our engine without
our driver; `engine` ones both. The rest of a name says what is asked for. Shares are of `alone`, vLLM's defaults
without log-probs, stop strings and seeds.

- alone, by turn: one `LLM.generate` per turn, for all transcripts; in the others, a transcript continues at once;
- text off: nothing is decoded, which is the most that vLLM gives;
- join N: rows wait until they are 1/N of those that run, before they join them (`Engine.join_share`).

Every variant runs once on a few transcripts, then `--rounds` times on all; variants alternate, so that a machine that
slows down slows all. `--profile` prints where Python spends its time in the last variant.
"""

import argparse
import cProfile
import pstats
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from generation_work import (
    NEVER,
    TURNS,
    Transcript,
    Way,
    by_engine,
    by_vllm,
    by_vllm_batches,
    let_go,
    rate,
    transcripts,
    vllm_engine,
    vocabulary_of,
)
from stepladder.core.requests import Generate, Generation, Sampling
from stepladder.core.trace import Author, Segment

_STOPS = {"stop": list(NEVER), "include_stop_str_in_output": True, "skip_special_tokens": False}


def by_session(engine: Any) -> Way:
    """Our engine without our driver: sessions, tokens, log-probs, seeds and stop strings."""
    engine.end_tokens = frozenset()

    def write(work: list[Transcript]) -> None:
        engine.reset_prefix_cache()
        session = engine.open_session()
        contexts: list[tuple[Segment, ...]] = [() for _ in work]

        def request(number: int, turn: int) -> Generate:
            if read := work[number].reads[turn]:
                segment = Segment(Author.ENVIRONMENT, "?", tuple(read), (), engine.encoding.vocabulary)
                contexts[number] = (*contexts[number], segment)
            return Generate(contexts[number], NEVER, Sampling(1.0, max_tokens=work[number].limits[turn]), number)

        session.add({(number, 0): request(number, 0) for number in range(len(work))})
        while replies := session.step():
            following = {}
            for (number, turn), reply in replies.items():
                assert isinstance(reply, Generation), reply
                contexts[number] = (*reply.context, reply.written)
                if turn + 1 < len(TURNS):
                    following[number, turn + 1] = request(number, turn + 1)
            session.add(following)

    return write


def with_settings(engine: Any, **settings: Any) -> Callable[[], Way]:
    """Our engine and driver with these attributes."""

    def make() -> Way:
        way = by_engine(engine)

        def write(work: list[Transcript]) -> None:
            before = {name: getattr(engine, name) for name in settings}
            for name, value in settings.items():
                setattr(engine, name, value)
            try:
                way(work)
            finally:
                for name, value in before.items():
                    setattr(engine, name, value)

        return write

    return make


def variants(engine: Any) -> dict[str, Callable[[], Way]]:
    """By name."""
    llm = engine.llm
    flat = {"logprobs": 0, "flat_logprobs": True, "detokenize": False}
    return {
        "alone": lambda: by_vllm(llm),
        "alone, by turn": lambda: by_vllm_batches(llm),
        "alone + log-probs": lambda: by_vllm(llm, logprobs=0),
        "alone + stops": lambda: by_vllm(llm, **_STOPS),
        "alone + seeds": lambda: by_vllm(llm, seeded=True),
        "alone + log-probs + stops": lambda: by_vllm(llm, logprobs=0, **_STOPS),
        "alone + all": lambda: by_vllm(llm, seeded=True, logprobs=0, **_STOPS),
        "alone, text off": lambda: by_vllm(llm, detokenize=False),
        "alone, text off + flat log-probs": lambda: by_vllm(llm, **flat),
        "alone, text off + flat log-probs + seeds": lambda: by_vllm(llm, seeded=True, **flat),
        "session + all": lambda: by_session(engine),
        "engine, no seeds": with_settings(engine, seeded=False),
        "engine, join 1": with_settings(engine, join_share=1),
        "engine, join 16": with_settings(engine, join_share=16),
        "engine, join 1024": with_settings(engine, join_share=1024),
        "engine + all": with_settings(engine),
    }


def describe(engine: Any) -> str:
    """What of vLLM decides about its speed."""
    import vllm

    config = engine.llm.llm_engine.vllm_config
    runner = "second" if getattr(config, "use_v2_model_runner", False) else "first"
    scheduling = "asynchronous" if config.scheduler_config.async_scheduling else "synchronous"
    reads = "read from the scheduler" if engine.sampled_tokens is not None else "read from vLLM's outputs"
    budget = config.scheduler_config.max_num_batched_tokens
    return (
        f"vLLM {vllm.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}; {runner} model runner, "
        f"{scheduling} scheduling, at most {budget:,} tokens per step; tokens are {reads}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="random-1.5b")
    parser.add_argument("--tokenizer", help="a folder or hub name, for a random model")
    parser.add_argument("--transcripts", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", action="append", help="the name of a variant; may be given several times")
    parser.add_argument("--profile", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engine = vllm_engine(chosen.model, chosen.transcripts, Path(folder), chosen.tokenizer)
        compare(engine, chosen)
        let_go(engine)


def compare(engine: Any, chosen: argparse.Namespace) -> None:
    """Measure all variants in turn, and print them."""
    print(describe(engine), flush=True)
    vocabulary = vocabulary_of(engine)
    work, few = transcripts(vocabulary, chosen.transcripts), transcripts(vocabulary, min(32, chosen.transcripts))
    made = variants(engine)
    if unknown := set(chosen.only or ()) - set(made):
        raise SystemExit(f"unknown variants {', '.join(sorted(unknown))}; known: {'; '.join(made)}")
    ways = {name: make() for name, make in made.items() if name in (chosen.only or made)}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way(few)
    for number in range(chosen.rounds):
        for name, way in ways.items():
            found[name].append(rate(way, work))
            print(f"round {number + 1}  {name:44}{found[name][-1]:>10,.0f}", flush=True)
    print(f"\n{chosen.model}, {chosen.transcripts:,} transcripts{'tokens/s':>30}{'share':>10}")
    base = float(np.median(found["alone"])) if "alone" in found else None
    for name, rates in found.items():
        median = float(np.median(rates))
        share = f"{median / base:.0%}" if base else "-"
        print(f"{name:44}{median:>12,.0f}{share:>10}")
    if chosen.profile:
        profile = cProfile.Profile()
        profile.runcall(list(ways.values())[-1], work)
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)


if __name__ == "__main__":
    main()
