"""The score of an answer, by the kind of answer that its question asks for.

In: a prediction and a `Question`. Out: an `AnswerScore`:

    text     exact match and F1 against the accepted answers (`answer_text.py`)
    choice   accuracy: 1 if the right option was chosen, by its letter or by its text, else 0, in every metric
    yes_no   1 if the answer says the same, else 0, in every metric
    number   1 if it is the same amount (`quantities.py`), else 0, in every metric
    list     precision and recall of the items, in any order; F1 of both; em: all items and no other; cover_em: all
             items, perhaps with others

An answer in which no option, no yes or no, or no number is recognized is wrong.
"""

import re
from collections.abc import Sequence

from stepladder.core.questions.answer_text import AnswerScore, covers, normalize, score_answer
from stepladder.core.questions.quantities import same_amount
from stepladder.core.questions.question import AnswerKind, Question

#: Possessive, here and below: "answer answer answer ..." would be tried in exponentially many ways.
_NAMED = r"(?:(?:the\s+)?(?:(?:final|correct|right|best)\s+)*+(?:answer|option|choice)(?:\s+is)?\s*+(?::\s*+)?)*+"
#: A letter at the beginning, perhaps in brackets: B, (b), B. Rome, Option B, The answer is: B) Rome. Not B-cells.
_LETTER = re.compile(rf"\W*+{_NAMED}[(\[{{]?\s*+([a-z])\s*(?:[)\]}}.:*]|,(?!\s*[a-z]\b)|\s-\s|$|\n)", re.IGNORECASE)
#: A capital letter that a sentence names: ... so the answer is B because ...
_NAMED_LETTER = re.compile(
    r"(?i:\b(?:answer|option|choice)(?:\s+is)?)\s*+(?::\s*+)?(?:(?i:option|choice)\s*+)?[(\[]?([A-Z])\b"
)
#: The answer in a text with LaTeX: \boxed{B}, \boxed{\text{B}}.
_BOXED = re.compile(r"\\boxed\s*\{(?:\\[a-z]+\s*\{)?([^{}]*)\}")
_POLARITY = {"yes": True, "true": True, "no": False, "false": False}


def score_question(prediction: str | None, question: Question) -> AnswerScore:
    """The score of an answer to a question; no prediction scores 0."""
    if not question.answers:
        raise ValueError("there is no accepted answer to score against")
    if prediction is None:
        return AnswerScore()
    if question.answer_kind is not AnswerKind.TEXT and (boxed := _BOXED.findall(prediction)):
        prediction = boxed[-1]
    match question.answer_kind:
        case AnswerKind.TEXT:
            return score_answer(prediction, question.answers)
        case AnswerKind.LIST:
            return _list_score(prediction, question.items)
        case AnswerKind.CHOICE:
            chosen = chosen_option(prediction, question.options)
            right = chosen is not None and question.options[chosen] in question.answers
        case AnswerKind.YES_NO:
            said = yes_or_no(prediction)
            right = said is not None and said is yes_or_no(question.answers[0])
        case AnswerKind.NUMBER:
            right = any(same_amount(prediction, answer) for answer in question.answers)
    return AnswerScore(*[float(right)] * 5)


def chosen_option(text: str, options: Sequence[str]) -> int | None:
    """The index of the option that a text chooses; None if it chooses none, or several.

    By a letter alone; else by exactly its text; else by the letter at the beginning; else by a letter that is named as
    the answer; else by the only option whose text occurs in it. Where a letter and a text disagree, the letter counts,
    but it is not a letter where an option begins like that: "E. coli".

    >>> [chosen_option(text, ("Paris", "Rome")) for text in ("B", "(b)", "A. Paris", "option B", "rome.", "Oslo")]
    [1, 1, 0, 1, 1, None]
    >>> [chosen_option(text, ("Paris", "Rome")) for text in ("It is Rome, I think", "A city", "Paris or Rome", "E")]
    [1, None, None, None]
    """
    letter = _LETTER.match(text)
    first = _index(letter[1], options) if letter else None
    known = [normalize(option) for option in options]
    plain = normalize(text)
    if letter and first is not None and not re.search(r"\w", text[letter.end() :]):
        return first
    if plain and plain in known:
        return known.index(plain)
    alike = any(_LETTER.match(each) and f"{plain} ".startswith(f"{name} ") for each, name in zip(options, known))
    if first is not None and not alike:
        return first
    named = {_index(each, options) for each in _NAMED_LETTER.findall(text)}
    if len(named) == 1 and None not in named:
        return named.pop()
    found = [index for index, option in enumerate(options) if known[index] and covers(text, option)]
    # An option whose text is a part of another's is not meant where the other one is written.
    whole = [index for index in found if not any(_is_part(known[index], known[other]) for other in found)]
    return whole[0] if len({known[index] for index in whole}) == 1 else None


def yes_or_no(text: str) -> bool | None:
    """What a text says: by its first word; else by the only one of yes and no in it. True counts as yes, false as no.

    >>> [yes_or_no(text) for text in ("Yes, both are.", "The answer is no.", "False", "Not true", "Both")]
    [True, False, False, None, None]
    """
    words = re.findall(r"[a-z]+", text.lower())
    if words and words[0] in _POLARITY:
        return _POLARITY[words[0]]
    said = {_POLARITY[word] for word in words if word in _POLARITY}
    return said.pop() if len(said) == 1 and "not" not in words else None


def list_items(text: str) -> list[str]:
    """The items of a list: separated by semicolons; else by line breaks; else by commas and the word "and".

    >>> list_items("1. Rome\\n2. Paris"), list_items("Rome, Paris and Oslo"), list_items("Washington, D.C.; Rome")
    (['Rome', 'Paris'], ['Rome', 'Paris', 'Oslo'], ['Washington, D.C.', 'Rome'])
    """
    separator = ";" if ";" in text else r"\n" if "\n" in text.strip() else r",|\band\b"
    parts = (re.sub(r"^\s*(?:[-*•]|\d+[.)])\s+", "", part).strip() for part in re.split(separator, text))
    return [part for part in parts if part]


def _list_score(prediction: str, items: Sequence[Sequence[str]]) -> AnswerScore:
    owner = {_words(form): number for number, forms in enumerate(items) for form in forms}
    parts = [_words(part) for part in list_items(prediction)]
    longest = max(map(len, owner))
    named: set[object] = set()
    place = 0
    while place < len(parts):
        # A name with a comma or an "and" in it was split: the longest run of parts that is an item counts as one.
        runs = (end for end in range(place + longest, place, -1) if sum(parts[place:end], ()) in owner)
        end = next(runs, place + 1)
        whole = sum(parts[place:end], ())
        named.add(owner.get(whole, whole))
        place = end
    right = len({each for each in named if isinstance(each, int)})
    if not right:
        return AnswerScore()
    precision, recall = right / len(named), right / len(items)
    f1 = 2 * precision * recall / (precision + recall)
    return AnswerScore(float(precision == recall == 1), f1, precision, recall, float(recall == 1))


def _words(text: str) -> tuple[str, ...]:
    """The words by which items are compared."""
    return tuple(word for word in normalize(text).split() if word != "and")


def _index(letter: str, options: Sequence[str]) -> int | None:
    index = ord(letter.upper()) - ord("A")
    return index if index < len(options) else None


def _is_part(text: str, other: str) -> bool:
    return text != other and f" {text} " in f" {other} "
