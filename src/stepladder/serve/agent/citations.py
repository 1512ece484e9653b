"""Citations: the passages that contain an answer.

In: a finished trajectory. Out: `Citation`s, best first. Of the retrieved passages, those are cited whose title or text
contains the final answer as whole words; then those that contain a sub-answer. The agent does not report its sources,
so a citation only means "this passage contains these words", possibly by chance; "yes" and "no" are never cited. A
passage is cited once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from stepladder.core.answer_metrics import covers, normalize
from stepladder.core.trace import ActionKind, Passage, Trajectory

#: Answers that passages contain by chance.
_UNCITABLE = frozenset({"", "yes", "no", "unknown", "noanswer"})


@dataclass(frozen=True, slots=True)
class Citation:
    """A passage that contains an answer of the agent."""

    passage: Passage
    #: The answer or sub-answer that it contains.
    text: str
    #: Whether that is the final answer, or a sub-answer.
    final: bool
    #: Where it was first retrieved: the step, from 1 (0: before the first), and the rank in its results.
    step: int
    rank: int


def cite(trajectory: Trajectory) -> tuple[Citation, ...]:
    """The passages that contain the answer or a sub-answer, in that order; none without an answer."""
    if trajectory.answer is None:
        return ()
    sub_answers = [step.action.content for step in trajectory.steps if step.action.kind is ActionKind.SUB_ANSWER]
    statements = [(trajectory.answer, True), *((each, False) for each in sub_answers)]
    cited: dict[str, Citation] = {}
    for text, final in statements:
        if normalize(text) in _UNCITABLE:
            continue
        for step, rank, passage in _retrieved(trajectory):
            if passage.id not in cited and covers(f"{passage.title}. {passage.text}", text):
                cited[passage.id] = Citation(passage, text, final, step, rank)
    return tuple(cited.values())


def _retrieved(trajectory: Trajectory) -> Iterator[tuple[int, int, Passage]]:
    """Every retrieved passage with its step and rank."""
    for step, passages in enumerate([trajectory.given, *(step.passages for step in trajectory.steps)]):
        for rank, passage in enumerate(passages, start=1):
            yield step, rank, passage
