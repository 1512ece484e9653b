"""Gold matching: is a found passage one of a question's gold passages, whatever the index calls it?

In: a question or the gold passages of a hop, and passages found in any index. Out: booleans. The oracle, the gold
judge, recall metrics and weak decompositions all use this module. A passage is recognized

    by id       in the data set's own corpus. In another index the same id may be another passage: the id counts only
                if title and text do not contradict it
    by title    equal except for case, accents, a leading article, and a suffix in brackets that only one of them has.
                Articles are cut into many passages of one title, so the text decides where it is known. Where it is
                not, the passage must contain the answer
    by text     it contains enough of an excerpt of the gold passage, in sequences of three words, and the answer if the
                excerpt has it. So it does not matter how the other corpus cut the article: of two halves of a gold
                passage, the one with the answer counts. If a title differs or is missing, the excerpt must be nearly
                complete, except for what a cut took away, and with the name of the gold passage if it has that:
                articles about two villages of one district have the same words

`excerpts.py` makes the excerpts. Gold passages of which only the id is known are compared by id.
"""

import html
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from stepladder.core.questions.excerpts import contains_any, is_name, words_of
from stepladder.core.questions.question import GoldText, Hop, Question

if TYPE_CHECKING:
    from stepladder.core.trace import Passage

#: Share of an excerpt's three-word sequences that a passage must contain: with the same id and title, with the same
#: title, with a similar one, without titles, with different titles.
_SAME_ID, _SAME_TITLE, _LIKE_TITLE, _NO_TITLE, _OTHER_TITLE = 0.25, 0.4, 0.5, 0.6, 0.8
#: Sequences of an excerpt that are needed to recognize a passage whose title differs or is missing: "It was directed by
#: Ada Orm" is in many passages.
_DISTINCT = 8
#: From this share on, the answer in an excerpt is there too, or only spelled differently.
_COMPLETE = 0.85
#: Longest text whose comparisons are cached: 4096 of them take at most 16 MB.
_CACHED = 4000
_SUFFIX = re.compile(r"\s*\([^()]*\)\s*$")
_PART = re.compile(r"\s*[:>|/#]\s*")
_ARTICLES = ("the ", "a ", "an ")


# --- Questions ------------------------------------------------------------------------------------------


def gold_found(question: Question, found: Sequence["Passage"]) -> tuple[bool, ...]:
    """For each gold passage of a question, whether it is among the found passages."""
    texts = [(text, question.answers) for text in question.gold_texts]
    texts += [(text, _answers(hop)) for hop in question.hops for text in hop.gold_texts]
    return tuple(
        _is_found(group, [(text, answers) for text, answers in texts if text.id in group], found)
        for group in question.gold_passages
    )


def hop_found(hop: Hop, found: Sequence["Passage"]) -> bool:
    """Whether a gold passage of a hop is among the found passages."""
    return _is_found(hop.passages, [(text, _answers(hop)) for text in hop.gold_texts], found)


def _answers(hop: Hop) -> tuple[str, ...]:
    return (hop.answer, *hop.aliases)


def _is_found(
    ids: Sequence[str], texts: Sequence[tuple[GoldText, tuple[str, ...]]], found: Sequence["Passage"]
) -> bool:
    described = {text.id for text, _ in texts}
    return any(
        (passage.id in ids and passage.id not in described)
        or any(is_gold(passage, text, answers) for text, answers in texts)
        for passage in found
    )


# --- Passages -------------------------------------------------------------------------------------------


def is_gold(passage: "Passage", gold: GoldText, answers: tuple[str, ...] = ()) -> bool:
    """Whether a passage of any index is a gold passage, or the part of it that states one of the answers."""
    cached = _has_text if gold.excerpts else _has_title
    compare = cached if len(passage.text) <= _CACHED else cached.__wrapped__
    return compare(gold, answers, passage.title, passage.text, passage.id == gold.id)


