"""BM25 search over passages, on the `bm25s` library: exact, without a model, quick on a CPU.

In: passages, to build an index in memory (`from_passages`) or beside the passages in a folder (`build`, `open`); then
queries.
Out: for each query its k best passages with scores. Equal scores are ordered as in the corpus, and a passage without
any word of the query is never a result.

Text is folded to lower case without accents, cut into words, freed of English stop words and stemmed (Snowball).
"""

import logging
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import Stemmer
from pydantic import Field

from stepladder.core.config import Config
from stepladder.core.trace import Passage
from stepladder.retrieval.base import ProgressCallback, Retriever, check_search, no_progress
from stepladder.retrieval.corpus.passage_store import Passages, PassageStore
from stepladder.retrieval.corpus.reader import check_unique_ids
from stepladder.retrieval.corpus.tables import CorpusError
from stepladder.retrieval.index.memory_budget import DEFAULT_MEMORY
from stepladder.retrieval.index.postings import Formula, Postings, PostingsWriter


def _import_bm25s() -> Any:
    """The library, imported as if JAX were not installed.

    Where JAX is, `import bm25s` would start it, and JAX takes most of a GPU's memory when it starts. None of what
    bm25s does with it is used here.
    """
    names = ("jax", "jax.lax")
    before = {name: sys.modules[name] for name in names if name in sys.modules}
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type] # None makes an import fail
    try:
        library = import_module("bm25s")
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update(before)
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return library


bm25s = _import_bm25s()

_STOP_WORDS = frozenset(bm25s.stopwords.STOPWORDS_EN_PLUS)
_WORDS = re.compile(r"\w+")
_ACCENTS = re.compile("[\u0300-\u036f]")
_STEMMER = Stemmer.Stemmer("english")
_ABOVE_ZERO = np.finfo(np.float32).smallest_subnormal
#: The best scores are looked for in blocks of so many passages at least.
_BLOCK = 64

#: Words whose terms are remembered while an index is built, the first ones met: some 60 MB, and nearly all of a text.
_REMEMBERED = 500_000
_WATCH_EVERY = 10_000


@lru_cache(maxsize=200_000)
def _stem(word: str) -> str:
    """The stem of a word; empty for stop words."""
    return "" if word in _STOP_WORDS else str(_STEMMER.stemWord(word))


def _words(text: str) -> list[str]:
    if not text.isascii():
        text = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
    return _WORDS.findall(text.lower())


def tokenize(text: str) -> list[str]:
    """What BM25 sees of a text.

    >>> tokenize("The bridges of Orléans, in 1760")
    ['bridg', 'orlean', '1760']
    """
    return list(filter(None, map(_stem, _words(text))))


class BM25Config(Config):
    """How BM25 counts."""

    #: How soon further occurrences of a word stop counting.
    k1: float = Field(default=1.2, ge=0)
    #: How much long passages are held back.
    b: float = Field(default=0.75, ge=0, le=1)
    #: A word of the title counts as often as so many words of the text.
    title_weight: int = Field(default=3, ge=1)


