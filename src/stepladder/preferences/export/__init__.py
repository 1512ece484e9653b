"""Hand preference pairs to other programs: one folder an export, in a format that they already read.

In: pairs by split (`train`, `dev`), the name of what they come from. Out: a folder that appears whole or not at all:
the data, a card that says what it is and how to use it, and `export.json`, by which a later export knows it as its own:

    {"stepladder_export": 1, "format": "trl", "source": "nano", "pairs": {"train": 812}, "files": {"README.md": "9f.."}}

The same pairs give the same bytes. A folder that holds anything else, or that was edited since, is never replaced.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path

from stepladder.core.errors import unknown_name
from stepladder.core.io.files import atomic_folder
from stepladder.core.trace import Pair
from stepladder.preferences.export import llama_factory, rag_proguide, trl
from stepladder.preferences.export.base import ExportError, Format, ExportFiles
from stepladder.preferences.export.rag_proguide import read_rag_proguide

__all__ = ["EXPORTS", "SPLITS", "ExportError", "ExportResult", "Format", "export", "read_rag_proguide"]

EXPORTS: dict[str, Format] = {
    "rag-proguide": rag_proguide.FORMAT,
    "llama-factory": llama_factory.FORMAT,
    "trl": trl.FORMAT,
}
SPLITS = ("train", "dev")

_MANIFEST, _CARD = "export.json", "README.md"
_VERSION_KEY = "stepladder_export"


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What an export wrote."""

    folder: Path
    #: Pairs by split; a split without any is left out.
    pairs: dict[str, int]
    #: Rows by data file, paths inside the folder.
    rows: dict[str, int]
    #: Every file in the folder.
    files: tuple[str, ...]


def export(
    format: str, pairs: Mapping[str, Iterable[Pair]], folder: Path, *, source: str, model: str | None = None
) -> ExportResult:
    """Write pairs to a folder in one of the formats of `EXPORTS`.

    `pairs` are by split: `train` is needed, `dev` is optional; each is read once. `source` says in the card where they
    come from. `model` is the name of the model to train, for formats that hold a training configuration.
    """
    if format not in EXPORTS:
        raise unknown_name("export format", format, EXPORTS)
    counted = {split: _Counted(iter(each)) for split, each in _splits(pairs).items()}
    _check_free(folder)
    with atomic_folder(folder, what="export") as fresh:
        written = EXPORTS[format].write(fresh, counted, model)
        counts = {split: each.count for split, each in counted.items()}
        (fresh / _CARD).write_text(_card(format, written, counts, source), encoding="utf-8")
        hashes = _hashes(fresh)
        manifest = {_VERSION_KEY: 1, "format": format, "source": source, "pairs": counts, "files": hashes}
        (fresh / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return ExportResult(folder, counts, written.rows, (*hashes, _MANIFEST))


def _splits(pairs: Mapping[str, Iterable[Pair]]) -> dict[str, Iterable[Pair]]:
    """The splits that have pairs, in their order. Without pairs to train on there is nothing to export."""
    for name in pairs:
        if name not in SPLITS:
            raise unknown_name("split of pairs", name, SPLITS)
    kept: dict[str, Iterable[Pair]] = {}
    for name in SPLITS:
        rest = iter(pairs.get(name, ()))
        if (first := next(rest, None)) is not None:
            kept[name] = chain([first], rest)
    if "train" not in kept:
        found = "only dev pairs" if kept else "no pairs at all"
        raise ExportError(f"there is nothing to export: found {found}, expected at least one pair to train on")
    return kept


class _Counted:
    """Pairs, counted while they pass."""

    def __init__(self, pairs: Iterator[Pair]) -> None:
        self._pairs = pairs
        self.count = 0

    def __iter__(self) -> Iterator[Pair]:
        for pair in self._pairs:
            self.count += 1
            yield pair


def _card(format: str, written: ExportFiles, counts: dict[str, int], source: str) -> str:
    header = f"---\n{written.header}---\n\n" if written.header else ""
    held = ", ".join(f"{count:,} {split}" for split, count in counts.items())
    rows = "\n".join(f"| `{name}` | {count:,} |" for name, count in written.rows.items())
    return f"""{header}# Preference pairs for training a search agent

Pairs of steps that an agent took from one and the same state, of which one is preferred: {held}.
ExportResult by Stepladder from `{source}` as `{format}`.

| file | rows |
|---|---|
{rows}

{written.usage}"""


def _check_free(folder: Path) -> None:
    if Path.cwd().is_relative_to(folder.resolve()):
        raise ExportError(f"{folder} is where you are; a folder cannot be replaced from inside")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        _, known = manifest[_VERSION_KEY], manifest["files"]
        # What is new goes by its name alone: it may be gigabytes of trained models.
        added = [name for name in _names(folder) if name not in known and name != _MANIFEST]
        strange = added or [name for name, digest in _hashes(folder).items() if known.get(name, digest) != digest]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise ExportError(f"{folder} has other files than an export's in it; choose another folder") from None
    if strange:
        raise ExportError(
            f"{folder} is an export, but {strange[0]} was {'added' if added else 'edited'} since; it is not replaced. "
            "Choose another folder, or move what you need away and remove this one"
        )


def _names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def _hashes(folder: Path) -> dict[str, str]:
    return {name: _hash(folder / name) for name in _names(folder)}


def _hash(path: Path) -> str:
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
