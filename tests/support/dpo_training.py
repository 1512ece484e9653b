"""A short DPO run of the tiny model."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepladder.agents import make_agent
from stepladder.core.requests import Sampling
from stepladder.core.trace import Action, ActionKind, Author, Pair, Segment, Side
from stepladder.driver import Outcome
from stepladder.engines.transformers.tokenization import Encoding
from stepladder.explore.episode import EpisodeConfig
from stepladder.models.tiny import tiny_tokenizer
from stepladder.train.dpo.config import DPOConfig
from stepladder.train.dpo.trainer import train_dpo
from stepladder.train.loop.context import TrainingContext
from stepladder.train.loop.training_loop import TrainingReport
from stepladder.train.sft.demonstrations import gold_demonstrations
from tests.support.samples import QUESTION, WordRetriever

AGENT = make_agent("prorag-brief")
EPISODE = EpisodeConfig(max_steps=6, k=1, sampling=Sampling(max_tokens=8))
QUESTIONS = [replace(QUESTION, id=f"q{number}") for number in range(2)]
ENCODING = Encoding(tiny_tokenizer())


def pairs_of(*questions: Any) -> list[Pair]:
    """Every step of a gold transcript, preferred to giving up: five states, each with more history than the last."""
    made = []
    for trajectory in gold_demonstrations(AGENT, questions, WordRetriever(), EPISODE, seed=0).kept:
        for number, step in enumerate(trajectory.steps):
            worse = Action(ActionKind.ANSWER, "nobody", "I give up." * (number % 2))
            words = Segment(Author.POLICY, AGENT.write(worse, replace(trajectory, steps=trajectory.steps[:number])))
            context = tuple(ENCODING.encode(segment) for segment in trajectory.consumed(number))
            sides = Side(ENCODING.encode(step.written), step.action), Side(ENCODING.encode(words), worse)
            made.append(Pair(trajectory.question.id, AGENT.name, context, *sides, number, "gold"))
    return made


PAIRS = pairs_of(QUESTIONS[0])
HELD_OUT = pairs_of(QUESTIONS[1])[:2]
#: Three updates an epoch, six in all; the last of an epoch is not full.
SETTINGS = DPOConfig(num_train_epochs=2, batch_size=2, learning_rate=1e-4, warmup_ratio=0, dev_questions=1)


def train(
    folder: Path,
    settings: DPOConfig = SETTINGS,
    watch: Callable[[Outcome[Any]], None] = lambda _: None,
    pairs: Iterable[Pair] = PAIRS,
    held_out: Iterable[Pair] = HELD_OUT,
    device: str = "cpu",
) -> TrainingReport:
    context = TrainingContext(
        AGENT, QUESTIONS, QUESTIONS[:1], WordRetriever(), EPISODE, folder, device=device, watch=watch
    )
    return train_dpo("tiny", context, settings, pairs, held_out)
