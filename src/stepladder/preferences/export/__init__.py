"""Export of preference pairs for other programs, in formats that they read.

In: pairs by split (`train`, `dev`) and the name of their source. Out: a folder, written atomically, with the data, a
card that describes it, and `export.json`, by which a later export recognizes the folder:

    {"stepladder_export": 1, "format": "trl", "source": "nano", "pairs": {"train": 812}, "files": {"README.md": "9f.."}}

Equal pairs give equal bytes. A folder with other files, or one that was edited since, is never replaced.
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
from stepladder.preferences.export.base import ExportError, ExportFiles, Format
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
    """The files of an export."""

    folder: Path
    #: Pairs by split, without empty splits.
    pairs: dict[str, int]
    #: Rows by data file, paths inside the folder.
    rows: dict[str, int]
    #: Every file in the folder.
    files: tuple[str, ...]


def export(
    format: str, pairs: Mapping[str, Iterable[Pair]], folder: Path, *, source: str, model: str | None = None
) -> ExportResult:
    """Write pairs to a folder in one of the formats of `EXPORTS`.

    `pairs` are by split: `train` is required, `dev` is optional; each is read once. `source` is named in the card.
    `model` is the model to train, for formats with a training configuration.
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
    """The non-empty splits, in order; raises an error without pairs for training."""
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
        raise ExportError(f"nothing to export: found {found}, expected at least one pair for training")
    return kept


class _Counted:
    """Counts pairs while they are read."""

    def __init__(self, pairs: Iterator[Pair]) -> None:
        self._pairs = pairs
        self.count = 0

    def __iter__(self) -> Iterator[Pair]:
        for pair in self._pairs:
            self.count += 1
            yield pair


def _card(format: str, written: ExportFiles, counts: dict[str, int], source: str) -> str:
    header = f"---\n{written.header}---\n\n" if written.header else ""
    sizes = ", ".join(f"{count:,} {split}" for split, count in counts.items())
    rows = "\n".join(f"| `{name}` | {count:,} |" for name, count in written.rows.items())
    return f"""{header}# Preference pairs for training a search agent

Pairs of a preferred and a rejected step of an agent, both from the same state: {sizes}.
ExportResult by Stepladder from `{source}` as `{format}`.

| file | rows |
|---|---|
{rows}

{written.usage}"""


def _check_free(folder: Path) -> None:
    if Path.cwd().is_relative_to(folder.resolve()):
        raise ExportError(f"{folder} is the current directory, which cannot be replaced from inside")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        _, known = manifest[_VERSION_KEY], manifest["files"]
        # New files are recognized by name, without hashing: they may be gigabytes of model weights.
        added = [name for name in _names(folder) if name not in known and name != _MANIFEST]
        changed = added or [name for name, digest in _hashes(folder).items() if known.get(name, digest) != digest]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise ExportError(f"{folder} contains files that are not part of an export; choose another folder") from None
    if changed:
        raise ExportError(
            f"{folder} is an export, but {changed[0]} was {'added' if added else 'edited'} since; it is not replaced. "
            "Choose another folder, or save what you need and delete this one"
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
