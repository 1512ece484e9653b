"""A short training of a tiny process reward model."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepladder import Pair
from stepladder.agents import make_agent
from stepladder.core.trace import Action, ActionKind, Author, Segment, Side
from stepladder.driver import Outcome
from stepladder.engines.transformers.tokenization import Encoding
from stepladder.explore.episode import EpisodeConfig
from stepladder.judges.prm.prm_inputs import PRMInputBuilder
from stepladder.models.tiny import tiny_tokenizer
from stepladder.train.loop.context import TrainingContext
from stepladder.train.prm.config import PRMConfig
from stepladder.train.prm.prm_data import from_pairs
from stepladder.train.prm.trainer import PRMReport, train_prm

AGENT = "prorag-brief"
TOKENIZER = tiny_tokenizer()
END = TOKENIZER.eos_token_id


def prompt(question: str) -> Segment:
    return Segment(Author.PROMPT, f"Question: {question}?\n")


def said(text: str) -> Segment:
    return Segment(Author.POLICY, text)


def side(text: str, value: float | None = None) -> Side:
    return Side(said(text), Action(ActionKind.ANSWER, text), value)


def pair(question: str, better: str = "yes", worse: str = "no", **changes: Any) -> Pair:
    chosen, rejected = side(better, changes.pop("high", None)), side(worse, changes.pop("low", None))
    made = Pair(question, AGENT, (prompt(question),), chosen, rejected, 0, "hand")
    return replace(made, **changes)


def builder(window: int = 4096, **options: bool) -> PRMInputBuilder:
    return PRMInputBuilder(Encoding(TOKENIZER), window, END, **options)


#: Four states, five pairs, of unequal length; two questions are held out.
PAIRS = [
    pair("who"), pair("who", "oh yes", "oh no"), pair("where was it"), pair("when"), pair("how many were they in all"),
]  # fmt: skip


HELD_OUT = [pair("why"), pair("whence", "well yes", "well no")]
#: Two updates an epoch, sixteen in all.
SETTINGS = PRMConfig(num_train_epochs=8, batch_size=2, learning_rate=5e-3)


def train(
    folder: Path,
    settings: PRMConfig = SETTINGS,
    model: str | Path = "tiny",
    watch: Callable[[Outcome[Any]], None] | None = None,
    device: str = "cpu",
    pairs: Sequence[Pair] = PAIRS,
) -> PRMReport:
    def examples(builder: PRMInputBuilder) -> Any:
        return from_pairs(pairs, builder), from_pairs(HELD_OUT, builder), {}

    context = TrainingContext(make_agent(AGENT), (), (), None, EpisodeConfig(), folder, device=device, watch=watch)
    return train_prm(model, context, settings, examples)
