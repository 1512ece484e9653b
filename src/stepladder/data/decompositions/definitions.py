"""What the text of an encyclopedia's passage says its subject is.

In: texts. Out: their first sentence, shortened sentences, the kind of thing described.
"""

import re

#: A full stop that ends a sentence, and not an initial or a common abbreviation.
_END = re.compile(
    r"(?<!\b[A-Z])(?<!\b(?:Dr|Mr|Ms|St|Jr|Sr|vs|no|No|Co))(?<!\b(?:Mrs|Inc|Ltd|née))[.!?][\"”')]*(?=\s+[\"“'(A-Z0-9])"
)
_IS = re.compile(r"\b(?:is|was|are|were) (?:an?|the|one of the|any of the) ([^.;:]+)")


def _listed(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NOT_ADJECTIVES = _listed("a an the of in for that who which by from and with on at to or is was as")
#: Nouns for what an encyclopedia is about.
_KINDS = _listed(
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
#: A sub-answer should be read at a glance.
_WORDS = 30


def first_sentence(text: str) -> str:
    """How a text begins.

    >>> first_sentence("J. R. Orm (born 1900) was a painter. He lived in Velm.")
    'J. R. Orm (born 1900) was a painter.'
    """
    found = _END.search(text)
    return text[: found.end()] if found else text


def shortened(sentence: str) -> str:
    """A sentence cut to a length that can be read at a glance, without its full stop."""
    parts = sentence.split()
    cut = " ".join(parts[:_WORDS])
    return f"{cut.rstrip(' ,;:')} ..." if len(parts) > _WORDS else cut.rstrip(" .")


def kind_of_thing(text: str) -> str:
    """The noun for what a passage is about; empty when its first sentence does not tell.

    >>> kind_of_thing("Ada Orm (born 1900) was a Velmish film director and painter.")
    'director'
    """
    return next(reversed(_described(text)), "")


def described(text: str) -> str:
    """That noun with what stands before it, in at most three words; empty when the first sentence does not tell.

    >>> described("Ada Orm (born 1900) was a Velmish film director and painter.")
    'Velmish film director'
    """
    return " ".join(_described(text)[-3:])


def _described(text: str) -> list[str]:
    found = _IS.search(first_sentence(text))
    said: list[str] = []
    for word in re.findall(r"[\w'’-]+|[,(]", found[1]) if found else ():
        if word.lower() in _KINDS:
            said.append(word)
        elif said and said[-1].lower() in _KINDS:
            break  # "film director": the last of several nouns says it
        elif word in _NOT_ADJECTIVES or word in ",(":
            said = []
        else:
            said.append(word)
    return said if said and said[-1].lower() in _KINDS else []


def is_person(text: str) -> bool:
    """Whether a passage speaks of its subject as of a person."""
    return _PERSON.search(text) is not None
