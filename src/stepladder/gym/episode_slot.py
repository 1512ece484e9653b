"""An episode slot: the current episode of one environment.

In: a question, then actions. Out: algorithms to run (`EnvBackend.run`), and the transitions they result in.
`SearchEnv` has one slot, `SearchVectorEnv` has many.
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
from stepladder.gym.env_config import EnvBackend
from stepladder.gym.transition import Transition, advance, as_generation


class EpisodeSlot:
    """Runs one episode after the other."""

    def __init__(self, backend: EnvBackend, render_mode: str | None) -> None:
        if render_mode not in (None, "ansi"):
            raise StepladderError(f"render_mode: expected 'ansi' or None, found {render_mode!r}")
        self.backend = backend
        self.renders = render_mode == "ansi"
        self._episode: Algorithm[Trajectory] | None = None
        #: The current state of the episode; None before the first reset.
        self._transition: Transition | None = None
        self._printer: TracePrinter | None = None

    def start(self, random: np.random.Generator, options: Mapping[str, Any] | None) -> Algorithm[Transition]:
        """Start an episode with the question in the options, or with a random one."""
        for key in options or ():
            if key != "question":
                raise unknown_key("options", key, ["question"])
        sampled = self.backend.questions[int(random.integers(len(self.backend.questions)))]
        requested = (options or {}).get("question")
        question = sampled if requested is None else self.backend.question(requested)
        self._transition = None
        self._episode = episode(self.backend.agent, question, self.backend.limits, int(random.integers(2**63)))
        if self.renders:
            self._printer = TracePrinter(Console(file=StringIO(), record=True, color_system=None))
            self._printer.question(question)
        return self._advance(None)

    def act(self, action: object) -> Algorithm[Transition]:
        """Continue the episode with the policy's text."""
        if not isinstance(action, str):
            raise StepladderError(f"an action is the policy's text, a str; found {action!r}")
        if self._transition is None or self._transition.trajectory.stop is not None:
            raise StepladderError("no episode is running: call reset() before step()")
        return self._advance(str(action))  # converts numpy strings

    def finish_step(self, outcome: Outcome[Transition]) -> Transition:
        """Store the result of a step."""
        transition = outcome.value
        if transition is None:
            assert outcome.failure is not None
            transition = self._failed(outcome.failure.reason)
        if self._transition is None and transition.trajectory.stop is not None:
            raise StepladderError(
                f"question '{transition.trajectory.question.id}' alone is longer than max_observation "
                f"({self.backend.settings.max_observation} characters): increase it, or leave the question out"
            )
        self._transition = transition
        if self._printer is not None:
            self._printer.show(transition.trajectory)
        return transition

    def abandon(self) -> None:
        """Drop the episode."""
        self._transition = None

    def transcript(self) -> str:
        """The episode so far, as rendered text."""
        if self._printer is None:
            raise StepladderError("nothing to render yet: call reset() before render()")
        return self._printer.console.export_text(clear=False)

    def _advance(self, action: str | None) -> Algorithm[Transition]:
        assert self._episode is not None
        settings, reply = self.backend.settings, None
        if action is not None:
            assert self._transition is not None
            reply = as_generation(action, self._transition.context, self.backend.agent.stops, settings.max_action)
        scored = self.backend.reward.uses_steps
        return advance(self._episode, reply, max_chars=settings.max_observation, scored=scored)

    def _failed(self, reason: str) -> Transition:
        """The transition after a failure that is not the policy's fault: the episode ends in its current state."""
        if self._transition is None:
            raise StepladderError(f"the episode could not start: {reason}")
        trajectory = replace(self._transition.trajectory, stop=StopReason.FAILED)
        return Transition(trajectory, self._transition.context, failure=reason)
