"""Export of preference pairs for other programs, in formats that they read.

In: pairs by split (`train`, `dev`) and the name of their source. Out: a folder, written atomically, with the data, a
card that describes it, and `export.json`, by which a later export recognizes the folder:

    {"stepladder_export": 1, "format": "trl", "source": "nano", "pairs": {"train": 812}, "files": {"README.md": "9f.."}}

Marks on the pairs are exported too, as `marked.jsonl`, one row per marked pair:

    {"id": "5f0c..", "split": "train", "question_id": "q7", "judge": "spre", "chosen": "..", "rejected": "..",
     "note": "same query", "time": "2026-01-31T12:00:00+00:00", "exported": false}

Equal pairs give equal bytes. A folder with other files, or one that was edited since, is never replaced.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b, file_digest
from itertools import chain
from pathlib import Path

from stepladder.core.errors import StepladderError, unknown_name
from stepladder.core.io.files import atomic_folder
from stepladder.core.io.masking import mask
from stepladder.core.registry import Registry
from stepladder.core.trace import Pair
from stepladder.preferences.export import llama_factory, rag_proguide, trl
from stepladder.preferences.export.base import Format, write_rows
from stepladder.preferences.export.rag_proguide import read_pair_file, read_rag_proguide
from stepladder.preferences.marks import Marks, pair_id

__all__ = ["EXPORTS", "SPLITS", "ExportResult", "Format", "export", "read_pair_file", "read_rag_proguide"]

EXPORTS: Registry[Format] = Registry(
    "export format",
    {
        "rag-proguide": (rag_proguide.FORMAT, "records like those of RAG-ProGuide, the data published with ReasonRAG"),
        "llama-factory": (llama_factory.FORMAT, "data, dataset_info.json and DPO training files for LLaMA-Factory"),
        "trl": (trl.FORMAT, "a dataset folder for TRL's trainers: preference pairs, and chosen steps as completions"),
    },
)
SPLITS = ("train", "dev")

_MANIFEST, _CARD, _MARKED = "export.json", "README.md", "marked.jsonl"
_NO_MARKS: Marks = {}
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
    #: Pairs that are marked as wrong. They were left out if `exclude_marked` was given.
    marked: int = 0


def export(
    format: str,
    pairs: Mapping[str, Iterable[Pair]],
    folder: Path,
    *,
    source: str,
    model: str | None = None,
    marks: Marks = _NO_MARKS,
    exclude_marked: bool = False,
) -> ExportResult:
    """Write pairs to a folder in one of the formats of `EXPORTS`.

    `pairs` are by split: `train` is required, `dev` is optional; each is read once. `source` is named in the card.
    `model` is the model to train, for formats with a training configuration. `marks`: of `read_marks`; the marked pairs
    are listed in a file of their own, and with `exclude_marked` left out of the others.
    """
    marked = _MarkedRows(marks, exclude_marked)
    form, splits, source = EXPORTS.get(format), _splits(marked.of(pairs), marked), mask(source)
    _check_free(folder)
    counts: dict[str, int] = {}
    rows: dict[str, int] = {}
    with atomic_folder(folder, what="export") as fresh:
        for split, each in splits.items():
            counts[split], written = write_rows(fresh, each, form.data(split))
            rows |= written
        names = list(splits)
        if marked.rows:
            by_split = sorted(marked.rows, key=lambda row: SPLITS.index(str(row["split"])))
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in by_split]
            (fresh / _MARKED).write_text("".join(lines), encoding="utf-8", newline="\n")
        about = form.usage(names, model) + marked.usage()
        card = _card(format, source, counts, rows, about, form.header(names))
        for name, text in {**form.files(names, model), _CARD: card}.items():
            (fresh / name).write_text(text, encoding="utf-8")
        hashes = {name: _hash(fresh / name) for name in _names(fresh)}
        manifest = {_VERSION_KEY: 1, "format": format, "source": source, "pairs": counts, "files": hashes}
        (fresh / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return ExportResult(folder, counts, rows, (*hashes, _MANIFEST), len(marked.rows))


@dataclass(slots=True)
class _MarkedRows:
    """The rows of the marked pairs, as these are read."""

    marks: Marks
    exclude: bool
    rows: list[dict[str, object]] = field(default_factory=list)

    def of(self, pairs: Mapping[str, Iterable[Pair]]) -> dict[str, Iterable[Pair]]:
        """The pairs to export by split."""
        return {split: self._read(split, each) for split, each in pairs.items()} if self.marks else dict(pairs)

    def _read(self, split: str, pairs: Iterable[Pair]) -> Iterator[Pair]:
        for pair in pairs:
            if (mark := self.marks.get(name := pair_id(pair))) is not None:
                steps = {"chosen": pair.chosen.written.text, "rejected": pair.rejected.written.text}
                about = {"id": name, "split": split, "question_id": pair.question_id, "judge": pair.judge}
                self.rows.append({**about, **steps, "note": mark.note, "time": mark.time, "exported": not self.exclude})
                if self.exclude:
                    continue
            yield pair

    def usage(self) -> str:
        """What the card says about them."""
        if not self.rows:
            return ""
        effect = "left out" if self.exclude else "among the others"
        return f"\nPairs that a person marked as wrong: {len(self.rows):,}, {effect}; `{_MARKED}` lists them.\n"


def _splits(pairs: Mapping[str, Iterable[Pair]], marked: _MarkedRows) -> dict[str, Iterable[Pair]]:
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
        found += f" beside {len(marked.rows):,} marked as wrong" if marked.rows and marked.exclude else ""
        raise StepladderError(f"nothing to export: found {found}, expected at least one pair for training")
    return kept


def _card(format: str, source: str, counts: dict[str, int], rows: dict[str, int], usage: str, front_matter: str) -> str:
    header = f"---\n{front_matter}---\n\n" if front_matter else ""
    sizes = ", ".join(f"{count:,} {split}" for split, count in counts.items())
    table = "\n".join(f"| `{name}` | {count:,} |" for name, count in rows.items())
    return f"""{header}# Preference pairs for training a search agent

Pairs of a preferred and a rejected step of an agent, both from the same state: {sizes}.
Exported by Stepladder from `{source}` as `{format}`.

| file | rows |
|---|---|
{table}

{usage}"""


def _check_free(folder: Path) -> None:
    if Path.cwd().is_relative_to(folder.resolve()):
        raise StepladderError(f"{folder} is the current directory, which cannot be replaced from inside")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        _, known = manifest[_VERSION_KEY], manifest["files"]
        # New files are recognized by name, without hashing: they may be gigabytes of model weights.
        names = [name for name in _names(folder) if name != _MANIFEST]
        changed = next((name for name in names if name not in known or _hash(folder / name) != known[name]), None)
    except (OSError, ValueError, TypeError, KeyError):
        raise StepladderError(f"{folder} has files that are not part of an export; choose another folder") from None
    if changed is not None:
        raise StepladderError(
            f"{folder} is an export, but {changed} was added or edited since; it is not replaced. "
            "Choose another folder, or save what you need and delete this one"
        )


def _names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, lambda: blake2b(digest_size=16)).hexdigest()
