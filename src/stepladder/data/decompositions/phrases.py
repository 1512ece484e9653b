"""Split a question that describes one entity by another one, which it names.

In: a question and the name. Out: a question for the described entity, and the question about that entity, in which `#1`
stands for it; None if no pattern matches.

    >>> split_question("When was the pianist who recorded Live at Orm born?", "Live at Orm", "Ada is a pianist.", "Who")
    ('Who is the pianist who recorded Live at Orm?', 'When was #1 born?')
    >>> split_question("Orm was founded by a candlemaker who died in what year?", "Orm", "A candlemaker.", "Who")
    ('Orm was founded by which candlemaker?', '#1 died in what year?')
"""

import re

_NOUN = r"(?:(?!(?:the|an?|of|which|what|who|whom|whose|that|and|or)\b)[\w'’-]+ )"
_QUESTION_WORD = re.compile(r"\b(?:what|which|where|when|who|whom|whose|how)\b", re.IGNORECASE)
_PEOPLE = frozenset({"man", "woman", "person", "individual", "actor", "actress", "star", "brother", "sister", "author"})
_SYNONYMS = {"movie": ("film", "movie"), "author": ("writer", "novelist", "author"), "show": ("series", "show")}
_COPULA = re.compile(r"\b(?:is|was|are|were|as)\s*$", re.IGNORECASE)
_INVERTED = re.compile(r"(?:\w+ )?(?:what|which|where|when|how)\b[^,]{0,30}$", re.IGNORECASE)


def split_question(text: str, name: str, about: str, who: str) -> tuple[str, str] | None:
    """The two questions. `about` is a text about the described entity; `who` is its question word, Who or What."""
    return _description_before_name(text, name, about, who) or _description_after_name(text, name, about, who)


def _description_before_name(text: str, name: str, about: str, who: str) -> tuple[str, str] | None:
    """ "the director of the film Rain", "the pianist who recorded Rain": a description that ends with the name."""
    title = rf"[\"“]?{re.escape(name)}[\"”]?(?: \([^)]*\))?(?![\w'’-])"
    link = r"(?:of|by|for|in|from|at|on) (?:the )?(?:[\w-]+ ){0,2}?|(?:who|that|which|whose) [^,?]*?"
    for found in reversed(list(re.finditer(rf"(?=(\b(?:the|an?) ({_NOUN}{{1,5}}?)(?:{link}){title}))", text, re.I))):
        phrase = found[1]
        before, after = text[: found.start()], text[found.start() + len(phrase) :]
        if _QUESTION_WORD.search(before + after) and not _equates(before, after) and _fits(found[2], about, who):
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


def _equates(before: str, after: str) -> bool:
    """Whether the sentence equates the description with something else, or asks for the described entity itself."""
    return _COPULA.search(before) is not None and not (_INVERTED.match(before) and after.strip(" ?"))


def _fits(nouns: str, about: str, who: str) -> bool:
    """Whether a description fits the entity: its last noun also occurs in the text about the entity."""
    noun = nouns.split()[-1].lower()
    if who == "Who" and noun in _PEOPLE:
        return True
    synonyms = _SYNONYMS.get(noun, (noun,))
    return any(re.search(rf"\b{re.escape(each)}s?\b", about, re.IGNORECASE) for each in synonyms)
