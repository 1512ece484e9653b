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

from stepladder.retrieval.base import Retriever, Watch, check_search, unwatched
from stepladder.retrieval.corpus import CorpusError, distinct
from stepladder.retrieval.memory import DEFAULT_MEMORY
from stepladder.retrieval.passages import Passages, PassageStore
from stepladder.settings import Settings
from stepladder.trace import Passage


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


@lru_cache(maxsize=200_000)
def _stem(word: str) -> str:
    """The stem of a word; empty for stop words."""
    return "" if word in _STOP_WORDS else str(_STEMMER.stemWord(word))


def terms(text: str) -> list[str]:
    """What BM25 sees of a text.

    >>> terms("The bridges of Orléans, in 1760")
    ['bridg', 'orlean', '1760']
    """
    if not text.isascii():
        text = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
    return list(filter(None, map(_stem, _WORDS.findall(text.lower()))))


class BM25Settings(Settings):
    """How BM25 counts."""

    #: How soon further occurrences of a word stop counting.
    k1: float = Field(default=1.2, ge=0)
    #: How much long passages are held back.
    b: float = Field(default=0.75, ge=0, le=1)
    #: A word of the title counts as often as so many words of the text.
    title_weight: int = Field(default=3, ge=1)


class BM25Index(Retriever):
    """A BM25 index with its passages. Threads may share one."""

    def __init__(self, scores: Any, passages: Passages) -> None:
        self._scores = scores
        self._terms: dict[str, int] = scores.vocab_dict
        self.passages = passages

    @classmethod
    def from_passages(
        cls, passages: Iterable[Passage], *, k1: float = 1.2, b: float = 0.75, title_weight: int = 3
    ) -> "BM25Index":
        """An index that lives in memory, for corpora that fit there.

        `k1` says how soon further occurrences of a word stop counting, `b` how much long passages are held back
        (the defaults are Lucene's); a word of the title counts as often as `title_weight` words of the text.
        """
        kept = tuple(distinct(passages))
        return cls(_score(kept, k1, b, title_weight), kept)

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
        watch: Watch = unwatched,
    ) -> dict[str, str | int | float]:
        """Write an index of the passages into a folder; returns how it was made."""
        scores = _score(passages, k1, b, title_weight)
        scores.save(folder, show_progress=False)
        return {
            "k1": k1,
            "b": b,
            "title_weight": title_weight,
            "variant": scores.method,
            "stemmer": f"Snowball English, PyStemmer {version('PyStemmer')}",
            "stop_words": f"bm25s English plus, {len(_STOP_WORDS)} words",
            "library": f"bm25s {bm25s.__version__}",
        }

    @classmethod
    def open(cls, folder: Path, passages: Passages) -> "BM25Index":
        """The index in a folder that `build` wrote, of these passages, mapped into memory rather than read."""
        scores = bm25s.BM25.load(folder, mmap=True, backend="numpy")
        for name in ("data", "indices", "indptr"):  # plain views of the mapped memory: slicing a memmap is slow
            scores.scores[name] = np.asarray(scores.scores[name])
        return cls(scores, passages)

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        """For each query, in order, up to k passages with their scores, best first."""
        check_search(queries, k)
        return [self._search(query, k) for query in queries]

    def _search(self, query: str, k: int) -> tuple[Passage, ...]:
        known = [self._terms[term] for term in terms(query) if term in self._terms]
        if not known:
            return ()
        scores = self._scores.get_scores_from_ids(known)
        return tuple(
            Passage(found.id, found.title, found.text, float(scores[position]))
            for position in best(scores, k)
            for found in (self.passages[position],)
        )

    def close(self) -> None:
        """Let go of the files of an index that was opened from a folder."""
        if isinstance(self.passages, PassageStore):
            self.passages.close()


def best(scores: npt.NDArray[np.float32], k: int) -> list[int]:
    """Positions of the k highest scores above 0, highest first, equal ones in order of position.

    >>> best(np.array([0, 2, 1, 2, 0], dtype=np.float32), k=4)
    [1, 3, 2]
    """
    # The k-th highest of the blocks' maxima is reached by at least k scores, so the k best are among those that
    # reach it. Finding it takes one quick pass, where partitioning all scores takes several.
    maxima = np.maximum.reduceat(scores, np.arange(0, len(scores), _BLOCK + len(scores) // 1024))
    enough = np.partition(maxima, -k)[-k] if k <= len(maxima) else 0
    candidates = np.flatnonzero(scores >= max(enough, _ABOVE_ZERO))
    order = np.argsort(-scores[candidates], kind="stable")[:k]
    return [int(position) for position in candidates[order]]


def _score(passages: Passages, k1: float, b: float, title_weight: int) -> Any:
    """The precomputed scores of every term in every passage."""
    if k1 < 0 or not 0 <= b <= 1 or title_weight < 1:
        raise ValueError(f"expected k1 >= 0, 0 <= b <= 1 and title_weight >= 1; found {k1=}, {b=}, {title_weight=}")
    numbers: dict[str, int] = {}
    passage_terms = [
        [numbers.setdefault(term, len(numbers)) for term in terms(passage.title) * title_weight + terms(passage.text)]
        for passage in passages
    ]
    if not numbers:
        raise CorpusError(f"none of the {len(passage_terms)} passages has a word that can be searched for")
    scores = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy", csc_backend="numpy")
    scores.index((passage_terms, numbers), create_empty_token=False, show_progress=False)
    return scores
