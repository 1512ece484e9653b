"""Decompositions of questions that come with nothing but their answers, found in the corpus.

In: a question with its answers, and an index to search. Out: the question with hops, where a way from it to the answer
can be seen: a passage that the question itself finds has the answer in it (one hop), or such a passage and one that has
the answer mention each other's titles (two). Questions that ask to choose between things they name are left alone. What
is found is a guess: an answer may stand in a passage for other reasons. It is good enough to teach how to search, which
is all that a warm-up is for.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from stepladder.core.decomposition import mentions
from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm, Retrieve
from stepladder.core.trace import Hop, Passage, Question
from stepladder.data.decompositions.entity_names import mentions as is_named
from stepladder.data.decompositions.gold_passages import GoldPassage
from stepladder.data.decompositions.passage_chains import chain_hops
from stepladder.driver import Driver, OutcomeCallback
from stepladder.retrieval.base import Retriever

#: How many passages are looked at for the beginning of a way, and for its end.
BEGINNINGS, ENDS = 5, 10
#: Answers that stand in any text.
_ANYWHERE = frozenset({"yes", "no", "true", "false"})


def decompose_questions(
    questions: Sequence[Question], retriever: Retriever | None, k: int, watch: OutcomeCallback | None = None
) -> list[Question]:
    """The questions, with hops where any are known or found."""
    outcomes = Driver(None, retriever).run([partial(mined, question, k) for question in questions], watch)
    if failed := [outcome.failure for outcome in outcomes if outcome.failure is not None]:
        raise StepladderError(f"{len(failed):,} of {len(questions):,} searches failed; the first: {failed[0].reason}")
    return [outcome.value for outcome in outcomes if outcome.value is not None]


def mined(question: Question, k: int) -> Algorithm[Question]:
    """The question with hops, or as it came; `k`: passages that a search returns to the agent."""
    if question.hops or not question.answers or _says_nothing(question):
        return question
    first, second = yield [
        Retrieve(question.text, max(k, BEGINNINGS)),
        Retrieve(f"{question.text} {question.answers[0]}", ENDS),
    ]
    direct = [passage for passage in first[:k] if mentions(question.answers, (passage,))]
    # Of what the question names, the answer may be said at once. Where it stands in a passage about something else,
    # that is more likely to be found by way of what the question names.
    named = [passage for passage in direct if is_named(question.text, passage.title)]
    if not named:
        ends = [passage for passage in (*first, *second) if mentions(question.answers, (passage,))]
        for begin in sorted(first, key=lambda passage: not is_named(question.text, passage.title)):
            for end in ends:
                if hops := _way(question, begin, end):
                    return _with(question, hops)
    if found := named or direct:
        return _with(question, (Hop(question.text, question.answers[0], tuple(each.id for each in found)),))
    return question


def _says_nothing(question: Question) -> bool:
    """Whether an answer stands in many texts, or in the question itself, which then asks to choose."""
    answer = question.answers[0]
    return answer.lower() in _ANYWHERE or is_named(question.text, answer)


def _way(question: Question, begin: Passage, end: Passage) -> Sequence[Hop]:
    if begin.id == end.id or begin.title == end.title:
        return ()
    golds = [GoldPassage(passage.title, (passage.id,), passage.text) for passage in (begin, end)]
    hops = chain_hops(question.text, question.answers, golds, "bridge")
    return hops if len(hops) == 2 and hops[0].passages == (begin.id,) else ()


def _with(question: Question, hops: Sequence[Hop]) -> Question:
    return replace(question, hops=tuple(hops), gold_passages=tuple(hop.passages for hop in hops))
