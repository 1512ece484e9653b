"""The stage `pairs-file`: imports preference pairs from a file, as if the stage `pairs` had made them.

In: a file of RAG-ProGuide (`.json`, `.jsonl`, optionally `.gz`), a file of pairs, or a folder written by the stage
`pairs`. Out: a folder like that of `pairs`, for `dpo` and `prm`. A folder with a `dev.jsonl` keeps its split; anything
else is split by question. Published records name no agent: the recipe's agent is assumed.
"""

from collections.abc import Iterable, Iterator
from functools import partial

from pydantic import Field

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.core.io.records import read_records
from stepladder.core.trace import Pair
from stepladder.data.data_config import AbsolutePath
from stepladder.pipeline.pair_folder import DEV_PAIRS, PAIR_PERSISTENT_FILES, TRAIN_PAIRS, write_pairs
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import PAIRS, FinishedStage, StageResult, StageSpec, Task, never
from stepladder.preferences.export.rag_proguide import read_pair_file
from stepladder.preferences.pairs import dev_questions


class PairsFileConfig(Config):
    """The file of pairs, and the share that is held out."""

    path: AbsolutePath
    #: Share of the questions whose pairs are held out, unless the folder has a dev split.
    dev_share: float = Field(default=0.1, ge=0, lt=1)


def run_pairs_file(settings: PairsFileConfig, context: RunContext, task: Task) -> StageResult:
    """Read, split and write the pairs."""
    splits = _splits(settings, context.agent.name)
    return write_pairs(task, ((name, pair) for name, pairs in splits.items() for pair in pairs), settings.path)


def _splits(settings: PairsFileConfig, agent: str) -> dict[str, Iterable[Pair]]:
    """The pairs by output file, read lazily because there may be many."""
    path = settings.path
    if path.is_dir() and (path / DEV_PAIRS).exists():
        return {name: read_records(path / name, Pair) for name in (TRAIN_PAIRS, DEV_PAIRS)}
    read = partial(read_pair_file, path / TRAIN_PAIRS if path.is_dir() else path, agent)
    held_out = dev_questions((pair.question_id for pair in read()), settings.dev_share)

    def those(held: bool) -> Iterator[Pair]:
        return (pair for pair in read() if (pair.question_id in held_out) is held)

    return {TRAIN_PAIRS: those(False), DEV_PAIRS: those(True)}


def check_pairs_file(settings: PairsFileConfig, context: RunContext) -> None:  # noqa: ARG001
    """The file or folder must exist."""
    path = settings.path
    expected = f"expected a file of RAG-ProGuide, a file of pairs, or a folder with {TRAIN_PAIRS}"
    if not path.exists():
        raise StepladderError(f"pairs: {path} does not exist; {expected}")
    if path.is_dir() and not (path / TRAIN_PAIRS).is_file():
        raise StepladderError(f"pairs: the folder {path} has no {TRAIN_PAIRS}; {expected}")


def questions_used(stage: FinishedStage) -> set[str]:
    """The questions of the pairs."""
    files = (stage.outputs[PAIRS] / name for name in (TRAIN_PAIRS, DEV_PAIRS))
    return {pair.question_id for file in files for pair in read_records(file, Pair)}


STAGE = StageSpec(
    PairsFileConfig,
    run_pairs_file,
    (),
    (PAIRS,),
    check=check_pairs_file,
    external_files=("path",),
    persistent_files=PAIR_PERSISTENT_FILES,
    questions=questions_used,
    generates=never,
)
