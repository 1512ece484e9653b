"""Keep with a question what identifies its gold passages in other indexes.

In: a question, and what its data set says about gold passages: titles, texts, supporting sentences. Out: the question
with `GoldText`s: those of a hop show its answer, those of passages that belong to no hop the answer to the question.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from stepladder.core.questions.excerpts import contains_any, gold_text, words_of
from stepladder.core.trace import GoldText, Question
from stepladder.data.decompositions.gold_passages import GoldPassage

#: Most ids of a gold passage that are described. An article may be cut into hundreds of one title, any of which counts
#: where only the title is annotated; questions are stored in every trajectory.
_MOST = 8


def by_id(golds: Iterable[GoldPassage]) -> dict[str, GoldPassage]:
    """Gold passages by each of their ids."""
    return {each: gold for gold in golds for each in gold.ids}


def with_gold_texts(question: Question, known: Mapping[str, GoldPassage]) -> Question:
    """The question, with what is known about its gold passages. `known`: by id."""
    hops = tuple(
        replace(hop, gold_texts=_texts(hop.passages, known, (hop.answer, *hop.aliases), hop.question))
        for hop in question.hops
    )
    in_hops = {each for hop in hops for each in hop.passages}
    others = [[each for each in group if each not in in_hops] for group in question.gold_passages]
    texts = (text for group in others for text in _texts(group, known, question.answers, question.text))
    return replace(question, hops=hops, gold_texts=tuple({text.id: text for text in texts}.values()))


def _texts(
    ids: Sequence[str], known: Mapping[str, GoldPassage], answers: Sequence[str], about: str
) -> tuple[GoldText, ...]:
    described = [(each, gold) for each in ids if (gold := known.get(each)) is not None and (gold.title or gold.text)]
    if len(described) > _MOST:  # those that state the answer first
        described.sort(key=lambda each: not contains_any(words_of(each[1].text), answers))
    return tuple(
        gold_text(each, gold.title, gold.text, answers, gold.supporting, about) for each, gold in described[:_MOST]
    )
