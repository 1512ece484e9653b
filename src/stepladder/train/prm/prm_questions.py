"""Whose steps a reward model learns from, beside those of the trees.

In: the settings, the train questions, and the ids of those that were explored. Out: the questions that the policy
plays, those whose gold chains are learnt from, and the ids of those that are held out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepladder.core.trace import Question
from stepladder.preferences.pairs import dev_questions
from stepladder.train.prm.config import PRMConfig
from stepladder.data.sampling import sample_questions


@dataclass(frozen=True, slots=True)
class PRMQuestions:
    """Questions by what is made of them."""

    #: Nothing is learnt of these, whatever is made of them. The pairs of the same trees hold out none that is not here,
    #: so that all objectives can be compared on those.
    held_out: frozenset[str]
    played: tuple[Question, ...]
    chained: tuple[Question, ...]


def choose(settings: PRMConfig, questions: Sequence[Question], explored: Iterable[str], seed: int) -> PRMQuestions:
    """Chosen by the seed; played are those that the gold judge can say something of."""
    judged = [question for question in questions if question.hops or question.gold_passages]
    played = sample_questions(judged, settings.episodes, seed) if settings.episodes else []
    held_out = dev_questions(explored, settings.dev_share)
    if played:
        held_out |= dev_questions((question.id for question in played), settings.dev_share)
    others = [question for question in questions if question.id not in held_out]
    chained = sample_questions(others, settings.chains, seed, balance=True) if settings.chains else []
    return PRMQuestions(held_out, tuple(played), tuple(chained))
