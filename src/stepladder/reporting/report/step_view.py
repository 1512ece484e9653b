"""A step as trees and transcripts of a report show it.

In: a `Step` and what the gold judge says of it. Out: a `ShownStep`: words, cut where they are very long.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from stepladder.core.trace import Passage, Step
from stepladder.oracle.step_rules import Verdict
from stepladder.reporting.charts.tree_diagram import KIND_WORDS

#: Characters of a text that are shown.
_MOST = 600


@dataclass(frozen=True, slots=True)
class ShownPassage:
    """A passage that a search found."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class ShownStep:
    """What was done, said, thought and found, and whether it was good."""

    kind: str
    content: str
    thought: str
    #: What is wrong with malformed text.
    problem: str
    searched: bool
    passages: tuple[ShownPassage, ...]
    #: None where the gold judge cannot tell.
    good: bool | None
    fault: str
    reason: str


def shown_step(step: Step, verdict: Verdict | None) -> ShownStep:
    """A step, readable."""
    action = step.action
    return ShownStep(
        KIND_WORDS[action.kind],
        readable(action.content) or "(nothing)",
        readable(action.thought),
        readable(action.problem),
        action.kind == "query",
        shown_passages(step.passages),
        None if verdict is None else verdict.good,
        "" if verdict is None or verdict.fault is None else verdict.fault.value,
        "" if verdict is None else readable(verdict.reason),
    )


def shown_passages(passages: Iterable[Passage]) -> tuple[ShownPassage, ...]:
    """Passages, readable."""
    return tuple(ShownPassage(readable(each.title), readable(each.text)) for each in passages)


def readable(text: str) -> str:
    """Text in one line, cut where it is very long. Models write characters that no page can show.

    >>> readable("Velm\\n  is\\x1b a city")
    'Velm is\N{REPLACEMENT CHARACTER} a city'
    """
    words = " ".join(text.split())
    words = words if len(words) <= _MOST else words[: _MOST - 1].rstrip() + "…"
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in words)
