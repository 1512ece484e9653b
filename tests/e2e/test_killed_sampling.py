"""Sampling that is killed goes on where it was."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stepladder.train.transcripts import sampled_episodes
from tests.support.sampled_answers import by_seed, sample

#: Without torch, so that it starts in a moment; the same as `sample` until it is killed.
KILLED = """
import os, signal
from pathlib import Path
from stepladder.agents import make_agent
from stepladder.driver import Driver
from stepladder.engines.scripted import ScriptedEngine
from stepladder.explore.episode import EpisodeConfig
from stepladder.core.requests import Sampling
from stepladder.core.trace import Question
from stepladder.train.transcripts import sampled_episodes as sampling

sampling._CHUNK = 2

def say(request):
    if "Which 2?" in request.context[0].text:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"<answer>{{request.seed % 100}}</answer>"

asked = [Question(f"q{{number}}", f"Which {{number}}?", ("Velm",)) for number in range(5)]
settings = EpisodeConfig(sampling=Sampling(temperature=0.8))
agent, driver = make_agent("direct"), Driver(ScriptedEngine(say))
sampling.sample_episodes(Path({folder!r}), driver, agent, asked, settings, num_generations=3, seed=0)
"""


def test_after_a_kill_the_samples_are_those_of_an_undisturbed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled_episodes, "_CHUNK", 2)
    script = KILLED.format(folder=str(tmp_path / "cut"))
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert [path.name for path in (tmp_path / "cut").iterdir()] == ["00000.jsonl"]
    assert sample(tmp_path / "cut", by_seed) == sample(tmp_path / "whole", by_seed)
