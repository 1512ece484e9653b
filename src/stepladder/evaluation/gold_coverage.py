"""How many gold passages of some questions does an index have at all? If most are missing, no step can be judged by it.

In: questions, and the index that will be searched. Out: `GoldCoverage`, a count. In the data set's own passages gold
passages are looked up by id. In any other index, local or remote, they are searched by title and excerpt and recognized
among the first results (core/questions/gold_matching.py); of many, an evenly spaced sample is searched. Gold passages
of which only ids are known are looked up in a local index, if it is not too large to be read.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from stepladder.core.errors import StepladderError
from stepladder.core.questions.gold_matching import gold_found
from stepladder.core.trace import Passage, Question
from stepladder.retrieval.base import Retriever

#: Most gold passages that are searched, queries for each (it may have several texts), and results per query.
_SAMPLE, _QUERIES, _RESULTS = 200, 3, 10
#: Most passages of a local index that are read for a lookup.
_LOCAL = 100_000
#: Below this share of gold passages, steps are not labelled.
_ENOUGH = 0.5


@dataclass(frozen=True, slots=True)
class GoldCoverage:
    """How many gold passages an index has."""

    present: int
    #: Gold passages that were looked for, and those of all questions.
    sampled: int
    total: int
    #: How they were counted.
    how: str

    def line(self) -> str:
        """The count in one line."""
        of = f"{self.sampled:,}" if self.sampled == self.total else f"a sample of {self.sampled:,} of {self.total:,}"
        return f"gold passages in the index: {self.present:,} of {of} ({self.how})"

    def warning(self) -> str:
        """What the count means for an evaluation; empty if most are there."""
        return "" if self.enough else "; with most of them missing, gold passage recall is no measure of the policy"

    @property
    def enough(self) -> bool:
        """Whether the index has most of them."""
        return self.present >= _ENOUGH * self.sampled

    def check(self) -> None:
        """Raise if most are missing: right steps would be labelled as unsupported."""
        if not self.enough:
            raise StepladderError(
                f"{self.line()}. Steps cannot be labelled where most gold passages are missing: right ones would count "
                "as unsupported. Search the corpus of the questions (leave out the index, or build one of it with "
                "`stepladder index build`), or take labels that need no gold passages: for sft the source mined, "
                "bootstrap or teacher, for steps a judge that is not gold"
            )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One gold passage: its question, of which it is the only gold passage, and queries that should find it."""

    question: Question
    queries: tuple[str, ...]

    @classmethod
    def of(cls, group: tuple[str, ...], question: Question) -> "_Wanted":
        texts = (*question.gold_texts, *(text for hop in question.hops for text in hop.gold_texts))
        queries = (" ".join((text.title, *text.excerpts[:1])).strip() for text in texts if text.id in group)
        return cls(replace(question, gold_passages=(group,)), tuple(dict.fromkeys(filter(None, queries)))[:_QUERIES])


def gold_coverage(
    questions: Iterable[Question], retriever: Retriever, own: Iterable[Passage] | None = None
) -> GoldCoverage | None:
    """Count the gold passages of questions in an index; None if there are none, or none that can be looked for.

    `own`: the passages of the data set, if they are what is searched.
    """
    wanted = list({group: _Wanted.of(group, each) for each in questions for group in each.gold_passages}.values())
    if not wanted:
        return None
    if own is not None:
        return _by_id(wanted, own)
    described = [each for each in wanted if each.queries]
    if not described:
        local = _local_passages(retriever)
        return _by_id(wanted, local) if local else None
    count = min(len(described), _SAMPLE)
    sample = [described[number * len(described) // count] for number in range(count)]
    return GoldCoverage(_searched(sample, retriever), len(sample), len(described), "searched by title and text")


def _by_id(wanted: Sequence[_Wanted], passages: Iterable[Passage]) -> GoldCoverage:
    ids = {passage.id for passage in passages}
    present = sum(not ids.isdisjoint(each.question.gold_passages[0]) for each in wanted)
    return GoldCoverage(present, len(wanted), len(wanted), "by id")


def _local_passages(retriever: Retriever) -> Iterable[Passage]:
    """The passages of a local index, if they are few enough to be read."""
    passages: Collection[Passage] = getattr(retriever, "passages", ())
    return passages if len(passages) <= _LOCAL else ()


def _searched(wanted: Sequence[_Wanted], retriever: Retriever) -> int:
    """How many gold passages are among the results of one of their queries."""
    found: set[int] = set()
    for number in range(_QUERIES):
        asked = [n for n, each in enumerate(wanted) if n not in found and len(each.queries) > number]
        for start in range(0, len(asked), retriever.max_batch):
            batch = asked[start : start + retriever.max_batch]
            results = retriever.search([wanted[n].queries[number] for n in batch], _RESULTS)
            found |= {n for n, passages in zip(batch, results) if all(gold_found(wanted[n].question, passages))}
    return len(found)
