"""Do a FAISS index, a corpus and an encoder belong together?

In: all three. Out: nothing, or a `FitError` that says what does not fit. Rows all over the corpus are encoded again and
compared with the vectors at their positions: another encoder, prefix or pooling, another version of the corpus and
another order of its rows all give other vectors. Compressed indexes do not have the vectors: there a row must be among
the first results of a search for itself.
"""

import numpy as np
import numpy.typing as npt

from stepladder.core.errors import StepladderError
from stepladder.retrieval.imported.corpus_file import CorpusFile
from stepladder.retrieval.index.encoder import Encoder, Vectors
from stepladder.retrieval.index.vector_index import Metric, VectorIndex
from stepladder.retrieval.index.vectors import MIN_COSINE

#: Rows that are compared: the first, the last, and evenly spaced ones between them.
SAMPLES = 32
#: A row that is no other's vector may differ more, such as one that was truncated elsewhere.
_MIN_OWN_COSINE = 0.9
#: How much nearer another row's vector may be: rounding of half precision.
_ROUNDING = 1e-3
#: Without exact vectors: the results among which a row must find itself, and the share of rows that must.
_RESULTS, _MIN_FOUND = 20, 0.75
#: Largest relative difference of lengths for distances.
_MAX_LENGTH_DIFFERENCE = 0.05

_SETTINGS = (
    "its prefixes, pooling and length (--set 'passage_prefix=\"passage: \"', --set pooling=cls, "
    "--set max_tokens=180 ...)"
)


class FitError(StepladderError):
    """An index, a corpus and an encoder that do not belong together."""


def check_fit(vectors: VectorIndex, corpus: CorpusFile, encoder: Encoder, metric: Metric, *, exact: bool) -> None:
    """Raise if the vectors are not those of the corpus. `exact`: the index has them, not compressed ones."""
    rows = np.unique(np.linspace(0, len(corpus) - 1, SAMPLES).astype(int)).tolist()
    texts = list(zip(*(corpus.texts(row) for row in rows)))
    # Texts are embedded in several forms; most indexes use the first one.
    forms = [encoder.passage_texts(form) for form in dict.fromkeys(texts[:1])]
    check = _check_exact if exact else _check_search
    if check(vectors, rows, forms[0]) is not None:
        forms += [encoder.passage_texts(form) for form in dict.fromkeys(texts) if form != texts[0]]
    problems = [check(vectors, rows, form) for form in forms]
    if all(problem is not None for problem in problems):
        # The form with the fewest misfits explains best what is wrong.
        misfits = min((problem for problem in problems if problem is not None), key=lambda each: each.share)
        raise misfits.error(vectors, corpus, encoder)
    fitting = forms[problems.index(None)]
    if exact and metric == "l2":
        _check_length(vectors, rows[0], fitting[0])


class _Misfit:
    """The rows that do not fit, with their vectors as encoded now and their cosines with the stored ones."""

    def __init__(self, rows: list[int], encoded: Vectors, cosines: list[float], total: int) -> None:
        self.rows, self.encoded, self.cosines, self.total = rows, encoded, cosines, total
        self.share = len(rows) / total

    def error(self, vectors: VectorIndex, corpus: CorpusFile, encoder: Encoder) -> FitError:
        """What is wrong, from a search for the vectors of these rows."""
        count = f"{len(self.rows)} of {self.total} sampled rows"
        if self.cosines and len(moved := self._moved(vectors)) > len(self.rows) / 2:
            row, position = moved[0]
            return FitError(
                f"{corpus.path} is in another order than the index: the vector of row {row + 1} is at position "
                f"{position + 1} ({count} differ). Use the corpus file that the index was built from, unchanged"
            )
        if not self.cosines:
            return FitError(
                f"{count} of {corpus.path} do not find themselves in the index: the corpus has another order or "
                f"version, or the index another encoder than '{encoder.settings.encoder}': check it, {_SETTINGS}"
            )
        near = f"cosine similarity {np.mean(self.cosines):.2f}, expected {MIN_COSINE} or more"
        if self.share < 1 / 2:
            first = self.rows[0] + 1
            return FitError(
                f"{corpus.path} is not the version that was indexed: {count}, such as row {first}, have other texts "
                f"({near}). Use the corpus file that the index was built from"
            )
        return FitError(
            f"the index was not built with '{encoder.settings.encoder}' from {corpus.path}: {count} have other vectors "
            f"({near}). Name the encoder of the index, {_SETTINGS}"
        )

    def _moved(self, vectors: VectorIndex) -> list[tuple[int, int]]:
        """The rows whose vectors are at other positions, with these."""
        _, found = vectors.search(self.encoded, 1)
        pairs = zip(self.rows, found[:, 0].tolist(), self.encoded)
        return [
            (row, nearest)
            for row, nearest, mine in pairs
            if nearest not in (row, -1) and _cosine(mine, vectors.vector(nearest)) >= MIN_COSINE
        ]


def _check_exact(vectors: VectorIndex, rows: list[int], encoded: Vectors) -> _Misfit | None:
    stored = np.stack([vectors.vector(row) for row in rows])
    cosines = _unit(encoded) @ _unit(stored).T
    own = np.diagonal(cosines)
    rivals = cosines.max(axis=1) > own + _ROUNDING
    if not rivals.any() and (own >= _MIN_OWN_COSINE).all() and np.median(own) >= MIN_COSINE:
        return None
    wrong = np.flatnonzero((own < MIN_COSINE) | rivals)
    return _Misfit([rows[each] for each in wrong], encoded[wrong], own[wrong].tolist(), len(rows))


def _check_search(vectors: VectorIndex, rows: list[int], encoded: Vectors) -> _Misfit | None:
    _, found = vectors.search(encoded, _RESULTS)
    lost = np.array([row not in near for row, near in zip(rows, found.tolist())])
    if lost.mean() <= 1 - _MIN_FOUND:
        return None
    wrong = np.flatnonzero(lost)
    return _Misfit([rows[each] for each in wrong], encoded[wrong], [], len(rows))


def _check_length(vectors: VectorIndex, row: int, encoded: Vectors) -> None:
    """Distances, unlike the order of inner products, depend on the length of the query's vector."""
    stored, now = float(np.linalg.norm(vectors.vector(row))), float(np.linalg.norm(encoded))
    if abs(stored - now) > _MAX_LENGTH_DIFFERENCE * stored:
        other = "dot" if abs(now - 1) < _MAX_LENGTH_DIFFERENCE else "cosine"
        raise FitError(
            f"the index compares distances, and its vectors have length {stored:.2f}, the encoder's {now:.2f}: use the "
            f"encoder as the index did (--set similarity={other})"
        )


def _unit(vectors: Vectors) -> npt.NDArray[np.float32]:
    lengths: Vectors = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return vectors / lengths


def _cosine(one: Vectors, other: Vectors) -> float:
    return float((_unit(one[None]) @ _unit(other[None]).T).item())
