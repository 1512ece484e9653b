"""Patterns of English: definitions in encyclopedia passages, and questions that describe an entity.

In: texts. Out: first sentences, truncated sentences, and the noun that says what the subject of a passage is; the two
questions into which a question that describes one entity by another can be split.
"""

import re
from pathlib import Path

from stepladder.core.io.yaml_tables import read_table

#: The end of a sentence. A period after an initial or a common abbreviation does not count.
_END = re.compile(
    r"(?<!\b[A-Z])(?<!\b(?:Dr|Mr|Ms|St|Jr|Sr|vs|no|No|Co))(?<!\b(?:Mrs|Inc|Ltd|née))[.!?][\"”')]*(?=\s+[\"“'(A-Z0-9])"
)
_IS = re.compile(r"\b(?:is|was|are|were) (?:an?|the|one of the|any of the) ([^.;:]+)")
_TABLE: dict[str, str] = read_table(Path(__file__).with_suffix(".yaml"))
_NOT_ADJECTIVES = frozenset(_TABLE["not_adjectives"].split())
#: Nouns for the subjects of encyclopedia articles.
_KINDS = frozenset(_TABLE["kinds"].split())
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


def question_word(text: str) -> str:
    """Who if the subject of a passage is a person, else What."""
    return "Who" if _PERSON.search(text) else "What"


_NOUN = r"(?:(?!(?:the|an?|of|which|what|who|whom|whose|that|and|or)\b)[\w'’-]+ )"
_QUESTION_WORD = re.compile(r"\b(?:what|which|where|when|who|whom|whose|how)\b", re.IGNORECASE)
_PEOPLE = frozenset({"man", "woman", "person", "individual", "actor", "actress", "star", "brother", "sister", "author"})
_SYNONYMS = {"movie": ("film", "movie"), "author": ("writer", "novelist", "author"), "show": ("series", "show")}
_COPULA = re.compile(r"\b(?:is|was|are|were|as)\s*$", re.IGNORECASE)
_INVERTED = re.compile(r"(?:\w+ )?(?:what|which|where|when|how)\b[^,]{0,30}$", re.IGNORECASE)


def split_question(text: str, name: str, about: str, who: str) -> tuple[str, str] | None:
    """Split a question that describes one entity by another one, which it names; None if no pattern matches.

    The result is a question for the described entity, and the question about that entity, in which `#1` stands for it.
    `about` is a text about the described entity; `who` is its question word, Who or What.

    >>> split_question("When was the pianist who recorded Live at Orm born?", "Live at Orm", "Ada is a pianist.", "Who")
    ('Who is the pianist who recorded Live at Orm?', 'When was #1 born?')
    >>> split_question("Orm was founded by a candlemaker who died in what year?", "Orm", "A candlemaker.", "Who")
    ('Orm was founded by which candlemaker?', '#1 died in what year?')
    """
    return _description_before_name(text, name, about, who) or _description_after_name(text, name, about, who)


def _description_before_name(text: str, name: str, about: str, who: str) -> tuple[str, str] | None:
    """ "the director of the film Rain", "the pianist who recorded Rain": a description that ends with the name."""
    title = rf"[\"“]?{re.escape(name)}[\"”]?(?: \([^)]*\))?(?![\w'’-])"
    link = r"(?:of|by|for|in|from|at|on) (?:the )?(?:[\w-]+ ){0,2}?|(?:who|that|which|whose) [^,?]+? "
    for found in reversed(list(re.finditer(rf"(?=(\b(?:the|an?) ({_NOUN}{{1,5}}?)(?:{link}){title}))", text, re.I))):
        phrase = found[1]
        before, after = text[: found.start()], text[found.start() + len(phrase) :]
        # "Ada is the director of Rain": equates the description with something else, or asks for the entity itself.
        equates = _COPULA.search(before) and not (_INVERTED.match(before) and after.strip(" ?"))
        if _QUESTION_WORD.search(before + after) and not equates and _fits(found[2], about, who):
            return f"{who} is {phrase[:1].lower()}{phrase[1:]}?", f"{before}#1{after}"
    return None


def _description_after_name(text: str, name: str, about: str, who: str) -> tuple[str, str] | None:
    """ "Rain was made by a director who died in what year?": a description that begins after the name, and asks."""
    start = text.find(name)
    found = re.search(rf"\b(?:the|an?) ({_NOUN}{{1,6}}?)(who|that|which|whose) ", text[max(start, 0) :])
    if start < 0 or found is None:
        return None
    before, rest = text[: start + found.start()], text[start + found.end() :].rstrip(" ?")
    asks_after_name = _QUESTION_WORD.search(rest) and not _QUESTION_WORD.search(before)
    if not asks_after_name or _COPULA.search(before) or not _fits(found[1], about, who):
        return None
    owner = "'s" if found[2] == "whose" else ""
    return f"{before}which {found[1].strip()}?", f"#1{owner} {rest}?"


def _fits(nouns: str, about: str, who: str) -> bool:
    """Whether a description fits the entity: its last noun also occurs in the text about the entity."""
    noun = nouns.split()[-1].lower()
    if who == "Who" and noun in _PEOPLE:
        return True
    synonyms = _SYNONYMS.get(noun, (noun,))
    return any(re.search(rf"\b{re.escape(each)}s?\b", about, re.IGNORECASE) for each in synonyms)
