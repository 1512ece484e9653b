"""A place at a game: the episode that is under way in one environment.

In: a question, then actions. Out: turns to be played (`Game.play`), and what they led to. `SearchEnv` has one seat and
`SearchVectorEnv` has many, so both go the same way.
"""

from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
from rich.console import Console

from stepladder.core.config import unknown_key
from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm
from stepladder.core.trace import StopReason, Trajectory
from stepladder.core.trace_printer import TracePrinter
from stepladder.driver import Outcome
from stepladder.explore.episode import episode
from stepladder.gym.game import Game
from stepladder.gym.turn import Turn, take_turn, written


class Seat:
    """Plays one episode after the other."""

    def __init__(self, game: Game, render_mode: str | None) -> None:
        if render_mode not in (None, "ansi"):
            raise StepladderError(f"render_mode: expected 'ansi' or None, found {render_mode!r}")
        self.game = game
        self.narrates = render_mode == "ansi"
        self._episode: Algorithm[Trajectory] | None = None
        #: Where the episode stands; None where none has begun.
        self._turn: Turn | None = None
        self._narrator: TracePrinter | None = None

    def start(self, random: np.random.Generator, options: Mapping[str, Any] | None) -> Algorithm[Turn]:
        """Begin an episode: with the question that the options name, or one that is drawn."""
        for key in options or ():
            if key != "question":
                raise unknown_key("options", key, ["question"])
        drawn = self.game.questions[int(random.integers(len(self.game.questions)))]
        named = (options or {}).get("question")
        question = drawn if named is None else self.game.question(named)
        self._turn = None
        self._episode = episode(self.game.agent, question, self.game.limits, int(random.integers(2**63)))
        if self.narrates:
            self._narrator = TracePrinter(Console(file=StringIO(), record=True, color_system=None))
            self._narrator.question(question)
        return self._take(None)

    def act(self, action: object) -> Algorithm[Turn]:
        """Go on with what the policy wrote."""
        if not isinstance(action, str):
            raise StepladderError(f"an action is the text that the policy writes, a str; found {action!r}")
        if self._turn is None or self._turn.trajectory.stop is not None:
            raise StepladderError("no episode is under way: call reset() before step()")
        return self._take(str(action))  # numpy's strings become plain ones

    def arrive(self, outcome: Outcome[Turn]) -> Turn:
        """Take in what a turn led to."""
        turn = outcome.value
        if turn is None:
            assert outcome.failure is not None
            turn = self._broken(outcome.failure.reason)
        if self._turn is None and turn.trajectory.stop is not None:
            raise StepladderError(
                f"question '{turn.trajectory.question.id}' by itself is longer than max_observation, the "
                f"{self.game.settings.max_observation} characters that the policy can read: allow more, or leave it out"
            )
        self._turn = turn
        if self._narrator is not None:
            self._narrator.show(turn.trajectory)
        return turn

    def leave(self) -> None:
        """Give up the episode."""
        self._turn = None

    def transcript(self) -> str:
        """The episode so far, for people."""
        if self._narrator is None:
            raise StepladderError("there is nothing to show yet: call reset() before render()")
        return self._narrator.console.export_text(clear=False)

    def _take(self, action: str | None) -> Algorithm[Turn]:
        assert self._episode is not None
        settings, reply = self.game.settings, None
        if action is not None:
            assert self._turn is not None
            reply = written(action, self._turn.context, self.game.agent.stops, settings.max_action)
        scored = self.game.reward.counts_steps
        return take_turn(self._episode, reply, longest=settings.max_observation, scored=scored)

    def _broken(self, reason: str) -> Turn:
        """The turn that failed, through no fault of the policy: the episode ends where it stood."""
        if self._turn is None:
            raise StepladderError(f"an episode could not begin: {reason}")
        trajectory = replace(self._turn.trajectory, stop=StopReason.FAILED)
        return Turn(trajectory, self._turn.context, failure=reason)
