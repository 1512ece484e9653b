"""A short RFT run of the tiny model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from stepladder.core.trace import Action, ActionKind, Trajectory
from stepladder.driver import Outcome
from stepladder.train.loop.context import TrainingContext
from stepladder.train.loop.training_loop import TrainingReport
from stepladder.train.rft.config import RFTConfig
from stepladder.train.rft.trainer import train_rft
from stepladder.train.transcripts import sampled_episodes
from tests.support.grpo_training import EPISODE, QUESTIONS, Loose, Taste
from tests.support.samples import WordRetriever


class Lucky(Loose):
    """Its answers are right."""

    name: ClassVar[str] = "lucky"

    def parse(self, text: str, trajectory: Trajectory) -> Action:
        action = super().parse(text, trajectory)
        right = trajectory.question.answers[0]
        return Action(action.kind, right) if action.kind is ActionKind.ANSWER else action


#: Two updates an epoch or more, of the transcripts without a step of bad taste.
SETTINGS = RFTConfig(
    questions=4, num_generations=4, batch_size=2, num_train_epochs=1, learning_rate=3e-3, dev_questions=1, threshold=-1
)


def train(
    folder: Path,
    settings: RFTConfig = SETTINGS,
    watch: Callable[[Outcome[Any]], None] = lambda _: None,
    device: str = "cpu",
) -> TrainingReport:
    context = TrainingContext(
        Lucky(), QUESTIONS, QUESTIONS[:1], WordRetriever(), EPISODE, folder, device=device, watch=watch
    )
    scorer: Any = Taste()
    with patch.object(sampled_episodes, "_CHUNK", 2):  # so that two processes share them
        return train_rft("tiny", context, settings, scorer)
