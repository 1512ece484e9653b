"""A step as shown in the trees and transcripts of a report.

In: a `Step` and the gold judge's verdict. Out: a `StepView` of plain strings, truncated if very long.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from stepladder.core.trace import Passage, Step
from stepladder.oracle.step_rules import Verdict
from stepladder.reporting.charts.tree_diagram import KIND_LABELS

#: Maximum length of a text, in characters.
_MAX_LENGTH = 600


@dataclass(frozen=True, slots=True)
class PassageView:
    """A retrieved passage."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class StepView:
    """Action, thought, retrieved passages and verdict of a step."""

    kind: str
    content: str
    thought: str
    #: Why the text is malformed.
    problem: str
    searched: bool
    passages: tuple[PassageView, ...]
    #: None if the gold judge has no verdict.
    good: bool | None
    fault: str
    reason: str


def step_view(step: Step, verdict: Verdict | None) -> StepView:
    """The view of a step."""
    action = step.action
    return StepView(
        KIND_LABELS[action.kind],
        readable(action.content) or "(nothing)",
        readable(action.thought),
        readable(action.problem),
        action.kind == "query",
        passage_views(step.passages),
        None if verdict is None else verdict.good,
        "" if verdict is None or verdict.fault is None else verdict.fault.value,
        "" if verdict is None else readable(verdict.reason),
    )


def passage_views(passages: Iterable[Passage]) -> tuple[PassageView, ...]:
    """The views of passages."""
    return tuple(PassageView(readable(each.title), readable(each.text)) for each in passages)


def readable(text: str) -> str:
    """Text on one line, truncated if very long; characters that are not printable are replaced.

    >>> readable("Velm\\n  is\\x1b a city")
    'Velm is\N{REPLACEMENT CHARACTER} a city'
    """
    words = " ".join(text.split())
    words = words if len(words) <= _MAX_LENGTH else words[: _MAX_LENGTH - 1].rstrip() + "…"
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in words)
