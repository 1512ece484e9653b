"""Demonstrations by the name of their source, made once and kept in a folder.

In: settings, questions, an engine around the model to train. Out: `Demonstrations`; `transcripts.jsonl` holds them and
`dropped.json` what was dropped. When both are there, they are read instead of made.
"""

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from stepladder.agents.base import Agent
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.core.io.records import read_records, write_records
from stepladder.core.trace import Question, Trajectory
from stepladder.driver import OutcomeCallback
from stepladder.engines.base import Engine
from stepladder.engines.openai import OpenAIEngine
from stepladder.explore.episode import EpisodeConfig
from stepladder.explore.tree_store import read_trees
from stepladder.judges.llm.spend.response_cache import CachedEngine
from stepladder.retrieval.base import Retriever
from stepladder.train.sft.config import SFTConfig
from stepladder.train.sft.demonstrations import (
    Demonstrations,
    gold_demonstrations,
    sampled_demonstrations,
    tree_demonstrations,
)

_TRANSCRIPTS, _DROPPED, _REPLIES = "transcripts.jsonl", "dropped.json", "teacher.jsonl"

_ADVICE = {
    "gold": "Give questions with decompositions and the index they belong to, or say source mined, bootstrap, teacher.",
    "mined": "The index has no passages with the answers in them that the questions lead to: is it the right one?",
    "teacher": "Try another teacher_model, more samples, or a lower min_f1.",
    "trees": "No best branch ends with a right answer: take a better policy or judge, more questions, a lower min_f1.",
    "bootstrap": "The model cannot answer any yet: try more samples, a lower min_f1, or source gold or teacher.",
}


def are_made(folder: Path) -> bool:
    """Whether the transcripts are there."""
    return (folder / _TRANSCRIPTS).exists() and (folder / _DROPPED).exists()


def load_or_make(
    folder: Path,
    settings: SFTConfig,
    engine: Engine,
    agent: Agent,
    questions: Sequence[Question],
    retriever: Retriever | None,
    episode: EpisodeConfig,
    *,
    trees: Path | None = None,
    seed: int,
    watch: OutcomeCallback | None = None,
) -> Demonstrations:
    """Demonstrations of these questions, from the folder or else from their source. Those to be mined have been.

    `engine`: the model to be trained. `trees`: a file of them, for the source `trees`.
    """
    path, counts = folder / _TRANSCRIPTS, folder / _DROPPED
    if are_made(folder):
        dropped = json.loads(counts.read_text(encoding="utf-8"))
        return Demonstrations(tuple(read_records(path, Trajectory)), dropped)
    if settings.source == "trees":
        if trees is None:
            raise StepladderError("source 'trees' learns from trees, and there are none: explore or rank first")
        made = tree_demonstrations(read_trees(trees), settings.min_f1)
    else:
        made = _make(folder, settings, engine, agent, questions, retriever, episode, seed, watch)
    if not made.kept:
        why = ", ".join(f"{reason} {count:,}" for reason, count in sorted(made.dropped.items())) or "no questions"
        failure = f" The first failure: {made.first_failure}." if made.first_failure else ""
        raise StepladderError(
            f"source '{settings.source}' gave no transcript to train on, of {made.asked:,} asked (dropped: {why})."
            f"{failure} {_ADVICE[settings.source]}"
        )
    with atomic_file(counts) as file:
        json.dump(made.dropped, file, indent=2)
    write_records(path, made.kept)  # last: where it is, all is there
    return made


def _make(
    folder: Path,
    settings: SFTConfig,
    engine: Engine,
    agent: Agent,
    questions: Sequence[Question],
    retriever: Retriever | None,
    episode: EpisodeConfig,
    seed: int,
    watch: OutcomeCallback | None,
) -> Demonstrations:
    if settings.source in ("gold", "mined"):
        return gold_demonstrations(agent, questions, retriever, episode, seed=seed, watch=watch)

    def sampled(writer: Engine) -> Demonstrations:
        return sampled_demonstrations(
            writer,
            agent,
            questions,
            retriever,
            replace(episode, sampling=replace(episode.sampling, temperature=settings.temperature)),
            samples=settings.num_generations,
            min_f1=settings.min_f1,
            keep=settings.keep,
            seed=seed,
            watch=watch,
        )

    if settings.source == "bootstrap":
        return sampled(engine)
    assert settings.teacher_model is not None  # SFTConfig sees to it
    teacher = OpenAIEngine(settings.teacher_model, settings.teacher_url)
    name = f"{settings.teacher_model} at {settings.teacher_url}"
    with closing(CachedEngine(teacher, folder / _REPLIES, name)) as remembering:
        return sampled(remembering)
