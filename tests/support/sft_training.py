"""A short SFT run of the tiny model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepladder.agents import make_agent
from stepladder.core.requests import Sampling
from stepladder.driver import Outcome
from stepladder.explore.episode import EpisodeConfig
from stepladder.train.loop.context import TrainingContext
from stepladder.train.loop.training_loop import TrainingReport
from stepladder.train.sft.config import SFTConfig
from stepladder.train.sft.trainer import train_sft
from tests.support.samples import QUESTION, WordRetriever

QUESTIONS = [replace(QUESTION, id=f"q{number}") for number in range(5)]
#: Three updates an epoch, six in all.
SETTINGS = SFTConfig(num_train_epochs=2, batch_size=2, learning_rate=3e-3, dev_questions=1)
EPISODE = EpisodeConfig(max_steps=6, k=1, sampling=Sampling(max_tokens=8))


def train(
    folder: Path,
    settings: SFTConfig = SETTINGS,
    watch: Callable[[Outcome[Any]], None] | None = None,
    model: str | Path = "tiny",
    device: str = "cpu",
    **changes: Any,
) -> TrainingReport:
    questions = changes.get("questions", QUESTIONS)
    context = TrainingContext(
        make_agent("prorag-brief"),
        questions,
        QUESTIONS[:1],
        WordRetriever(),
        EPISODE,
        folder,
        device=device,
        watch=watch,
    )
    return train_sft(model, context, settings)