@lru_cache(maxsize=4096)  # the branches of a tree retrieve the same passages again and again
def _has_text(gold: GoldText, answers: tuple[str, ...], title: str, text: str, same_id: bool) -> bool:
    """Whether a title and a text are those of a gold passage, or of the part that states one of the answers."""
    needed = _needed(gold.title, title)
    if same_id and needed in (_SAME_TITLE, _NO_TITLE):
        needed = _SAME_ID
    text = f" {' '.join(words_of(text))} "
    stating = _stating(gold, answers)
    for excerpt in stating or gold.excerpts:
        if needed > _LIKE_TITLE and len(_sequences(excerpt)) < _DISTINCT:
            continue
        share = _share(excerpt, text, needed)
        if (
            share >= needed
            and (share >= _COMPLETE or same_id or not stating or contains_any(text.split(), answers))
            and (needed <= _LIKE_TITLE or _differs_by_a_cut(gold.title, excerpt, title, text))
        ):
            return True
    return False


def _differs_by_a_cut(gold_title: str, excerpt: str, title: str, text: str) -> bool:
    """Whether a passage lacks nothing of an excerpt but what is before its first or after its last words."""
    sequences, words = _sequences(excerpt), text.split()
    first, last = (f" {' '.join(each)} " for each in (words[:3], words[-3:]))
    start = sequences.index(first) if first in sequences else 0
    end = sequences.index(last) + 1 if last in sequences[start:] else len(sequences)
    share = sum(each in text for each in sequences[start:end]) / (end - start)
    name, other = (f" {_name(_SUFFIX.sub('', each))} " for each in (gold_title, title))
    if name in text or name in other:
        return share >= _OTHER_TITLE
    # The text does not name what the gold passage is about: where it should, or where it names something else, it is
    # about that.
    part = f" {' '.join(words_of(excerpt)[start : end + 2])} "
    return name not in part and share >= (1 if other in text and other not in part else _OTHER_TITLE)


@lru_cache(maxsize=4096)
def _has_title(gold: GoldText, answers: tuple[str, ...], title: str, text: str, same_id: bool) -> bool:
    """Whether a passage is a gold passage of which at most the title is known."""
    if not gold.title or not title:
        return same_id
    needed = _needed(gold.title, title)
    if same_id or needed == _OTHER_TITLE:
        return needed != _OTHER_TITLE
    checkable = any(map(is_name, answers))
    states = checkable and contains_any(words_of(f"{title} {text}"), answers)
    if needed == _SAME_TITLE:
        return states or not checkable
    return states and _name(_SUFFIX.sub("", gold.title)) == _name(_SUFFIX.sub("", title))


@lru_cache(maxsize=8192)
def _needed(gold_title: str, title: str) -> float:
    """The share of an excerpt that a passage with this title must contain."""
    one, other = _name(gold_title), _name(title)
    if not one or not other:
        return _NO_TITLE
    if one == other:
        return _SAME_TITLE
    bare = [_name(_SUFFIX.sub("", each)) for each in (gold_title, title)]
    one_suffix = (bare[0] == one) != (bare[1] == other)  # "Rain (1932 film)" and "Rain (song)" are two things
    if (bare[0] == bare[1] and one_suffix) or one in map(_name, _PART.split(title)):  # "Orla: History", "wiki/Orla#2"
        return _LIKE_TITLE
    return _OTHER_TITLE


def _name(title: str) -> str:
    """A title without case, accents, punctuation and a leading article.

    >>> _name('The "Orléans_Bridge" (1760)'), _name("The The")
    ('orleans bridge 1760', 'the')
    """
    name = " ".join(words_of(html.unescape(title)))
    return next((name[len(each) :] for each in _ARTICLES if name.startswith(each)), name)


def _share(excerpt: str, text: str, needed: float) -> float:
    """The share of an excerpt's three-word sequences in a normalized text; 0 as soon as it must be below `needed`."""
    sequences = _sequences(excerpt)
    spare = int(len(sequences) * (1 - needed))
    hits = 0
    for number, sequence in enumerate(sequences, start=1):
        hits += sequence in text
        if number - hits > spare:
            return 0.0
    return hits / len(sequences) if sequences else 0.0


@lru_cache(maxsize=4096)
def _sequences(excerpt: str) -> tuple[str, ...]:
    words = words_of(excerpt)
    return tuple(f" {' '.join(words[start : start + 3])} " for start in range(max(len(words) - 2, min(len(words), 1))))


@lru_cache(maxsize=4096)
def _stating(gold: GoldText, answers: tuple[str, ...]) -> tuple[str, ...]:
    """The excerpts that contain one of the answers; none if the title does, since every part is then about it."""
    if contains_any(words_of(gold.title), answers):
        return ()
    return tuple(each for each in gold.excerpts if contains_any(words_of(each), answers))
