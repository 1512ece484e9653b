"""A short GRPO run of the tiny model."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from stepladder.agents.base import Agent, environment_segment, malformed, prompt_segment
from stepladder.core.requests import Sampling
from stepladder.core.trace import Action, ActionKind, Question, Segment, Trajectory
from stepladder.engines.transformers.tokenization import Encoding
from stepladder.explore.episode import EpisodeConfig
from stepladder.models.tiny import tiny_tokenizer
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.trainer import train_grpo
from stepladder.train.loop.context import TrainingContext
from stepladder.train.loop.training_loop import TrainingReport
from tests.support.samples import QUESTION, WordRetriever


class Loose(Agent):
    """Makes a search, an answer or nothing of whatever bytes there are, so that random weights play whole episodes."""

    name: ClassVar[str] = "loose"
    summary: ClassVar[str] = "takes anything"
    kinds: ClassVar[frozenset[ActionKind]] = frozenset({ActionKind.QUERY, ActionKind.ANSWER})
    stops: ClassVar[tuple[str, ...]] = ("never",)

    def render(self, trajectory: Trajectory) -> tuple[Segment, ...]:
        if not trajectory.steps:
            return (prompt_segment(f"{trajectory.question.text}: "),)
        return (*trajectory.context(), environment_segment(f"[{trajectory.steps[-1].passages[0].text[:12]}]"))

    def parse(self, text: str, trajectory: Trajectory) -> Action:
        decision = sum(text.encode()) % 5
        kind = ActionKind.QUERY if decision < 2 else ActionKind.ANSWER
        return malformed(text, "so it is") if decision == 4 else Action(kind, text)

    def write(self, action: Action, trajectory: Trajectory) -> str:
        return action.content


class Taste:
    """In place of a reward model: likes some words, and always the same."""

    def __init__(self, score: Callable[[str], float] = lambda text: random.Random(text).uniform(-2, 2)) -> None:
        self.score_of = score
        vocabulary = Encoding(tiny_tokenizer()).vocabulary
        self.builder = SimpleNamespace(encoding=SimpleNamespace(vocabulary=vocabulary), retokenize=False)

    def score_logits(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...]]:
        return [tuple(self.score_of(step.written.text) for step in each.steps) for each in trajectories]


QUESTIONS = [replace(QUESTION, id=f"q{number}", text=f"Where {number}?") for number in range(4)]
EPISODE = EpisodeConfig(max_steps=3, k=1, sampling=Sampling(max_tokens=5))
ROOMY = replace(EPISODE, sampling=Sampling(max_tokens=80))
#: Two questions an update, six updates, a checkpoint at every second.
SETTINGS = GRPOConfig(
    questions=4,
    num_generations=4,
    batch_size=8,
    num_train_epochs=3,
    learning_rate=1e-3,
    warmup_ratio=0,
    eval_steps=2,
    dev_questions=1,
    beta=0.05,
)


def train(
    folder: Path,
    settings: GRPOConfig = SETTINGS,
    watch: Any = lambda _: None,
    questions: Sequence[Question] = QUESTIONS,
    agent: Agent | None = None,
    reward: Any = None,
    device: str = "cpu",
) -> TrainingReport:
    episode = EPISODE if agent is None else ROOMY
    context = TrainingContext(
        agent or Loose(), questions, QUESTIONS[:1], WordRetriever(), episode, folder, device=device, watch=watch
    )
    return train_grpo("tiny", context, settings, reward or Taste())
