"""Verdicts on steps, and how their consumers treat them.

A step is good, faulty, derived or unjudged. It is *derived* if it follows faithfully from an earlier wrong step, such
as a query about the wrong person whom an earlier sub-answer named: the earlier step is to blame for it. An *unjudged*
step (no verdict, or a derived one by default) is neither good nor bad: it makes no pair, no label, no advantage.
"""

from dataclasses import dataclass
from enum import StrEnum

from stepladder.core.step_scorer import Derived as Derived
from stepladder.core.trace import ActionKind


class Fault(StrEnum):
    """What keeps a step from being good."""

    REDUNDANT = "redundant"  # asks for or states what is known, or repeats a query
    PREMATURE = "premature"  # asks for a hop, or answers, before its prerequisites are known
    UNSUPPORTED = "unsupported"  # right, but no retrieved passage says so: a guess
    WRONG = "wrong"  # asks for or states something that the question does not need
    MALFORMED = "malformed"  # not in the agent's format
    DERIVED = "derived"  # follows from an earlier wrong step, which is to blame


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgment of a step."""

    #: None for a good step.
    fault: Fault | None
    #: The hop that the step is about (from 1); None for no hop, or for the whole question.
    hop: int | None = None
    reason: str = ""

    @property
    def good(self) -> bool:
        """Whether the step has no fault."""
        return self.fault is None

    @property
    def derived(self) -> bool:
        """Whether an earlier step is to blame: neither good nor faulty."""
        return self.fault is Fault.DERIVED

    @property
    def faulty(self) -> bool:
        """Whether the step is to blame for a fault."""
        return not self.good and not self.derived


def verdict_value(verdict: Verdict | None, derived: Derived = "unjudged") -> float | None:
    """1 for a good step, 0 for a faulty one, None for an unjudged one.

    >>> [verdict_value(Verdict(fault)) for fault in (None, Fault.WRONG, Fault.DERIVED)]
    [1.0, 0.0, None]
    >>> verdict_value(Verdict(Fault.DERIVED), "faulty")
    0.0
    """
    if verdict is None or (verdict.derived and derived == "unjudged"):
        return None
    return float(verdict.good or (verdict.derived and derived == "good"))


def reward_target(verdict: Verdict | None, kind: ActionKind, derived: Derived = "unjudged") -> float | None:
    """What a reward model should predict for a step: its verdict; and of a wrong answer that it is faulty.

    A step that follows from an error is not to blame, so it has no label by default. The score of a final answer,
    however, is used to choose between episodes: it has to say whether the answer is right.

    >>> follows = Verdict(Fault.DERIVED)
    >>> reward_target(follows, ActionKind.QUERY), reward_target(follows, ActionKind.ANSWER)
    (None, 0.0)
    """
    return verdict_value(verdict, "faulty" if kind is ActionKind.ANSWER else derived)
