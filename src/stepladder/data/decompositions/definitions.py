"""Extract the definition of a subject from the text of an encyclopedia passage.

In: texts. Out: first sentences, truncated sentences, and the noun that says what the subject is.
"""

import re

#: The end of a sentence. A period after an initial or a common abbreviation does not count.
_END = re.compile(
    r"(?<!\b[A-Z])(?<!\b(?:Dr|Mr|Ms|St|Jr|Sr|vs|no|No|Co))(?<!\b(?:Mrs|Inc|Ltd|née))[.!?][\"”')]*(?=\s+[\"“'(A-Z0-9])"
)
_IS = re.compile(r"\b(?:is|was|are|were) (?:an?|the|one of the|any of the) ([^.;:]+)")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NOT_ADJECTIVES = _words("a an the of in for that who which by from and with on at to or is was as")
#: Nouns for the subjects of encyclopedia articles.
_KINDS = _words(
    """actor actress director filmmaker producer screenwriter writer author novelist poet playwright journalist critic
    singer songwriter musician rapper composer guitarist drummer pianist violinist conductor dancer model comedian
    entertainer painter artist sculptor photographer designer architect footballer player quarterback wrestler boxer
    golfer swimmer racer driver cyclist coach manager politician statesman lawyer judge soldier general officer
    admiral king queen prince princess emperor duke noble president minister governor mayor senator businessman
    businesswoman entrepreneur executive scientist physicist chemist biologist mathematician engineer inventor
    astronaut explorer historian philosopher theologian economist psychologist professor chef priest bishop saint
    activist killer gangster hacktivist host presenter film movie series sitcom show episode drama musical opera play
    song single album band duo group orchestra novel book story comic magazine newspaper journal game character
    company corporation brand manufacturer retailer publisher studio label network channel station bank airline
    airport aircraft ship submarine organization organisation party team club league tournament championship festival
    award prize school university college institute museum library theatre theater stadium arena hotel casino
    restaurant church temple castle palace bridge tower building skyscraper park zoo river lake island mountain valley
    sea county district province state country nation city town village suburb neighborhood neighbourhood municipality
    community region territory colony kingdom empire war battle conflict campaign treaty act breed species genus plant
    fruit dish cheese beverage language dialect religion sport instrument software website system disease drug mineral
    road highway motorway railway vehicle car locomotive weapon missile rifle"""
)
_PERSON = re.compile(r"\(\s?born\b|\b(?:he|she|his|her|him)\b", re.IGNORECASE)
#: Most words of a sub-answer.
_MAX_WORDS = 30


def first_sentence(text: str) -> str:
    """The first sentence of a text.

    >>> first_sentence("J. R. Orm (born 1900) was a painter. He lived in Velm.")
    'J. R. Orm (born 1900) was a painter.'
    """
    found = _END.search(text)
    return text[: found.end()] if found else text


def truncated(sentence: str) -> str:
    """A sentence truncated to 30 words, without its period."""
    parts = sentence.split()
    head = " ".join(parts[:_MAX_WORDS])
    return f"{head.rstrip(' ,;:')} ..." if len(parts) > _MAX_WORDS else head.rstrip(" .")


def head_noun(text: str) -> str:
    """The noun for the subject of a passage; empty if the first sentence has none.

    >>> head_noun("Ada Orm (born 1900) was a Velmish film director and painter.")
    'director'
    """
    return next(reversed(_noun_phrase(text)), "")


def noun_phrase(text: str) -> str:
    """The noun for the subject with the words before it, at most three words; empty if the first sentence has none.

    >>> noun_phrase("Ada Orm (born 1900) was a Velmish film director and painter.")
    'Velmish film director'
    """
    return " ".join(_noun_phrase(text)[-3:])


def _noun_phrase(text: str) -> list[str]:
    definition = _IS.search(first_sentence(text))
    phrase: list[str] = []
    for word in re.findall(r"[\w'’-]+|[,(]", definition[1]) if definition else ():
        if word.lower() in _KINDS:
            phrase.append(word)
        elif phrase and phrase[-1].lower() in _KINDS:
            break  # "film director": the last of several nouns is the head
        elif word in _NOT_ADJECTIVES or word in ",(":
            phrase = []
        else:
            phrase.append(word)
    return phrase if phrase and phrase[-1].lower() in _KINDS else []


def is_person(text: str) -> bool:
    """Whether the subject of a passage is a person."""
    return _PERSON.search(text) is not None
