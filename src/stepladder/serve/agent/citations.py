"""Which passages an answer rests on, as far as that can be seen from the outside.

In: a finished trajectory. Out: `Citation`s, best first. The rule: of the passages that the agent found, those are cited
whose title or text states the final answer, as whole words; then those that state a sub-answer which the agent gave on
the way. The agent does not say where it read something, so a citation is "this passage holds these words", no more and
no less: a passage may hold them by chance, and "yes" or "no" is stated by none. A passage is cited once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from stepladder.core.answer_metrics import covers, normalize
from stepladder.core.trace import ActionKind, Passage, Trajectory

#: Answers that passages hold by chance.
_NOTHING_SAID = frozenset({"", "yes", "no", "unknown", "noanswer"})


@dataclass(frozen=True, slots=True)
class Citation:
    """A passage that states an answer of the agent."""

    passage: Passage
    #: What it states.
    words: str
    #: Whether that is the final answer, or a sub-answer on the way to it.
    final: bool
    #: Where it was found first: the step, from 1 (0: before the first), and the place among what that step found.
    step: int
    rank: int


def cite(trajectory: Trajectory) -> tuple[Citation, ...]:
    """The passages that state the answer or a sub-answer, in that order; none where there is no answer."""
    if trajectory.answer is None:
        return ()
    on_the_way = [step.action.content for step in trajectory.steps if step.action.kind is ActionKind.SUB_ANSWER]
    stated = [(trajectory.answer, True), *((each, False) for each in on_the_way)]
    cited: dict[str, Citation] = {}
    for words, final in stated:
        if normalize(words) in _NOTHING_SAID:
            continue
        for step, rank, passage in _found(trajectory):
            if passage.id not in cited and covers(f"{passage.title}. {passage.text}", words):
                cited[passage.id] = Citation(passage, words, final, step, rank)
    return tuple(cited.values())


def _found(trajectory: Trajectory) -> Iterator[tuple[int, int, Passage]]:
    """Every passage with the step that found it and its place there."""
    for step, passages in enumerate([trajectory.given, *(step.passages for step in trajectory.steps)]):
        for rank, passage in enumerate(passages, start=1):
            yield step, rank, passage
