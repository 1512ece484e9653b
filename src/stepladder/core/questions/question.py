"""Questions: accepted answers and their kind, gold decompositions, what identifies gold passages in any index.

`trace.py` exports these records. Passage ids are those of the data set's own corpus. For an index with other ids, or
with other cuts of the same articles, a `GoldText` keeps the title of a gold passage and short excerpts of its text
(`gold_matching.py` compares them). Questions are stored in every trajectory, so the whole texts are not kept.
"""

from dataclasses import dataclass
from enum import StrEnum
from string import ascii_uppercase
from typing import Annotated

from pydantic import Field

from stepladder.core.display import shortened
from stepladder.core.unicode import repair


def _is_empty(value: object) -> bool:
    return not value


class AnswerKind(StrEnum):
    """What an answer is, which decides how it is scored (`answer_kinds.py`)."""

    TEXT = "text"  # a short text: exact match and F1
    CHOICE = "choice"  # one of the question's options
    YES_NO = "yes_no"
    NUMBER = "number"  # perhaps with a unit
    LIST = "list"  # several items in any order


@dataclass(frozen=True, slots=True)
class GoldText:
    """What identifies a gold passage in any index."""

    id: str
    title: str = ""
    #: Windows of its text, about 25 words each, around the answer; without the answer, its supporting sentences or its
    #: first words. Empty if the text is not known.
    excerpts: Annotated[tuple[str, ...], Field(exclude_if=_is_empty)] = ()

    def __post_init__(self) -> None:
        repair(self, "id", "title", "excerpts")


@dataclass(frozen=True, slots=True)
class Hop:
    """One hop of a gold decomposition. `#1`, `#2` in the question refer to the answers of earlier hops."""

    question: str
    answer: str
    #: Ids of passages that state the answer; empty when the hop is a conclusion that needs no search.
    passages: tuple[str, ...] = ()
    #: Other accepted forms of the answer.
    aliases: tuple[str, ...] = ()
    #: How these passages are recognized in other indexes. Not stored where it is empty.
    gold_texts: Annotated[tuple[GoldText, ...], Field(exclude_if=_is_empty)] = ()

    def __post_init__(self) -> None:
        repair(self, "question", "answer", "passages", "aliases")


@dataclass(frozen=True, slots=True, repr=False)
class Question:
    """A question with its accepted answers and the gold annotations of its data set."""

    id: str
    text: str
    #: Accepted answers: the first is canonical, the others are aliases. Empty when no answer is known.
    answers: tuple[str, ...]
    hops: tuple[Hop, ...] = ()
    #: One group of ids per gold passage; any id of a group counts as a hit.
    gold_passages: tuple[tuple[str, ...], ...] = ()
    #: Question type in its data set: bridge, comparison, ...
    kind: str = ""
    #: How the gold passages that belong to no hop are recognized in other indexes. Not stored where it is empty.
    gold_texts: Annotated[tuple[GoldText, ...], Field(exclude_if=_is_empty)] = ()
    #: The options of a multiple-choice question, in the order of their letters. Its answer is the text of one of them.
    #: Not stored where it is empty, like the following fields.
    options: Annotated[tuple[str, ...], Field(exclude_if=_is_empty)] = ()
    #: The items of an answer that is a list, each with its accepted forms.
    items: Annotated[tuple[tuple[str, ...], ...], Field(exclude_if=_is_empty)] = ()
    #: Follows from options and items.
    answer_kind: Annotated[AnswerKind, Field(exclude_if=lambda kind: kind is AnswerKind.TEXT)] = AnswerKind.TEXT

    def __post_init__(self) -> None:
        repair(self, "id", "text", "answers", "gold_passages", "kind", "options", "items")
        if self.options or self.items:
            object.__setattr__(self, "answer_kind", AnswerKind.CHOICE if self.options else AnswerKind.LIST)
        elif self.answer_kind in (AnswerKind.CHOICE, AnswerKind.LIST):
            needed = "options" if self.answer_kind is AnswerKind.CHOICE else "items"
            raise ValueError(f"question {self.id!r} has the answer kind {self.answer_kind.value!r}, but no {needed}")
        if len(self.options) > len(ascii_uppercase):
            raise ValueError(f"question {self.id!r} has {len(self.options)} options; at most 26 have letters")
        for answer in self.answers if self.options else ():
            if answer not in self.options:
                raise ValueError(f"the answer of question {self.id!r} is not among its options: {answer!r}")

    @property
    def letters(self) -> str:
        """The letters of the options."""
        return ascii_uppercase[: len(self.options)]

    @property
    def written_answer(self) -> str:
        """What a policy that knows the answer writes: the letter of the right option, else the first accepted answer.

        >>> Question("q", "Capital of Italy?", ("Rome",), options=("Paris", "Rome")).written_answer
        'B'
        """
        return self.letters[self.options.index(self.answers[0])] if self.options else self.answers[0]

    @property
    def shown_answers(self) -> tuple[str, ...]:
        """The accepted answers as people read them: an option with its letter."""
        if not self.options:
            return self.answers
        return tuple(f"{self.letters[self.options.index(each)]}. {each}" for each in self.answers)

    @property
    def searches_needed(self) -> int:
        """Number of hops that need a search; 0 without a gold decomposition.

        If the data set names no gold passages at all, every hop counts.
        """
        return sum(1 for hop in self.hops if hop.passages) or len(self.hops)

    def __repr__(self) -> str:
        answers = ", ".join(map(repr, self.answers[:2]))
        return f"Question({self.id!r}, {shortened(self.text)}, answers=({answers}), hops={len(self.hops)})"
