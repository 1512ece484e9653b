"""Steps written by hand, and the verdicts of the gold judge on them in words."""

from functools import partial

import pytest

from stepladder import Question, Step, Trajectory
from stepladder.core.requests import Algorithm, Result
from stepladder.core.trace import Action, ActionKind, Author, Passage, Segment
from stepladder.oracle.step_judge import judge
from tests.support.samples import QUESTION


def step(kind: ActionKind, content: str, *found: Passage) -> Step:
    return Step((), Segment(Author.POLICY, content), Action(kind, content), found)


query = partial(step, ActionKind.QUERY)
evidence = partial(step, ActionKind.EVIDENCE)
sub_answer = partial(step, ActionKind.SUB_ANSWER)
answer = partial(step, ActionKind.ANSWER)
malformed = partial(step, ActionKind.MALFORMED)


def faults(*steps: Step, question: Question = QUESTION) -> list[str]:
    """The verdicts on an episode in words: ok, a fault, or ? where the judge cannot tell."""
    verdicts = judge(Trajectory(question, "prorag", steps))
    return ["?" if each is None else str(each.fault or "ok") for each in verdicts]


def last(*steps: Step, question: Question = QUESTION) -> str:
    return faults(*steps, question=question)[-1]


def finished(algorithm: Algorithm[Result]) -> Result:
    """The result of an algorithm that requests nothing."""
    with pytest.raises(StopIteration) as end:
        next(algorithm)
    value: Result = end.value.value
    return value
