"""Episodes made of single steps, for tests of credit assignment."""

from typing import Any

from stepladder.core.step_scorer import logit
from stepladder.core.trace import Action, ActionKind, Author, Passage, Question, Segment, Step, StopReason, Trajectory
from stepladder.train.grpo.config import GRPOConfig
from tests.support.samples import QUESTION

QUERY, SUB_ANSWER, ANSWER, MALFORMED = (
    ActionKind.QUERY, ActionKind.SUB_ANSWER, ActionKind.ANSWER, ActionKind.MALFORMED,
)  # fmt: skip


def step(kind: ActionKind, content: str = "x", *, tokens: int = 1, found: tuple[Passage, ...] = ()) -> Step:
    return Step((), Segment(Author.POLICY, "w" * tokens, (7,) * tokens), Action(kind, content), found)


def ended(*steps: Step, stop: StopReason = StopReason.ANSWERED, question: Question = QUESTION) -> Trajectory:
    return Trajectory(question, "prorag", steps, stop)


def answered(answer: str) -> Trajectory:
    """A query, what it found, and an answer."""
    return ended(step(QUERY), step(SUB_ANSWER), step(ANSWER, answer))


def broken() -> Trajectory:
    """A query, and text without a format."""
    return ended(step(QUERY), step(MALFORMED), stop=StopReason.MALFORMED)


def logits(*probabilities: float | None) -> list[float | None]:
    return [None if each is None else logit(each) for each in probabilities]


def settings(**changes: Any) -> GRPOConfig:
    return GRPOConfig.read({"num_generations": 4, "batch_size": 4, "questions": 4, **changes})
