"""Open a folder of question files, or files by split.

In: a folder with a file for each split, and a corpus beside them where there is one:

    train.jsonl  dev.jsonl.gz  test.json                           named by their split, of any layout, gzipped or not
    hotpot_train_v1.1.json  musique_ans_v1.0_dev.jsonl  popQA.tsv  as the sets' own files are called
    corpus.jsonl.gz                                                the passages; else those in the question files

Out: a `DataSet` that reads a split when it is asked for. A split whose questions have no answers is left out: nothing
can be learnt or measured with it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.data.dataset import DataSet, ReadPassages, ReadSplits
from stepladder.data.formats.detect import has_answers, has_passages, read_passages, read_questions
from stepladder.data.formats.rows import kind_of
from stepladder.data.formats.twowiki import ALIASES
from stepladder.retrieval.corpus.reader import read_corpus

SPLITS = ("train", "dev", "test")

_CORPORA = ("corpus.jsonl", "corpus.jsonl.gz", "corpus.parquet", "corpus.tsv", "corpus.tsv.gz")
#: The words in file names that tell a split. PopQA and Bamboogle are test sets and have one file.
_SPLIT_WORDS = {
    "train": "train",
    "dev": "dev",
    "validation": "dev",
    "test": "test",
    "popqa": "test",
    "bamboogle": "test",
}
#: Where a split has several files, the first of these that is among them. MuSiQue's full files have its others in them.
_PREFERRED = ("distractor", "musique_ans")


def open_files(name: str, files: Mapping[str, Path], corpus: Path | None = None) -> DataSet:
    """A data set of question files by split."""
    passages: ReadPassages | None = None
    beside: ReadPassages | None = None
    if corpus is not None:
        passages = beside = ReadPassages(lambda: read_corpus(corpus))
    elif any(has_passages(path) for path in files.values()):
        passages = ReadPassages(lambda: read_passages(files.values()))
    splits = {split: lambda path=path: read_questions(path, beside) for split, path in files.items()}
    return DataSet(name, ReadSplits(splits), passages)


def open_folder(folder: Path) -> DataSet:
    """A data set of a folder."""
    files = split_files(folder)
    usable = {split: path for split, path in files.items() if has_answers(path)}
    if not usable:
        raise StepladderError(f"{folder}: the questions of {_named(files.values())} have no answers")
    return open_files(folder.name, usable, corpus_of(folder))


def sources(place: Path) -> tuple[Path, ...]:
    """The files that a data set is read from."""
    if place.is_file():
        files = [place]
    else:
        corpus = corpus_of(place)
        files = [*split_files(place).values(), *([corpus] if corpus else [])]
    aliases = sorted({path.parent / ALIASES for path in files})
    return tuple(files) + tuple(path for path in aliases if path.is_file())


def corpus_of(folder: Path) -> Path | None:
    """The corpus in a folder of questions."""
    return next((folder / name for name in _CORPORA if (folder / name).is_file()), None)


def split_files(folder: Path) -> dict[str, Path]:
    """The question file of each split that a folder has."""
    found: dict[str, list[Path]] = {}
    for path, split in _question_files(folder):
        found.setdefault(split, []).append(path)
    if not found:
        others = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        raise StepladderError(
            f"{folder}: expected train, dev or test questions in it ({', '.join(f'{s}.jsonl' for s in SPLITS)}, or the "
            f"files of a known set); found {', '.join(others[:5]) or 'nothing'}{' ...' if len(others) > 5 else ''}"
        )
    return {split: _the_one(folder, split, found[split]) for split in SPLITS if split in found}


def _question_files(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.iterdir()):
        if path.is_file() and kind_of(path) and path.name not in (*_CORPORA, ALIASES) and path.name[0] != ".":
            words = re.findall(r"[a-z]+", path.name.lower())
            if split := next((_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS), None):
                yield path, split


def _the_one(folder: Path, split: str, paths: list[Path]) -> Path:
    plain = [path for path in paths if path.name.split(".")[0].lower() == split]
    for among in (plain, *([path for path in paths if word in path.name.lower()] for word in _PREFERRED), paths):
        if len(among) == 1:
            return among[0]
    raise StepladderError(
        f"{folder}: found several files for the split {split}: {_named(paths)}; leave one of them, or name one itself"
    )


def _named(paths: Iterable[Path]) -> str:
    return ", ".join(path.name for path in paths)
