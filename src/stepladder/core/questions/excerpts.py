"""Excerpts: the few words of a gold passage by which it is recognized in any index.

In: the title and text of a gold passage, what it states, its annotated sentences. Out: a `GoldText` with windows of
some 25 words around the answer, in the supporting sentences if these are annotated; without the answer, these sentences
or the first words. Also how texts are normalized for comparison, and whether they contain an answer.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import accumulate

from stepladder.core.questions.question import GoldText

#: Words of an excerpt before and after the answer, words of an excerpt without it, and most excerpts of a passage.
_AROUND, _HEAD, _MOST = 12, 25, 3
#: Answers with more words are sentences, which other corpora may word differently.
_NAME_WORDS = 8
_NOT_IN_TEXTS = frozenset({"yes", "no", "true", "false"})

#: Characters of scripts without spaces count as words.
_NO_SPACES = "\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(rf"[{_NO_SPACES}]|[^\W_{_NO_SPACES}]+")
#: What excerpts are cut between, with the whitespace after it.
_TOKEN = re.compile(rf"(?:[{_NO_SPACES}]|[^\s{_NO_SPACES}]+)\s*")

#: A part of a text: first token, end.
_Window = tuple[int, int]
#: The normalized words of every token of a text.
_Tokens = list[list[str]]


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case and without accents.

    >>> words_of("Orléans, in 1760")
    ['orleans', 'in', '1760']
    """
    if not text.isascii():
        text = "".join(each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))
    return _WORD.findall(text.lower())


def is_name(answer: str) -> bool:
    """Whether texts can be searched for an answer: it is neither a sentence nor yes or no."""
    return 0 < len(words_of(answer)) <= _NAME_WORDS and answer.strip().lower() not in _NOT_IN_TEXTS


def contains_any(words: Sequence[str], answers: Iterable[str]) -> bool:
    """Whether normalized words contain an answer: in order or, as in dates, close together."""
    tokens = [[word] for word in words]
    return any(is_name(answer) and _spans(tokens, answer) for answer in answers)


def gold_text(
    passage_id: str, title: str, text: str = "", answers: Sequence[str] = (), supporting: str = "", about: str = ""
) -> GoldText:
    """What identifies a gold passage. `answers`: what it states. Its annotated sentences (`supporting`) and the
    question that it answers (`about`) decide between several places of the answer.

    >>> gold_text("p1", "Orla", "Orla is a town. Its bridge was designed by Ena Voss.", ["Ena Voss"]).excerpts
    ('Orla is a town. Its bridge was designed by Ena Voss.',)
    """
    source = _TOKEN.findall(text.strip() or supporting)
    plain = map(str.rstrip, source)
    tokens = [[token.lower()] if token.isascii() and token.isalnum() else words_of(token) for token in plain]
    if not any(tokens):
        return GoldText(passage_id, title)
    titled = words_of(title)
    wanted = set(words_of(f"{about} {supporting}")).difference(titled)
    places = next(filter(None, (_spans(tokens, answer) for answer in answers if is_name(answer))), [])
    windows = [(max(first - _AROUND, 0), last + _AROUND) for first, last in places]
    if not windows:  # the answer is a sentence, or stated in other words
        sentences = {word for answer in answers if not is_name(answer) for word in words_of(answer)}
        windows = [_nearest(tokens, sentences or set(words_of(supporting)))]
    elif contains_any(titled, answers):  # every part of the passage is about the answer
        windows.append(_nearest(tokens, wanted))
    chosen = _chosen(tokens, windows, wanted, 1 if supporting.strip() else _MOST)
    return GoldText(passage_id, title, tuple(" ".join("".join(source[start:end]).split()) for start, end in chosen))


def _chosen(tokens: _Tokens, windows: Sequence[_Window], wanted: set[str], most: int) -> list[_Window]:
    """The windows that share most of the wanted words, in the order of the text, without overlaps."""
    shared = {
        (start, end): len(wanted.intersection(word for token in tokens[start:end] for word in token))
        for start, end in windows
    }
    chosen: list[_Window] = []
    for start, end in sorted(shared, key=lambda window: (-shared[window], window)):
        middle = (start + end) // 2
        if len(chosen) < most and all(not first <= middle < last for first, last in chosen):
            chosen.append((start, end))
    return sorted(chosen)


def _nearest(tokens: _Tokens, wanted: set[str]) -> _Window:
    """The first of the windows with most of the wanted words, repeats counted."""
    hits = [0, *accumulate(not wanted.isdisjoint(token) for token in tokens)]
    starts = range(max(len(tokens) - _HEAD, 0) + 1)
    start = max(starts, key=lambda start: hits[min(start + _HEAD, len(tokens))] - hits[start])
    return start, start + _HEAD


def _spans(tokens: _Tokens, answer: str) -> list[_Window]:
    """Where a text contains an answer: in order or, if it does so nowhere, its words within two more."""
    wanted = words_of(answer)
    words = [(word, number) for number, token in enumerate(tokens) for word in token]
    plain = [word for word, _ in words]
    if not set(wanted) <= set(plain):
        return []
    starts = [number for number, word in enumerate(plain) if word in wanted]
    size = len(wanted)
    if not (found := [start for start in starts if plain[start : start + size] == wanted]):
        size += 2
        found = [start for start in starts if set(wanted) <= set(plain[start : start + size])]
    return [(words[start][1], words[min(start + size, len(words)) - 1][1] + 1) for start in found]
