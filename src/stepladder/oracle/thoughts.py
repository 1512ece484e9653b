"""The thoughts that the oracle writes before each action: first the plan, then the position in the plan.

In: the subject of an action. Out: one short sentence from a few templates. Plans that list the sub-questions make SFT
far more sample-efficient than bare actions; varied wordings keep a model from memorizing one of them.

The templates are training data: changing a word changes every run.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

_PLAN = ("Plan: {}", "I need to know: {}", "Steps: {}", "To find out: {}")
_NEXT = ("Now {}.", "Next is {}.", "On to {}.", "Step {}.")
_READ = ("[{}] tells it.", "[{}] says so.", "It is in [{}].", "I see it in [{}].")
_NOT_THERE = ("The passages do not tell.", "It is not there.", "Nothing here says it.")
_DONE = ("That was the last.", "All is known.", "Nothing is left to find.", "So that is it.")
_GIVE_UP = ("What I needed was not found.", "The search did not find it.")


@dataclass(frozen=True, slots=True)
class Thoughts:
    """Draws wordings from a random generator; without one the first is used."""

    rng: random.Random | None = None

    def _pick(self, wordings: Sequence[str]) -> str:
        return self.rng.choice(wordings) if self.rng is not None else wordings[0]

    def plan(self, questions: Sequence[str]) -> str:
        """Before the first search: every sub-question, in order.

        >>> Thoughts().plan(["Who designed Orm Tower?", "Where was #1 born?"])
        'Plan: 1. Who designed Orm Tower? 2. Where was #1 born?'
        """
        listed = " ".join(f"{number}. {question}" for number, question in enumerate(questions, start=1))
        return self._pick(_PLAN).format(listed)

    def next(self, number: int) -> str:
        """Before a later search: the number of the sub-question in the plan."""
        return self._pick(_NEXT).format(number)

    def read(self, number: int | None) -> str:
        """Before a sub-answer: the number of the passage that states it, or that none does."""
        return self._pick(_NOT_THERE) if number is None else self._pick(_READ).format(number)

    def conclude(self, conclusion: str, answerable: bool) -> str:
        """Before the answer: the conclusion from the sub-answers, if the question has one."""
        if not answerable:
            return self._pick(_GIVE_UP)
        return conclusion or self._pick(_DONE)
