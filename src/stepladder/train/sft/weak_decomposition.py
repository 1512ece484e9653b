"""Weak decompositions: hops found in the corpus, for questions that have only answers.

In: a question with its answers, and an index to search. Out: the question with hops, if a path to the answer is found:
a passage retrieved by the question contains the answer (one hop), or such a passage and one with the answer mention
each other's titles (two hops). Questions that choose between entities they name are skipped. The labels are noisy,
since an answer may occur in a passage for other reasons, but they suffice to learn how to search.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm, Retrieve
from stepladder.core.trace import Hop, Passage, Question
from stepladder.data.decompositions.gold_passages import GoldPassage, mentions as is_named
from stepladder.data.decompositions.passage_chains import chain_hops
from stepladder.data.gold_texts import by_id, with_gold_texts
from stepladder.driver import Driver, OutcomeCallback
from stepladder.oracle.decomposition import mentions
from stepladder.retrieval.base import Retriever

#: Passages considered as the first hop, and as the last.
FIRST_HOPS, LAST_HOPS = 5, 10
#: Answers that occur in any text.
_ANYWHERE = frozenset({"yes", "no", "true", "false"})


def decompose_questions(
    questions: Sequence[Question], retriever: Retriever | None, k: int, watch: OutcomeCallback | None = None
) -> list[Question]:
    """The questions, with hops where they are known or found."""
    outcomes = Driver(None, retriever).run([partial(weak_decomposition, question, k) for question in questions], watch)
    if failed := [outcome.failure for outcome in outcomes if outcome.failure is not None]:
        raise StepladderError(f"{len(failed):,} of {len(questions):,} searches failed; the first: {failed[0].reason}")
    return [outcome.value for outcome in outcomes if outcome.value is not None]


def weak_decomposition(question: Question, k: int) -> Algorithm[Question]:
    """The question with hops, or unchanged if none are found; `k`: passages per search of the agent."""
    if question.hops or not question.answers or _is_ambiguous(question):
        return question
    first, second = yield [
        Retrieve(question.text, max(k, FIRST_HOPS)),
        Retrieve(f"{question.text} {question.answers[0]}", LAST_HOPS),
    ]
    direct = [passage for passage in first[:k] if mentions(question.answers, (passage,))]
    # A passage about an entity of the question may answer it directly. A passage about something else is more likely
    # the second hop, after one about an entity of the question.
    named = [passage for passage in direct if is_named(question.text, passage.title)]
    if not named:
        ends = [passage for passage in (*first, *second) if mentions(question.answers, (passage,))]
        for begin in sorted(first, key=lambda passage: not is_named(question.text, passage.title)):
            for end in ends:
                if hops := _path(question, begin, end):
                    return _with(question, hops, (begin, end))
    if found := named or direct:
        hop = Hop(question.text, question.answers[0], tuple(each.id for each in found))
        return _with(question, (hop,), found)
    return question


def _is_ambiguous(question: Question) -> bool:
    """Whether the answer occurs in many texts, or in the question itself, which then asks to choose."""
    answer = question.answers[0]
    return answer.lower() in _ANYWHERE or is_named(question.text, answer)


def _path(question: Question, begin: Passage, end: Passage) -> Sequence[Hop]:
    if begin.id == end.id or begin.title == end.title:
        return ()
    golds = [GoldPassage(passage.title, (passage.id,), passage.text) for passage in (begin, end)]
    hops = chain_hops(question.text, question.answers, golds, "bridge")
    return hops if len(hops) == 2 and hops[0].passages == (begin.id,) else ()


def _with(question: Question, hops: Sequence[Hop], passages: Sequence[Passage]) -> Question:
    """The question with hops, whose passages are recognized in other indexes too."""
    known = by_id(GoldPassage(passage.title, (passage.id,), passage.text) for passage in passages)
    mined = replace(question, hops=tuple(hops), gold_passages=tuple(hop.passages for hop in hops))
    return with_gold_texts(mined, known)
