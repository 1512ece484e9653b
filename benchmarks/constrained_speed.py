"""What constrained decoding costs: tokens per second with a grammar and without, in the same run, taking turns.

    python benchmarks/constrained_speed.py --model nano --rounds 3

Every row writes the same number of tokens both ways: the grammar is free text that hardly ever ends before its limit. A
mask is computed for every token, and the text is followed to count its tokens, as for the grammars of agents. The last
column is the time that a constrained token takes beyond a free one. Sampling is at temperature 1. On a CPU, one core
is used and its time is measured, so that other programs do not count.
"""

import argparse
import statistics
import time

import torch

from stepladder.core.grammars.grammar import Grammar, Text
from stepladder.core.requests import Generate, Generation, Sampling
from stepladder.core.trace import Author, Segment
from stepladder.engines.transformers.engine import TransformersEngine

#: A character that is rare in text.
RARE = "~"
GRAMMAR = Grammar((("<step>", Text(RARE), RARE),))


def requests(count: int, tokens: int, grammar: Grammar | None) -> list[Generate]:
    prompts = [f"Question: Who designed the tower of Orm, number {number}?\n" for number in range(count)]
    return [
        Generate((Segment(Author.PROMPT, text),), (), Sampling(1.0, 1.0, tokens), seed, grammar=grammar)
        for seed, text in enumerate(prompts)
    ]


def rate(engine: TransformersEngine, asked: list[Generate]) -> float:
    """Tokens per second."""
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    engine.reset_prefix_cache()
    started = clock()
    replies = engine.generate(asked)
    seconds = clock() - started
    return sum(len(reply.written.tokens) for reply in replies if isinstance(reply, Generation)) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = (1, 16, 64) if not torch.cuda.is_available() else (1, 64, 512)
    engine = TransformersEngine(options.model, max_batch=max(sizes))
    # The masks are made while there are end tokens. From here on, every row runs to its limit.
    assert engine.grammar_masks.vocabulary.tokens
    engine.end_tokens = frozenset()
    print(f"{options.model}, {engine.device}, {engine.dtype}, vocabulary of {engine.config.vocab_size:,}")
    print(f"{'rows':>6}{'free, tokens/s':>18}{'constrained, tokens/s':>24}{'share':>9}{'extra per token':>19}")
    for size in sizes:
        free, bound = requests(size, options.tokens, None), requests(size, options.tokens, GRAMMAR)
        rate(engine, bound)  # warm up
        rates = [(rate(engine, free), rate(engine, bound)) for _ in range(options.rounds)]
        without, with_grammar = (statistics.median(each) for each in zip(*rates))
        extra = 1e6 / with_grammar - 1e6 / without
        print(f"{size:>6}{without:>18,.0f}{with_grammar:>24,.0f}{with_grammar / without:>9.2f}{extra:>16,.0f} µs")


if __name__ == "__main__":
    main()
