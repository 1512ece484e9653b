"""Questions and corpora: Atlas, a generated fictional world, and question sets on disk.

In: a name: `atlas`, `atlas-large`, ...; the path of a question file or of a folder of them; a published set such as
`hotpotqa`, which is searched on this machine (`folders.py`); or several of these joined by `+`. Out: a `DataSet` with
questions by split, and passages if the data has them.
"""

from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from stepladder.core.errors import StepladderError, nearest, unknown_name
from stepladder.core.io.files import expand_path
from stepladder.data.atlas import SIZES, generate_atlas, relations_by_question
from stepladder.data.dataset import DataSet, join
from stepladder.data.folders import PUBLISHED, SPLITS, find_published, missing, open_files, open_folder, source_files

__all__ = [
    "DATA_SETS",
    "PUBLISHED",
    "SPLITS",
    "DataSet",
    "absolute_name",
    "data_files",
    "is_dataset_name",
    "load_dataset",
    "open_files",
    "questions_with_relations",
]

#: Built-in data sets by name. `atlas` is `atlas-small`.
DATA_SETS = ("atlas", *(f"atlas-{size}" for size in SIZES))


def load_dataset(name: str, *, seed: int = 0) -> DataSet:
    """A data set by name. A question file has the single split `all`; `seed` is the seed of the Atlas world."""
    parts = _parts(name)
    if len(parts) == 1:
        return _open(parts[0], seed)
    opened = {part: _open(part, seed) for part in parts}
    # The short name is the prefix of a set's ids in the joined set.
    named = {part if part in DATA_SETS else Path(part).name.split(".")[0]: data for part, data in opened.items()}
    if len(named) < len(parts):
        raise StepladderError(f"{name}: two of the sets have the same name, so their ids would collide; rename one")
    return join("+".join(named), named)


def questions_with_relations(name: str | None, relations: Collection[str], *, seed: int = 0) -> frozenset[str]:
    """The ids of the questions of Atlas that use one of these relations."""
    if name not in DATA_SETS:
        raise StepladderError(f"relations are known of Atlas only, and the data is {name or 'in files'}")
    found = relations_by_question(_size(name), seed)
    return frozenset(question for question, used in found.items() if not used.isdisjoint(relations))


def _size(name: str) -> str:
    """The size of an Atlas data set."""
    return name.partition("-")[2] or "small"


def is_dataset_name(name: str) -> bool:
    """Whether a name refers to data sets rather than to a file or folder."""
    parts = _parts(name)
    known = (*DATA_SETS, *PUBLISHED)
    if len(parts) > 1:
        return all(part in known or expand_path(part).exists() for part in parts)
    return name in known and not expand_path(name).exists()


def absolute_name(name: str) -> str:
    """The name with absolute paths, in which published sets are replaced by their folders."""
    return "+".join(part if part in DATA_SETS else str(_find(part) or part) for part in _parts(name))


def data_files(name: str) -> tuple[Path, ...]:
    """The files from which a data set is read; raises if they do not exist."""
    return tuple(path for part in _parts(name) if part not in DATA_SETS for path in source_files(_find_required(part)))


def _parts(name: str) -> list[str]:
    """The data sets joined by a name. An existing path may contain a plus sign."""
    return [name] if expand_path(name).exists() else name.split("+")


def _open(name: str, seed: int) -> DataSet:
    if name in DATA_SETS:
        return _generated(name, seed)
    path = _find_required(name)
    return open_files(path.name, {"all": path}) if path.is_file() else open_folder(path)


@lru_cache(maxsize=1)
def _generated(name: str, seed: int) -> DataSet:
    """A world of Atlas. The newest one is kept: to generate it again takes a second or more."""
    atlas = generate_atlas(_size(name), seed)
    return DataSet(name, atlas.questions, atlas.passages)


def _find(name: str) -> Path | None:
    """The file or folder of a data set."""
    path = expand_path(name)
    if name and path.exists():
        return path.absolute()
    return find_published(name) if name in PUBLISHED else None


def _find_required(name: str) -> Path:
    if (found := _find(name)) is not None:
        return found
    if name in PUBLISHED:
        raise missing(name)
    path = expand_path(name)
    if path.suffix in (".gz", ".jsonl", ".json", ".csv", ".tsv") or "/" in name:
        beside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        raise StepladderError(f"question file {path} does not exist.{nearest(path.name, beside)}")
    raise unknown_name("data set", name, (*DATA_SETS, *PUBLISHED))
