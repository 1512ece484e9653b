"""Read answers that are more than a short text: options, lists, numbers, yes and no.

In: a row, and the object that has its `answer_kind` (the row itself, or its metadata). Out: an `Answer`, whose fields
are those of a `Question`. An answer that does not fit its kind, and options that lack the answer, are errors that name
the file and the line.
"""

from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any, NamedTuple

from stepladder.core.io.jsonl import Line, preview
from stepladder.core.questions.answer_kinds import list_items, yes_or_no
from stepladder.core.questions.quantities import quantities
from stepladder.core.trace import AnswerKind
from stepladder.data.formats.rows import clean_answers, read_answers

_KINDS = tuple(kind.value for kind in AnswerKind if kind is not AnswerKind.CHOICE)


class Answer(NamedTuple):
    """The answer fields of a question."""

    answers: tuple[str, ...]
    items: tuple[tuple[str, ...], ...] = ()
    kind: AnswerKind = AnswerKind.TEXT


def read_answer(line: Line, key: str, data: Mapping[str, Any]) -> Answer:
    """The answer under a key, of the kind that `answer_kind` in `data` names; without one, a text."""
    name = data.get("answer_kind") or AnswerKind.TEXT.value
    if name not in _KINDS:
        raise line.wrong(f"'answer_kind' should be {', '.join(_KINDS[:-1])} or {_KINDS[-1]}, found {preview(name)}")
    kind = AnswerKind(name)
    if kind is AnswerKind.LIST:
        items = _items(line, key)
        return Answer(("; ".join(forms[0] for forms in items),), items, kind)
    answers = read_answers(line, key)
    for answer in answers:
        if kind is AnswerKind.NUMBER and not quantities(answer):
            raise line.wrong(f"'answer_kind' is number, and the answer {preview(answer)} has no number")
        if kind is AnswerKind.YES_NO and yes_or_no(answer) is None:
            raise line.wrong(f"'answer_kind' is yes_no, and the answer {preview(answer)} is neither yes nor no")
    return Answer(answers, kind=kind)


def _items(line: Line, key: str) -> tuple[tuple[str, ...], ...]:
    """The items of a list: strings, or lists with the accepted forms of each; in a table, separated by semicolons."""
    value, expected = line.data.get(key), "a list of items, each a string or a list of its accepted forms"
    found: list[str | list[str]] = line.checked(
        key,
        list_items(value) if isinstance(value, str) else value,
        list[str | list[str]],
        expected,
    )
    items = tuple(clean_answers(*([each] if isinstance(each, str) else each)) for each in found)
    if not items or not all(items):
        raise line.wrong(f"{key!r} should be {expected}, found {preview(value)}")
    return items


def read_options(line: Line, key: str) -> dict[str, str]:
    """The options of a question by their names: an object, in the order of its keys, or a list, named A, B, C, ..."""
    value, expected = line.data.get(key), "an object or a list with 2 to 26 texts"
    if isinstance(value, list):
        value = dict(zip(ascii_uppercase, value)) if len(value) <= len(ascii_uppercase) else None
    found = line.checked(key, value, dict[str, str | int | float], expected)
    options = {str(name): str(found[name]).strip() for name in sorted(found, key=_in_order)}
    if not 2 <= len(options) <= len(ascii_uppercase) or not all(options.values()):
        raise line.wrong(f"{key!r} should be {expected}, found {preview(line.data.get(key))}")
    return options


def _in_order(name: str) -> tuple[int, str]:
    """The order of options by their names: 2 before 10."""
    return len(name), name


def right_options(
    line: Line, options: Mapping[str, str], given: Sequence[object], *, texts_first: bool = False
) -> tuple[str, ...]:
    """The texts of the options that answers name: by the option's name, by its index from 0, or by its text.

    `texts_first`: an answer that is also the text of an option means that one, such as the blood group A.
    """
    texts = list(options.values())
    found: list[str] = []
    for each in given:
        text = str(each).strip()
        if texts_first and text in texts:
            found.append(text)
        elif text in options:
            found.append(options[text])
        elif isinstance(each, int) and not isinstance(each, bool) and 0 <= each < len(texts):
            found.append(texts[each])
        elif text in texts:
            found.append(text)
        else:
            listed = ", ".join(f"{name}. {text}" for name, text in options.items())
            raise line.wrong(f"the answer {preview(each)} is not among the options: {listed}")
    return tuple(dict.fromkeys(found))
