"""An episode that tells what happens: the passages it starts with, every new step, and the score of each.

In: the algorithm of an episode, a callback, and the steps that were told before. Out: the same algorithm. Steps
and their scores, which the driver's step scorer gives, are told before the policy generates the next one.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from stepladder.core.io.masking import mask
from stepladder.core.requests import Algorithm, AnyRequest, Generate, Score, requests_in
from stepladder.core.trace import Step, Trajectory

log = logging.getLogger(__name__)

#: Called with the name of an event and its content:
#:   given    the trajectory, which starts with passages
#:   steps    (trajectory, first): its steps from this position on are new
#:   scores   (first, scores): of the steps from this position on; None for a step that is not judged
#:   unscored why the steps have no scores
Tell = Callable[[str, Any], None]


def told_steps(
    algorithm: Algorithm[Trajectory], tell: Tell, *, told: int = 0, scored: bool = False, live: bool = True
) -> Algorithm[Trajectory]:
    """Wrap an episode. `told`: steps that need not be told. Without `live` they are told at its end."""
    teller = _Teller(tell, told, scored)
    resume: Callable[[], AnyRequest] = partial(next, algorithm)
    while True:
        try:
            request = resume()
        except StopIteration as end:
            result: Trajectory = end.value
            yield from teller.show(result)
            return result
        states = [each.trajectory for each in requests_in(request) if isinstance(each, Generate)]
        if live and states and states[0] is not None:
            yield from teller.show(states[0])
        try:
            reply = yield request
        except Exception as error:  # noqa: BLE001 - the algorithm may handle it
            resume = partial(algorithm.throw, error)
        else:
            resume = partial(algorithm.send, reply)


class _Teller:
    """Tells what is new about the trajectory that was shown before; other branches of a search are ignored."""

    def __init__(self, tell: Tell, told: int, scored: bool) -> None:
        self._tell, self._scored = tell, scored
        self._told = told
        self._newest: Step | None = None
        self._gave = False

    def show(self, trajectory: Trajectory) -> Algorithm[None]:
        steps, first = trajectory.steps, self._told
        is_other = len(steps) < first or (self._newest is not None and steps[first - 1] is not self._newest)
        if is_other and trajectory.stop is None:
            return
        if trajectory.given and not self._gave:
            self._gave = True
            self._tell("given", trajectory)
        if is_other or len(steps) == first:
            return
        self._tell("steps", (trajectory, first))
        self._told, self._newest = len(steps), steps[-1]
        if self._scored:
            yield from self._score(trajectory, first)

    def _score(self, trajectory: Trajectory, first: int) -> Algorithm[None]:
        try:
            scores = yield Score(trajectory)
        except Exception as error:  # the answer is worth more than its scores
            self._scored = False
            log.exception("steps could not be scored")
            self._tell("unscored", mask(f"{error}"))
        else:
            self._tell("scores", (first, scores[first:]))
