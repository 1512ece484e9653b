"""Questions and corpora: the embedded fictional world, and the question sets of the field as they lie on disk.

In: a name. It is one of `atlas`, `atlas-large` ...; the path of a question file or of a folder of them; a published set
such as `hotpotqa`, which is looked for on this machine (`places.py`); or several of these joined by `+`. Out: a
`DataSet`: its questions by split, and its passages where they come with it.
"""

from pathlib import Path

from stepladder.core.errors import StepladderError, unknown_name
from stepladder.core.io.files import expand_path
from stepladder.data.atlas import SIZES, generate_atlas
from stepladder.data.dataset import DataSet
from stepladder.data.folders import SPLITS, open_files, open_folder, sources
from stepladder.data.joining import join
from stepladder.data.published import PUBLISHED, find, missing

__all__ = [
    "DATA_SETS",
    "PUBLISHED",
    "SPLITS",
    "DataSet",
    "absolute_name",
    "data_files",
    "is_dataset_name",
    "open_data",
    "open_files",
]

#: Data sets that come along, by name. `atlas` is `atlas-small`.
DATA_SETS = ("atlas", *(f"atlas-{size}" for size in SIZES))


def open_data(name: str, *, seed: int = 0) -> DataSet:
    """A data set by name. A question file has the one split `all`; `seed` is that of the Atlas world."""
    parts = _parts(name)
    if len(parts) == 1:
        return _open(parts[0], seed)
    opened = {part: _open(part, seed) for part in parts}
    named = {_short(part): data for part, data in opened.items()}
    if len(named) < len(parts):
        raise StepladderError(f"{name}: two of the sets have the same name, so their ids would be mixed up; rename one")
    return join("+".join(named), named)


def is_dataset_name(name: str) -> bool:
    """Whether a name is one of data sets, rather than of a file or a folder."""
    parts = _parts(name)
    known = (*DATA_SETS, *PUBLISHED)
    if len(parts) > 1:
        return all(part in known or expand_path(part).exists() for part in parts)
    return name in known and not expand_path(name).exists()


def absolute_name(name: str) -> str:
    """The name with the paths in it made absolute, and with published sets named by the folder they are found in."""
    return "+".join(part if part in DATA_SETS else str(_place(part) or part) for part in _parts(name))


def data_files(name: str) -> tuple[Path, ...]:
    """The files that a data set is read from; an error where it is not there."""
    return tuple(path for part in _parts(name) if part not in DATA_SETS for path in sources(_expected(part)))


def _parts(name: str) -> list[str]:
    """The sets that a name joins; a path may have a plus in it."""
    return [name] if expand_path(name).exists() else name.split("+")


def _open(name: str, seed: int) -> DataSet:
    if name in DATA_SETS:
        atlas = generate_atlas(name.partition("-")[2] or "small", seed)
        return DataSet(name, atlas.questions, atlas.passages)
    place = _expected(name)
    return open_files(place.name, {"all": place}) if place.is_file() else open_folder(place)


def _place(name: str) -> Path | None:
    """The file or folder that a name is found in."""
    path = expand_path(name)
    if name and path.exists():
        return path.absolute()
    return find(name) if name in PUBLISHED else None


def _expected(name: str) -> Path:
    if (place := _place(name)) is not None:
        return place
    if name in PUBLISHED:
        raise missing(name)
    path = expand_path(name)
    if path.suffix in (".gz", ".jsonl", ".json", ".csv", ".tsv") or "/" in name:
        raise StepladderError(f"question file {path} does not exist")
    raise unknown_name("data set", name, (*DATA_SETS, *PUBLISHED))


def _short(name: str) -> str:
    """What a set is called in the ids of a joined one."""
    return name if name in DATA_SETS else Path(name).name.split(".")[0]
