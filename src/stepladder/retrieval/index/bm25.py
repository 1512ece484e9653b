"""BM25 search with the `bm25s` library: exact, without a model, fast on a CPU.

In: passages, to build an index in memory (`from_passages`) or in a folder (`build`, `open`); then queries.
Out: for each query its k best passages with scores. Ties are in corpus order, and a passage without any term of the
query is never a result.

Text is lower-cased, stripped of accents, split into words, filtered for English stop words and stemmed (Snowball).
"""

import logging
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import Stemmer
from pydantic import Field

from stepladder.core.config import Config
from stepladder.core.extras import library_version
from stepladder.core.trace import Passage
from stepladder.retrieval.base import ProgressCallback, Retriever, check_search, no_progress
from stepladder.retrieval.corpus.passage_store import Passages, PassageStore
from stepladder.retrieval.corpus.reader import check_unique_ids
from stepladder.retrieval.corpus.tables import CorpusError
from stepladder.retrieval.index.manifest import BuildDetails
from stepladder.retrieval.index.postings import PostingsWriter
from stepladder.retrieval.index.registry import DEFAULT_MEMORY, IndexKind


def _import_bm25s() -> Any:
    """The library, imported as if JAX were not installed.

    `import bm25s` would import JAX, which reserves most of a GPU's memory. bm25s's JAX functions are not used here.
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


def _compiled_scorer() -> Any:
    """The library's function that adds up the scores of a query's terms, compiled on this machine's first use.

    The library would compile it again for every index, and has a slower version for machines without numba.
    """
    try:
        from numba import njit
    except ImportError:
        logging.getLogger(__name__).warning("numba is not installed: BM25 search is several times slower")
        return bm25s.BM25._compute_relevance_from_scores
    function = bm25s.scoring._compute_relevance_from_scores_jit_ready
    options = {"nogil": True, "boundscheck": True}  # a damaged index must not write to other memory
    try:
        return njit(**options, cache=True)(function)
    except RuntimeError:  # there is no writable folder for the compiled function
        return njit(**options)(function)


_SCORER = _compiled_scorer()

_STOP_WORDS = frozenset(bm25s.stopwords.STOPWORDS_EN_PLUS)
_WORD = re.compile(r"\w+")
_ACCENTS = re.compile("[\u0300-\u036f]")
_STEMMER = Stemmer.Stemmer("english")
_ABOVE_ZERO = np.finfo(np.float32).smallest_subnormal
#: Minimum block size of the top-k search.
_BLOCK = 64

#: Words with cached term ids during a build: about 60 MB, covering nearly all of a text.
_CACHED_WORDS = 500_000
_PROGRESS_EVERY = 10_000


@lru_cache(maxsize=200_000)
def _stem(word: str) -> str:
    """The stem of a word; empty for a stop word."""
    return "" if word in _STOP_WORDS else str(_STEMMER.stemWord(word))


def _words(text: str) -> list[str]:
    if not text.isascii():
        text = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
    return _WORD.findall(text.lower())


def tokenize(text: str) -> list[str]:
    """The BM25 terms of a text.

    >>> tokenize("The bridges of Orléans, in 1760")
    ['bridg', 'orlean', '1760']
    """
    # Of long words nothing is cached: queries may contain anything.
    return list(filter(None, ((_stem if len(word) <= 40 else _stem.__wrapped__)(word) for word in _words(text))))


class BM25Config(Config):
    """The parameters of BM25."""

    #: Term frequency saturation.
    k1: float = Field(default=1.2, ge=0)
    #: Length normalization.
    b: float = Field(default=0.75, ge=0, le=1)
    #: A term in the title counts as this many terms in the text.
    title_weight: int = Field(default=3, ge=1)


class BM25Index(Retriever):
    """A BM25 index with its passages. Thread-safe."""

    def __init__(self, terms: dict[str, int], postings: Sequence[Any], passages: Passages) -> None:
        """`postings`: the starts, passages and scores of the terms' postings (postings.py)."""
        self._terms, self._postings, self.passages = terms, postings, passages
        self._scores([])  # compile or load the scorer now, so that the first search is as fast as the others

    @classmethod
    def from_passages(cls, passages: Iterable[Passage], **settings: float) -> "BM25Index":
        """An in-memory index. The settings are those of `BM25Config`; the defaults are Lucene's."""
        config = BM25Config.read(settings, "bm25")
        kept = tuple(check_unique_ids(passages))
        with PostingsWriter(config.k1, config.b) as writer:
            return cls(_count(kept, writer, config.title_weight, no_progress), writer.in_memory(), kept)

    @classmethod
    def build(
        cls,
        passages: Passages,
        folder: Path,
        config: BM25Config | None = None,
        memory: int = DEFAULT_MEMORY,
        progress: ProgressCallback = no_progress,
    ) -> BuildDetails:
        """Write an index of the passages into a folder; returns the build details.

        Takes about `memory` bytes, plus about 200 bytes per term for the vocabulary.
        """
        config = config or BM25Config()
        library = bm25s.BM25(k1=config.k1, b=config.b, method="lucene", backend="numpy")
        with PostingsWriter(config.k1, config.b, folder, memory) as writer:
            library.vocab_dict = _count(passages, writer, config.title_weight, progress)
            # The library writes its small files, and empty placeholders of the large ones that are written below.
            library.scores = {"data": [], "indices": [], "indptr": [], "num_docs": len(passages)}
            library.nonoccurrence_array = None
            library.save(folder, show_progress=False)
            writer.write(folder, progress)
        return {
            **config.model_dump(),
            "variant": library.method,
            "stemmer": f"Snowball English, PyStemmer {library_version('PyStemmer')}",
            "stop_words": f"bm25s English plus, {len(_STOP_WORDS)} words",
            "library": f"bm25s {bm25s.__version__}",
        }

    @classmethod
    def open(cls, folder: Path, passages: Passages) -> "BM25Index":
        """The memory-mapped index in a folder written by `build`, with its passages."""
        library = bm25s.BM25.load(folder, mmap=True, backend="numpy")
        postings = [np.asarray(library.scores[name]) for name in ("indptr", "indices", "data")]
        return cls(library.vocab_dict, postings, passages)

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        """For each query, in order, up to k passages with their scores, best first."""
        check_search(queries, k)
        return [self._search(query, k) for query in queries]

    def _search(self, query: str, k: int) -> tuple[Passage, ...]:
        known = [self._terms[term] for term in tokenize(query) if term in self._terms]
        if not known:
            return ()
        scores = self._scores(known)
        found = ((self.passages[position], float(scores[position])) for position in top_k(scores, k))
        return tuple(Passage(passage.id, passage.title, passage.text, score) for passage, score in found)

    def _scores(self, terms: Sequence[int]) -> Any:
        starts, positions, weights = self._postings
        ids = np.array(terms, dtype=np.int32)
        return _SCORER(weights, starts, positions, len(self.passages), ids, np.dtype(np.float32))

    def close(self) -> None:
        """Close the files of an index that was opened from a folder."""
        if isinstance(self.passages, PassageStore):
            self.passages.close()


