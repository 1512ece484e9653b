"""Sampled episodes of five questions."""

from collections.abc import Callable
from pathlib import Path

from stepladder.agents import make_agent
from stepladder.core.requests import Generate, Sampling
from stepladder.core.trace import Question, Trajectory
from stepladder.driver import Driver
from stepladder.engines.scripted import ScriptedEngine
from stepladder.explore.episode import EpisodeConfig
from stepladder.train.transcripts.sampled_episodes import sample_episodes

ASKED = [Question(f"q{number}", f"Which {number}?", ("Velm",)) for number in range(5)]


def sample(folder: Path, say: Callable[[Generate], str], count: int = 5) -> list[Trajectory]:
    episodes = EpisodeConfig(sampling=Sampling(temperature=0.8))
    driver = Driver(ScriptedEngine(say))
    return sample_episodes(folder, driver, make_agent("direct"), ASKED[:count], episodes, num_generations=3, seed=0)


def by_seed(request: Generate) -> str:
    return f"<answer>{request.seed % 100}</answer>"
