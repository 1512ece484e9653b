"""Many episodes of each question, sampled once and kept in a folder.

In: an engine, an agent, questions. Out: trajectories, some of a question in a row; `samples/` holds them in parts, each
written whole. When the process is killed, the parts that are there are not played again.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from stepladder.agents.base import Agent
from stepladder.core.errors import StepladderError
from stepladder.core.io.records import read_records, write_records
from stepladder.core.requests import Algorithm
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question, Trajectory
from stepladder.driver import Driver, Outcome, OutcomeCallback
from stepladder.explore.episode import EpisodeConfig, episode

#: Questions a part: enough to fill batches, few enough to lose little.
_A_PART = 128


def sample_episodes(
    folder: Path,
    driver: Driver,
    agent: Agent,
    questions: Sequence[Question],
    settings: EpisodeConfig,
    *,
    samples: int,
    seed: int,
    watch: OutcomeCallback | None = None,
) -> tuple[list[Trajectory], int]:
    """The trajectories, from the folder as far as they are there, and how many episodes failed."""
    folder.mkdir(parents=True, exist_ok=True)
    found: list[Trajectory] = []
    for number, start in enumerate(range(0, len(questions), _A_PART)):
        part = _part(folder, number)
        asked = questions[start : start + _A_PART]
        if not part.exists():
            outcomes = driver.run(_jobs(agent, asked, settings, samples, seed), watch)
            _expect_some(outcomes)
            write_records(part, [outcome.value for outcome in outcomes if outcome.value is not None])
        found += read_records(part, Trajectory)
    return found, len(questions) * samples - len(found)


def episodes_exist(folder: Path, questions: int) -> bool:
    """Whether all parts of so many questions are in a folder: nobody has to play."""
    return all(_part(folder, number).exists() for number in range(-(-questions // _A_PART)))


def _part(folder: Path, number: int) -> Path:
    return folder / f"{number:05}.jsonl"


def _jobs(
    agent: Agent, questions: Sequence[Question], settings: EpisodeConfig, samples: int, seed: int
) -> list[Callable[[], Algorithm[Trajectory]]]:
    def job(question: Question, sample: int) -> Callable[[], Algorithm[Trajectory]]:
        return lambda: episode(agent, question, settings, seed_of(seed, question.id, sample))

    return [job(question, sample) for question in questions for sample in range(samples)]


def _expect_some(outcomes: Sequence[Outcome[Trajectory]]) -> None:
    reasons = [outcome.failure.reason for outcome in outcomes if outcome.failure is not None]
    if reasons and len(reasons) == len(outcomes):
        raise StepladderError(f"every sampled episode failed; the first: {reasons[0]}")
