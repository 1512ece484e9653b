"""Several episodes per question, sampled once and stored in a folder.

In: an engine, an agent, questions. Out: trajectories, those of a question in a row. The folder has one file per chunk
of questions, each written atomically; after a kill, existing chunks are not sampled again.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from stepladder.agents.base import Agent
from stepladder.core.errors import StepladderError
from stepladder.core.io.records import read_records, write_records
from stepladder.core.requests import Algorithm
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question, Trajectory, Usage
from stepladder.driver import Driver, Outcome, OutcomeCallback
from stepladder.driver.progress import Progress
from stepladder.engines.base import Engine
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.train.loop.context import TrainingContext

#: The folder of `policy_episodes`.
EPISODES = "episodes"
#: Questions per chunk: enough to fill batches, few enough to lose little.
_CHUNK = 128


def sample_episodes(
    folder: Path,
    driver: Driver,
    agent: Agent,
    questions: Sequence[Question],
    config: EpisodeConfig,
    *,
    num_generations: int,
    seed: int,
    watch: OutcomeCallback | None = None,
    chunks: range | None = None,
) -> list[Trajectory]:
    """The trajectories, from the folder where they exist; failed ones are missing. `chunks`: of these only."""
    folder.mkdir(parents=True, exist_ok=True)
    found: list[Trajectory] = []
    for number in range(-(-len(questions) // _CHUNK)) if chunks is None else chunks:
        start = number * _CHUNK
        path = _chunk_path(folder, number)
        if not path.exists():
            jobs = episode_jobs(agent, questions[start : start + _CHUNK], config, num_generations, seed)
            outcomes = expect_some(driver.run(jobs, watch))
            write_records(path, [outcome.value for outcome in outcomes if outcome.value is not None])
        found += read_records(path, Trajectory)
    return found


def episodes_exist(folder: Path, questions: int) -> bool:
    """Whether all chunks of this many questions are in a folder, so that no engine is needed."""
    return all(_chunk_path(folder, number).exists() for number in range(-(-questions // _CHUNK)))


def _chunk_path(folder: Path, number: int) -> Path:
    return folder / f"{number:05}.jsonl"


def episode_jobs(
    agent: Agent, questions: Sequence[Question], config: EpisodeConfig, num_generations: int, seed: int
) -> list[Callable[[], Algorithm[Trajectory]]]:
    """Jobs for the driver: this many episodes of every question, each with its own seed."""
    return [
        partial(episode, agent, question, config, seed_of(seed, question.id, sample))
        for question in questions
        for sample in range(num_generations)
    ]


def expect_some(outcomes: Sequence[Outcome[Any]]) -> Sequence[Outcome[Any]]:
    """The outcomes; an error if all of them failed."""
    reasons = [outcome.failure.reason for outcome in outcomes if outcome.failure is not None]
    if reasons and len(reasons) == len(outcomes):
        raise StepladderError(f"every sampled episode failed; the first: {reasons[0]}")
    return outcomes


def token_counts(episodes: Iterable[Trajectory]) -> dict[str, int]:
    """Tokens that the engine read and wrote for these episodes, for the summary of a stage."""
    usage = sum((step.usage for each in episodes for step in each.steps), Usage())
    return {"tokens_sampled": usage.written, "tokens_read": usage.read}


def policy_episodes(
    context: TrainingContext,
    open_engine: Callable[[], AbstractContextManager[Engine | Driver]],
    questions: Sequence[Question],
    *,
    num_generations: int,
    temperature: float,
    label: str,
    top_p: float = 1.0,
    folder: str = EPISODES,
    distributed: bool = False,
) -> list[Trajectory]:
    """Episodes of a policy, stored in a folder; failed ones are missing. Of several processes the main one samples, or
    with `distributed` every process its share.

    `open_engine` is called only if there is something to sample; it may open a driver, such as one with workers.
    """
    from stepladder.models.devices import pick_device  # imports torch
    from stepladder.train.launch.processes import Processes

    path = context.folder / folder
    sampling = replace(context.episode.sampling, temperature=temperature, top_p=top_p)
    processes = Processes(pick_device(context.device))
    rank, count = (processes.process_index, processes.num_processes) if distributed else (0, 1)
    with ExitStack() as stack:
        if not distributed:
            stack.enter_context(processes.main_first())
        exist = episodes_exist(path, len(questions))
        engine = None if exist else stack.enter_context(open_engine())
        watch = context.watch
        if watch is None and not exist:
            watch = stack.enter_context(Progress(label, len(questions) * num_generations))
        own = range(rank, -(-len(questions) // _CHUNK), count)
        play = partial(
            sample_episodes,
            path,
            engine if isinstance(engine, Driver) else Driver(engine, context.retriever),
            context.agent,
            questions,
            replace(context.episode, sampling=sampling),
            num_generations=num_generations,
            seed=context.seed,
            watch=watch,
        )
        if count > 1:
            play(chunks=own)
            processes.wait()
        return play()