class BM25Index(Retriever):
    """A BM25 index with its passages. Threads may share one."""

    def __init__(self, terms: dict[str, int], postings: Postings, passages: Passages) -> None:
        self._terms, self._postings, self.passages = terms, postings, passages

    @classmethod
    def from_passages(
        cls, passages: Iterable[Passage], *, k1: float = 1.2, b: float = 0.75, title_weight: int = 3
    ) -> "BM25Index":
        """An index that lives in memory, for corpora that fit there.

        `k1` says how soon further occurrences of a word stop counting, `b` how much long passages are held back
        (the defaults are Lucene's); a word of the title counts as often as `title_weight` words of the text.
        """
        formula = _formula(k1, b, title_weight)
        kept = tuple(check_unique_ids(passages))
        with PostingsWriter(formula) as writer:
            return cls(_count(kept, writer, title_weight, no_progress), writer.in_memory(), kept)

    @classmethod
    def build(
        cls,
        passages: Passages,
        folder: Path,
        *,
        k1: float = 1.2,
        b: float = 0.75,
        title_weight: int = 3,
        memory: int = DEFAULT_MEMORY,
        progress: ProgressCallback = no_progress,
    ) -> dict[str, str | int | float]:
        """Write an index of the passages into a folder; returns how it was made.

        Building takes about `memory` bytes, and the vocabulary some 200 bytes a term beside it.
        """
        library = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy")
        with PostingsWriter(_formula(k1, b, title_weight), folder, memory) as writer:
            library.vocab_dict = _count(passages, writer, title_weight, progress)
            # The library writes its small files, and in the place of the large ones empty ones, until ours come.
            library.scores = {"data": [], "indices": [], "indptr": [], "num_docs": len(passages)}
            library.nonoccurrence_array = None
            library.save(folder, show_progress=False)
            writer.write(folder, progress)
        return {
            "k1": k1,
            "b": b,
            "title_weight": title_weight,
            "variant": library.method,
            "stemmer": f"Snowball English, PyStemmer {version('PyStemmer')}",
            "stop_words": f"bm25s English plus, {len(_STOP_WORDS)} words",
            "library": f"bm25s {bm25s.__version__}",
        }

    @classmethod
    def open(cls, folder: Path, passages: Passages) -> "BM25Index":
        """The index in a folder that `build` wrote, of these passages, mapped into memory rather than read."""
        library = bm25s.BM25.load(folder, mmap=True, backend="numpy")
        # Plain views of the mapped memory: slicing a memmap is slow.
        starts, places, scores = (np.asarray(library.scores[name]) for name in ("indptr", "indices", "data"))
        return cls(library.vocab_dict, Postings(starts, places, scores, len(passages)), passages)

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        """For each query, in order, up to k passages with their scores, best first."""
        check_search(queries, k)
        return [self._search(query, k) for query in queries]

    def _search(self, query: str, k: int) -> tuple[Passage, ...]:
        known = [self._terms[term] for term in tokenize(query) if term in self._terms]
        if not known:
            return ()
        scores = self._postings.sums(known)
        return tuple(
            Passage(found.id, found.title, found.text, float(scores[position]))
            for position in top_k(scores, k)
            for found in (self.passages[position],)
        )

    def close(self) -> None:
        """Let go of the files of an index that was opened from a folder."""
        if isinstance(self.passages, PassageStore):
            self.passages.close()


def top_k(scores: npt.NDArray[np.float32], k: int) -> list[int]:
    """Positions of the k highest scores above 0, highest first, equal ones in order of position.

    >>> top_k(np.array([0, 2, 1, 2, 0], dtype=np.float32), k=4)
    [1, 3, 2]
    """
    # The k-th highest of the blocks' maxima is reached by at least k scores, so the k best are among those that
    # reach it, in a few of the blocks. One quick pass over all finds them, where partitioning takes several.
    size = _BLOCK + len(scores) // 1024
    starts = np.arange(0, len(scores), size)
    maxima = np.maximum.reduceat(scores, starts)
    enough = max(np.partition(maxima, -k)[-k] if k <= len(maxima) else 0, _ABOVE_ZERO)
    blocks = [np.flatnonzero(scores[start : start + size] >= enough) + start for start in starts[maxima >= enough]]
    candidates = np.concatenate([np.zeros(0, dtype=np.int64), *blocks])
    order = np.argsort(-scores[candidates], kind="stable")[:k]
    return [int(position) for position in candidates[order]]


def _formula(k1: float, b: float, title_weight: int) -> Formula:
    if k1 < 0 or not 0 <= b <= 1 or title_weight < 1:
        raise ValueError(f"expected k1 >= 0, 0 <= b <= 1 and title_weight >= 1; found {k1=}, {b=}, {title_weight=}")
    return Formula(k1, b)


class _Numbers(dict[str, int]):
    """The number of each word's term, -1 for stop words; terms are numbered as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.terms: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        stem = _stem(word)
        number = self.terms.setdefault(stem, len(self.terms)) if stem else -1
        if len(self) < _REMEMBERED:
            self[word] = number
        return number

    def of(self, text: str) -> list[int]:
        """The numbers of a text's terms."""
        return [number for number in map(self.__getitem__, _words(text)) if number >= 0]


def _count(passages: Passages, writer: PostingsWriter, title_weight: int, progress: ProgressCallback) -> dict[str, int]:
    """Count the terms of all passages; returns their numbers."""
    numbers = _Numbers()
    for done, passage in enumerate(passages):
        if done % _WATCH_EVERY == 0:
            progress("Indexing words", done, len(passages))
        writer.add(numbers.of(passage.title) * title_weight + numbers.of(passage.text))
    progress("Indexing words", len(passages), len(passages))
    if not numbers.terms:
        raise CorpusError(f"none of the {len(passages)} passages has a word that can be searched for")
    return numbers.terms
