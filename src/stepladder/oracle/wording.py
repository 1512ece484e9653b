"""Parsing of questions: their names, the kind of answer, and the words of the relation.

In: texts. Out: tuples of lower-case words in which names can be masked (`mask_name`), and `Wording`: the relation and
the kind of answer of a masked text, to be compared by `word_overlap`.

    >>> words_of("Where was the painter Ada Orm born?")
    ('where', 'was', 'the', 'painter', 'ada', 'orm', 'born')
    >>> mask_name(_, [("ada", "orm")])
    ('where', 'was', 'the', 'painter', '@', 'born')
    >>> parse_wording(_)
    Wording(words=('born',), kind='where')
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from stepladder.oracle.lexicon import (
    COMPOUNDS,
    KIND_OF,
    PHRASES,
    RELATION_NOUNS,
    STOP_WORDS,
    WEAK_WORDS,
    same_word,
    stem,
)

Words = tuple[str, ...]

#: The mask of a name.
NAME = "@"
_WORD = re.compile(r"#\d+|\w+")
_POSSESSIVE = re.compile(r"['’]s?(?!\w)|(?<!\w)['’]")
_ARTICLES = frozenset({"the", "a", "an"})
#: Function words inside names: Letters to Zhenul, Storm over Weka.
_LINKING = _ARTICLES.union(
    ["of", "to", "and", "in", "for", "on", "at", "over", "with", "from", "de", "la", "von", "van", "di"]
)
#: Words before a period that is an answer: "before World War I".
_TIME_WORDS = frozenset({"before", "after", "since", "until", "early", "late"})
_COPULAS = frozenset({"is", "was", "are", "were"})
#: First words of questions for yes or no.
_YES_NO = _COPULAS | {"do", "does", "did", "has", "have", "had", "can"}
_DOES = frozenset({"did", "does", "do"})
_QUESTION_WORDS = {"who": "who", "whom": "who", "where": "where", "when": "time", "why": "reason"}
_ALL_QUESTION_WORDS = frozenset({*_QUESTION_WORDS, "how", "which", "what", "whose"})
#: What follows "how" if the question is not for a number: "How old" asks for a date, "How did" for a reason.
_HOW = {"old": "time", **dict.fromkeys(("is", "are", "was", "were", "do", "does", "did"), "reason")}
#: The first words of phrases.
_PHRASE_STARTS = frozenset(first for first, _ in PHRASES)
#: The words for "Where is Ada Orm from?" and "What is Rain about?".
ORIGIN, _SUBJECT = "origin", "subject"
_SMALL = "|".join(sorted(STOP_WORDS))
_CLASSES = "|".join(sorted(noun for noun in KIND_OF.keys() - RELATION_NOUNS if KIND_OF[noun] != "reason"))
#: Appositions of a name: the painter @, the football club @, the city of @.
_APPOSITION = re.compile(
    rf"\bthe (?:(?:{_CLASSES}) of"
    rf"|(?!(?:{_SMALL})\b)\w+(?: (?!(?:{_SMALL})\b)\w+)?)(?: the)? {NAME}"
    r"|(?<!which )(?<!what )\b(?:director|singer|musician|composer|writer|author|painter|architect|actor|actress|king"
    rf"|queen) {NAME}"
)
#: What a thing is, after its name: @ magazine, @ district.
_CLASS_AFTER_NAME = re.compile(
    rf"{NAME} (?:magazine|newspaper|journal|film|movie|series|album|song|band|group|club|team|company|brand"
    rf"|university|college|school|museum|river|lake|mountain|city|town|village|district|county|state|region|island|hotel"
    rf"|game|book|novel|opera)\b"
)
_YEAR = re.compile(r"(?:1?\d{3}|20\d\d)(?:\s?[-–]\s?\d{2,4})?")
_MONTH = re.compile(r"january|february|march|april|may|june|july|august|september|october|november|december")
#: What an answer to "when" or "how many" contains.
_NUMBER = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|hundred|thousand"
    r"|million|billion|once|twice|\w+(?:teen|eenth)|first|second|third|\w+[fxvn]th|none|several|many)\b"
)
_TIME = re.compile(
    rf"{_NUMBER.pattern}|{_MONTH.pattern}|\b(?:century|era|age|period|war|reign|during|after|before|until|since|day"
    r"|summer|winter|spring|autumn)\b"
)


@dataclass(frozen=True, slots=True)
class Wording:
    """The question of a text without its names."""

    #: Stems of the relation words, in order.
    words: Words
    #: The kind of answer; None if the text does not show it.
    kind: str | None


def words_of(text: str) -> Words:
    """The words of a text in lower case, without accents and possessives; compounds are split."""
    words = tuple(word for found in _WORD.findall(_plain(text).lower()) for word in COMPOUNDS.get(found, (found,)))
    return words if _PHRASE_STARTS.isdisjoint(words) else _with_phrases(words)


def _with_phrases(words: Words) -> Words:
    joined: list[str] = []
    for word in words:
        if joined and (joined[-1], word) in PHRASES:
            joined[-1] = PHRASES[joined[-1], word]
        else:
            joined.append(word)
    return tuple(joined)


def _plain(text: str) -> str:
    if text.isascii():
        return _POSSESSIVE.sub("", text)
    decomposed = unicodedata.normalize("NFKD", text)
    return _POSSESSIVE.sub("", "".join(char for char in decomposed if not unicodedata.combining(char)))


def name_words(name: str) -> Words:
    """The words of a name, without an article in front."""
    words = words_of(name)
    return words[1:] if len(words) > 1 and words[0] in _ARTICLES else words


def names_in(text: str) -> list[Words]:
    """The names in a text: runs of capitalized words and numbers, with function words inside.

    >>> names_in("Who composed the music for The Road to Noneloka?")
    [('road', 'to', 'noneloka')]
    """
    spans: list[list[str]] = []
    links: list[str] | None = None  # function words since the last word of a name; None outside of names
    for index, word in enumerate(_WORD.findall(_plain(text))):
        small = word.lower()
        if (word[0].isupper() or word[0].isdigit()) and not (index == 0 and small in STOP_WORDS):
            if links is None:
                spans.append([small])
            else:
                spans[-1] += [*links, small]
            links = []
        elif links is not None and small in _LINKING:
            links.append(small)
        else:
            links = None
    return [name_words(" ".join(span)) for span in spans]


def mask_name(words: Words, spellings: Sequence[Words]) -> Words | None:
    """The words with a name masked, in any of its spellings; None if the name does not occur."""
    for spelling in sorted(spellings, key=len, reverse=True):
        for start in range(len(words) - len(spelling) + 1):
            if words[start : start + len(spelling)] == spelling:
                return (*words[:start], NAME, *words[start + len(spelling) :])
    for spelling in spellings:
        parts = set(spelling) - STOP_WORDS - _TIME_WORDS
        if parts and parts.issubset(words):
            return tuple(NAME if word in parts else word for word in words)
        if parts and {stem(part) for part in parts} <= (stems := {stem(word) for word in words}):
            return tuple(NAME if stem(word) in stems & {stem(part) for part in parts} else word for word in words)
    return None


def parse_wording(masked: Words) -> Wording:
    """The relation and the kind of answer of masked words."""
    once = [word for index, word in enumerate(masked) if word != NAME or masked[index - 1 : index] != (NAME,)]
    words = tuple(_APPOSITION.sub(NAME, " ".join(once)).split())
    if words[-1:] == ("from",):
        words = (*words[:-1], ORIGIN)
    elif words[-1:] == ("about",):
        words = (*words[:-1], _SUBJECT)
    if not _ALL_QUESTION_WORDS.isdisjoint(words):  # "Who founded Rain magazine?", but not "Rain magazine"
        words = tuple(_CLASS_AFTER_NAME.sub(NAME, " ".join(words)).split())
    if words in (("who", "is", NAME), ("who", "was", NAME)):
        return Wording((), None)  # asks for anything about it
    return Wording(content_words(words), _kind(words))


def content_words(words: Words) -> Words:
    """Stems of the relation words: no names, no stop words, no mere kinds of answer."""
    return tuple(
        stem(word)
        for word in words
        if word != NAME and word not in STOP_WORDS and (word not in KIND_OF or word in RELATION_NOUNS)
    )


def _kind(words: Words) -> str | None:
    """The kind of answer that masked words ask for; None if they do not show it."""
    if words[:1] and words[0] in _YES_NO:
        return None
    if words[:1] == ("what",) and words[1:2] and words[1] in _DOES:  # not a person, a place or a date
        return "thing"
    if _ALL_QUESTION_WORDS.isdisjoint(words):
        return _kind_of_keywords(words)
    for index, word in enumerate(words):
        if word in KIND_OF:  # "the city where", "birth date of": a noun instead of a question
            return KIND_OF[word]
        if word in _ALL_QUESTION_WORDS and word != "whose":
            return _asked_kind(word, words[index + 1 :])
    return None


def _asked_kind(word: str, rest: Words) -> str | None:
    """The kind of answer of a question word and what follows it."""
    if word == "how":
        return _HOW.get(rest[0], "quantity") if rest else None
    if word in _QUESTION_WORDS:
        return _QUESTION_WORDS[word]
    is_what = bool(rest) and rest[0] in _COPULAS  # "what is the nearest city", not "which city is"
    if is_what:
        rest = rest[2:] if rest[1:2] and rest[1] in (*_ARTICLES, NAME) else rest[1:]
    noun = rest[: next((n for n, each in enumerate(rest) if each in STOP_WORDS or each == NAME), len(rest))]
    kinds = [KIND_OF[each] for each in noun if each in KIND_OF]
    return kinds[-1 if is_what else 0] if kinds else None


def _kind_of_keywords(words: Words) -> str | None:
    """The last noun that names a kind: "@ director birth year". With "of", the one before it: "date of birth"."""
    head = words[: words.index("of")] if "of" in words else words
    for part in (head, words):
        if kinds := [KIND_OF[word] for word in part if word in KIND_OF]:
            return kinds[-1]
    return None


def without_subject(words: Words) -> Words:
    """A comparison without the noun that says what is compared: "Which film director is older, ..."."""
    if words[:1] != ("which",):
        return words
    end = next((index for index, word in enumerate(words[1:], start=1) if word in STOP_WORDS), 0)
    return words[end:] if end and words[end] in _COPULAS | {"has", "have", "had", "released"} else words


def question_kind(text: str) -> str | None:
    """The kind of answer of a whole question, which may begin with a description: "The man who ... in what year?"

    >>> question_kind("The director who made Rain was born in what year?"), question_kind("Who made Rain?")
    ('time', 'who')
    """
    words = words_of(text)
    for asked in (("what", "which", "when", "where", "how"), ("who", "whom")):
        for index, word in enumerate(words):
            # "the film in which", "the year when": not a question
            relative = word in ("which", "when", "where") and index > 1 and words[index - 1] not in _LINKING | _COPULAS
            described = word == "which" and index > 1 and words[index - 2] in KIND_OF
            if word in asked and not relative and not described:
                return _asked_kind(word, words[index + 1 :])
    return None


def may_answer(kind: str | None, answer: str) -> bool:
    """Whether an answer can be of a kind, as far as its text shows it: a date and a number contain a number.

    >>> may_answer("time", "4 May 1900"), may_answer("time", "Velm"), may_answer("who", "4 May 1900")
    (True, False, False)
    """
    text = answer.lower()
    if kind in ("time", "quantity"):
        return (_TIME if kind == "time" else _NUMBER).search(text) is not None
    return kind is None or kind_of_answer(answer) is None


def kind_of_answer(answer: str) -> str | None:
    """The kind of an answer as far as its text shows it: a date or a number.

    >>> kind_of_answer("4 May 1900"), kind_of_answer("917 metres"), kind_of_answer("Velm")
    ('time', 'quantity', None)
    """
    text, words = answer.strip().lower(), words_of(answer)
    if _YEAR.fullmatch(text) or (_MONTH.search(text) and any(map(str.isdigit, words))):
        return "time"
    return "quantity" if words and words[0].isdigit() and len(words) <= 3 else None


# --- comparison ------------------------------------------------------------------------------------------


def weight(words: Sequence[str]) -> float:
    """The total weight of words; words that many relations share count half."""
    return sum(0.5 if word in WEAK_WORDS else 1.0 for word in words)


def take_matches(wanted: Sequence[str], left: list[str]) -> float:
    """Remove the wanted words, or synonyms of them, from `left`; returns the weight of those found."""
    taken = 0.0
    for word in wanted:
        match = next((other for other in left if same_word(word, other)), None)
        if match is not None:
            left.remove(match)
            taken += min(weight([word]), weight([match]))
    return taken


def word_overlap(some: Sequence[str], others: Sequence[str]) -> float:
    """The weighted F1 of the words of two texts, from 0 to 1; synonyms count as equal."""
    total = weight(some) + weight(others)
    return 2 * take_matches(some, list(others)) / total if total else 0.0
