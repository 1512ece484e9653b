"""Demonstrations by the name of their source, made once and stored in the output folder.

    gold        episodes of the oracle, which replays the gold decomposition: exact, no generation needed
    mined       the same with weak decompositions from the corpus (`weak_decomposition.py`): needs only answers
    teacher     samples of a stronger model behind an OpenAI-compatible server; its responses are cached on disk
    bootstrap   samples of the model itself with a few-shot prompt: needs only answers
    trees       the best branch of each search tree of an earlier stage

In: settings, questions, an engine with the model to train. Out: `Demonstrations`, stored in `transcripts.jsonl`, and
what was dropped in `dropped.json`. If both files exist, they are read.
"""

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.core.io.records import read_records, write_records
from stepladder.core.trace import Question, Trajectory
from stepladder.engines.base import Engine
from stepladder.engines.openai import OpenAIEngine
from stepladder.judges.llm.spend.response_cache import CachedEngine
from stepladder.train.loop.context import TrainingContext, Trees, iter_trees
from stepladder.train.sft.config import SFTConfig
from stepladder.train.sft.demonstrations import (
    Demonstrations,
    gold_demonstrations,
    sampled_demonstrations,
    tree_demonstrations,
)

_TRANSCRIPTS, _DROPPED, _RESPONSES = "transcripts.jsonl", "dropped.json", "teacher.jsonl"

_ADVICE = {
    "gold": "Use questions with decompositions and their own index, or source mined, bootstrap or teacher.",
    "mined": "The index has no passages with the answers that the questions lead to: is it the right one?",
    "teacher": "Try another teacher_model, a higher num_generations, or a lower min_f1.",
    "trees": "No best branch ends with a correct answer: use a better policy or judge, more questions, a lower min_f1.",
    "bootstrap": "The model answers none correctly: try a higher num_generations, a lower min_f1, or another source.",
}


def demonstrations_exist(folder: Path) -> bool:
    """Whether the demonstrations are stored in a folder."""
    return (folder / _TRANSCRIPTS).exists() and (folder / _DROPPED).exists()


def load_or_make(
    config: SFTConfig,
    context: TrainingContext,
    engine: Engine,
    questions: Sequence[Question],
    trees: Trees | None = None,
) -> Demonstrations:
    """Demonstrations of these questions, from the output folder or else from their source.

    `engine`: the model to train. `trees`: for the source `trees`. Weak decompositions must already be there.
    """
    path, counts = context.folder / _TRANSCRIPTS, context.folder / _DROPPED
    if demonstrations_exist(context.folder):
        dropped = json.loads(counts.read_text(encoding="utf-8"))
        return Demonstrations(tuple(read_records(path, Trajectory)), dropped)
    made = _make(config, context, engine, questions, trees)
    if not made.kept:
        why = ", ".join(f"{reason} {count:,}" for reason, count in sorted(made.dropped.items())) or "no questions"
        failure = f" The first failure: {made.first_failure}." if made.first_failure else ""
        raise StepladderError(
            f"source '{config.source}' gave no demonstrations, of {made.requested:,} requested (dropped: {why})."
            f"{failure} {_ADVICE[config.source]}"
        )
    with atomic_file(counts) as file:
        json.dump(made.dropped, file, indent=2)
    write_records(path, made.kept)  # last: if it exists, both are complete
    return made


def _make(
    config: SFTConfig, context: TrainingContext, engine: Engine, questions: Sequence[Question], trees: Trees | None
) -> Demonstrations:
    if config.source == "trees":
        if trees is None:
            raise StepladderError("source 'trees' needs search trees: run explore or rank first")
        return tree_demonstrations(iter_trees(trees), config.min_f1)
    if config.source in ("gold", "mined"):
        return gold_demonstrations(
            context.agent, questions, context.retriever, context.episode, seed=context.seed, watch=context.watch
        )
    if config.source == "bootstrap":
        return sampled_demonstrations(engine, context, config, questions)
    assert config.teacher_model is not None  # checked by SFTConfig
    teacher = OpenAIEngine(config.teacher_model, config.teacher_url)
    name = f"{config.teacher_model} at {config.teacher_url}"
    with closing(CachedEngine(teacher, context.folder / _RESPONSES, name)) as cached:
        return sampled_demonstrations(cached, context, config, questions)
