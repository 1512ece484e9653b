"""Find and open question files: a folder of them, files by split, or a published set on this machine.

In: a folder with one file per split, and optionally a corpus:

    train.jsonl  dev.jsonl.gz  test.json                           named by split, in any known format, plain or gzipped
    hotpot_train_v1.1.json  musique_ans_v1.0_dev.jsonl  popQA.tsv  with the names of the published files
    corpus.jsonl.gz                                                the passages; else those in the question files

Out: a `DataSet` that reads a split on first access. A split whose questions have no answers is left out: it can be used
neither for training nor for evaluation. The error for a missing set says how to get it (`hub_sets.py` downloads it).
"""

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.data.dataset import DataSet, LazyPassages, LazySplits
from stepladder.data.formats.base import (
    PublishedSet,
    has_answers,
    has_passages,
    question_formats,
    read_passages,
    read_questions,
)
from stepladder.data.formats.rows import file_type
from stepladder.data.hub_sets import FLASHRAG, HUB_SETS
from stepladder.retrieval.corpus.reader import read_corpus

SPLITS = ("train", "dev", "test")

#: The environment variable with the folder of question sets.
FOLDER = "STEPLADDER_DATA"
PUBLISHED: dict[str, PublishedSet] = {
    **{each.published.name: each.published for each in question_formats() if each.published is not None},
    # These have no format of their own.
    "nq": PublishedSet("nq", f"https://huggingface.co/datasets/{FLASHRAG}", HUB_SETS["nq"].paths),
    "triviaqa": PublishedSet("triviaqa", f"https://huggingface.co/datasets/{FLASHRAG}", HUB_SETS["triviaqa"].paths),
}

_CORPUS_FILES = ("corpus.jsonl", "corpus.jsonl.gz", "corpus.parquet", "corpus.tsv", "corpus.tsv.gz")
_COMPANIONS = frozenset(name for each in question_formats() for name in each.companions)
_NOT_QUESTIONS = (*_CORPUS_FILES, *_COMPANIONS)
#: The words in file names that determine a split.
_SPLIT_WORDS = {
    **{name: each.split for name, each in PUBLISHED.items() if each.split},
    **{split: split for split in SPLITS},
    "validation": "dev",
}
#: If a split has several files, the file with one of these in its name is used.
_PREFERRED = sorted(each.preferred for each in PUBLISHED.values() if each.preferred)


def open_files(name: str, files: Mapping[str, Path], corpus: Path | None = None) -> DataSet:
    """A data set of question files by split."""
    splits = {split: partial(read_questions, path, corpus) for split, path in files.items()}
    passages: LazyPassages | None = None
    if corpus is not None:
        passages = LazyPassages(lambda: read_corpus(corpus))
    elif any(has_passages(path) for path in files.values()):
        passages = LazyPassages(lambda: read_passages(files.values()))
    return DataSet(name, LazySplits(splits), passages)


def open_folder(folder: Path) -> DataSet:
    """The data set in a folder."""
    files = split_files(folder)
    usable = {split: path for split, path in files.items() if has_answers(path)}
    if not usable:
        names = ", ".join(path.name for path in files.values())
        raise StepladderError(f"{folder}: the questions of {names} have no answers")
    return open_files(folder.name, usable, find_corpus(folder))


def source_files(path: Path) -> tuple[Path, ...]:
    """The files from which a data set is read."""
    if path.is_file():
        files = [path]
    else:
        corpus = find_corpus(path)
        files = [*split_files(path).values(), *([corpus] if corpus else [])]
    companions = sorted({path.parent / name for path in files for name in _COMPANIONS})
    return tuple(files) + tuple(path for path in companions if path.is_file())


def find_corpus(folder: Path) -> Path | None:
    """The corpus in a folder of questions."""
    return next((folder / name for name in _CORPUS_FILES if (folder / name).is_file()), None)


def split_files(folder: Path) -> dict[str, Path]:
    """The question file of each split in a folder."""
    candidates: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and file_type(path) and path.name not in _NOT_QUESTIONS and path.name[0] != ".":
            words = re.findall(r"[a-z]+", path.name.lower())
            if split := next((_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS), None):
                candidates.setdefault(split, []).append(path)
    if not candidates:
        others = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        raise StepladderError(
            f"{folder}: expected train, dev or test questions in it ({', '.join(f'{s}.jsonl' for s in SPLITS)}, or the "
            f"files of a known set); found {', '.join(others[:5]) or 'nothing'}{' ...' if len(others) > 5 else ''}"
        )
    return {split: _choose(folder, split, candidates[split]) for split in SPLITS if split in candidates}


def _choose(folder: Path, split: str, paths: list[Path]) -> Path:
    plain = [path for path in paths if path.name.split(".")[0].lower() == split]
    for selection in (plain, *([path for path in paths if word in path.name.lower()] for word in _PREFERRED), paths):
        if len(selection) == 1:
            return selection[0]
    names = ", ".join(path.name for path in paths)
    raise StepladderError(
        f"{folder}: found several files for the split {split}: {names}; keep one of them, or name the file itself"
    )


def search_folders(name: str) -> list[Path]:
    """The folders in which a set is searched, in this order."""
    own = os.environ.get(FOLDER)
    return [*([Path(own).expanduser() / name] if own else []), Path("data") / name]


def find_published(name: str) -> Path | None:
    """The folder of a set; None if it is not on this machine."""
    return next((folder.absolute() for folder in search_folders(name) if folder.is_dir()), None)


def missing(name: str) -> StepladderError:
    """The error for a set that is not on this machine, which says how to get it."""
    published, folders = PUBLISHED[name], search_folders(name)
    return StepladderError(
        f"the questions of {name} are not on this machine: looked in {' and '.join(map(str, folders))}. Download them "
        f"with `stepladder data get {name}`; or get {', '.join(published.files)} from {published.url} and put them "
        f"into {folders[0]}" + ("" if os.environ.get(FOLDER) else f" (or into ${FOLDER}/{name})")
    )