def top_k(scores: npt.NDArray[np.float32], k: int) -> list[int]:
    """Positions of the k highest scores above 0, highest first, ties by position.

    >>> top_k(np.array([0, 2, 1, 2, 0], dtype=np.float32), k=4)
    [1, 3, 2]
    """
    # At least k scores reach the k-th highest block maximum, so the top k are among the scores that reach it, which
    # are in a few blocks. This takes one fast pass over all scores, where partitioning takes several.
    size = _BLOCK + len(scores) // 1024
    starts = np.arange(0, len(scores), size)
    maxima = np.maximum.reduceat(scores, starts)
    floor = max(np.partition(maxima, -k)[-k] if k <= len(maxima) else 0, _ABOVE_ZERO)
    blocks = [np.flatnonzero(scores[start : start + size] >= floor) + start for start in starts[maxima >= floor]]
    candidates = np.concatenate([np.zeros(0, dtype=np.int64), *blocks])
    order = np.argsort(-scores[candidates], kind="stable")[:k]
    return [int(position) for position in candidates[order]]


class _TermIds(dict[str, int]):
    """The term id of each word, -1 for stop words. Ids are assigned in order of first occurrence."""

    def __init__(self) -> None:
        super().__init__()
        self.terms: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        stem = _stem(word)
        term_id = self.terms.setdefault(stem, len(self.terms)) if stem else -1
        if len(self) < _CACHED_WORDS:
            self[word] = term_id
        return term_id

    def of(self, text: str) -> list[int]:
        """The term ids of a text."""
        return [term_id for term_id in map(self.__getitem__, _words(text)) if term_id >= 0]


def _count(passages: Passages, writer: PostingsWriter, title_weight: int, progress: ProgressCallback) -> dict[str, int]:
    """Count the terms of all passages; returns the term ids."""
    ids = _TermIds()
    for done, passage in enumerate(passages):
        if done % _PROGRESS_EVERY == 0:
            progress("Indexing words", done, len(passages))
        writer.add(ids.of(passage.title) * title_weight + ids.of(passage.text))
    progress("Indexing words", len(passages), len(passages))
    if not ids.terms:
        raise CorpusError(f"none of the {len(passages)} passages has a searchable word")
    return ids.terms


BM25 = IndexKind(
    BM25Config,
    lambda passages, to, *settings: BM25Index.build(passages, to.folder, *settings),
    lambda folder, passages, _device: BM25Index.open(folder, passages),
    dense=False,
    resumable=False,
)
