"""The questions of a PRM's training data, besides those of the trees.

In: the settings, the train questions, and the ids of the explored ones. Out: the questions to sample episodes of, those
to take gold trajectories of, and the ids of the held-out ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepladder.core.trace import Question
from stepladder.data.sampling import sample_questions
from stepladder.preferences.pairs import dev_questions
from stepladder.train.prm.config import PRMConfig


@dataclass(frozen=True, slots=True)
class PRMQuestions:
    """Questions by their use."""

    #: Not trained on in any form. The held-out pairs of the same trees are of these questions too, so that all
    #: objectives can be compared on them.
    held_out: frozenset[str]
    #: For sampled episodes, and for gold trajectories.
    sampled: tuple[Question, ...]
    gold: tuple[Question, ...]


def choose_questions(
    config: PRMConfig, questions: Sequence[Question], explored: Iterable[str], seed: int
) -> PRMQuestions:
    """A seeded choice; episodes are sampled only of questions that the gold judge can judge."""
    judged = [question for question in questions if question.hops or question.gold_passages]
    sampled = sample_questions(judged, config.episodes, seed) if config.episodes else []
    held_out = dev_questions(explored, config.dev_share)
    if sampled:
        held_out |= dev_questions((question.id for question in sampled), config.dev_share)
    others = [question for question in questions if question.id not in held_out]
    gold = sample_questions(others, config.chains, seed, balance=True) if config.chains else []
    return PRMQuestions(held_out, tuple(sampled), tuple(gold))
