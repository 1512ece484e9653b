"""An episode slot: the current episode of one environment, played by an external policy.

In: a question, then actions. Out: algorithms to run (`run_slots`), and the `Transition`s they result in. An episode
(`explore/episode.py`) is suspended at every `Generate` request until the action arrives; searches and scores in between
go to the driver, which batches them over environments. `SearchEnv` has one slot, `SearchVectorEnv` has many.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

import numpy as np
from rich.console import Console

from stepladder.core.answer_metrics import AnswerScore, score_question
from stepladder.core.config import unknown_key
from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm, Finish, Generate, Generation, Score, empty_generation
from stepladder.core.step_scorer import NEUTRAL
from stepladder.core.trace import Author, Segment, StopReason, Trajectory
from stepladder.core.trace_printer import TracePrinter
from stepladder.driver import Outcome
from stepladder.engines.base import cut_at_stop
from stepladder.explore.episode import episode
from stepladder.gym.env_config import EnvBackend, EnvConfig, failures_of


@dataclass(frozen=True, slots=True)
class Transition:
    """The state of an episode after a step, or at its start."""

    trajectory: Trajectory
    #: The policy's next prompt; at the end, its last prompt and text.
    context: tuple[Segment, ...]
    #: The score of the last step, between 0 and 1, if steps are scored.
    score: float | None = None
    #: The reason of a failure, if any.
    failure: str = ""

    @property
    def observation(self) -> str:
        """The context as text."""
        return _text_of(self.context)

    @property
    def terminated(self) -> bool:
        """Whether the policy ended the episode, with an answer or a malformed action."""
        return self.trajectory.stop is not None and not self.trajectory.stop.is_truncation

    @property
    def truncated(self) -> bool:
        """Whether a limit or a failure ended the episode."""
        return self.trajectory.stop is not None and self.trajectory.stop.is_truncation

    @property
    def answer_score(self) -> AnswerScore | None:
        """The score of the answer; None before the end, and if there is no gold answer."""
        trajectory = self.trajectory
        if trajectory.stop is None or not trajectory.question.answers:
            return None
        return score_question(trajectory.answer, trajectory.question)

    def info(self) -> dict[str, Any]:
        """The `info` dictionary of Gymnasium."""
        trajectory = self.trajectory
        step = trajectory.steps[-1] if trajectory.steps and not self.failure else None
        info: dict[str, Any] = {
            "trajectory": trajectory,
            "question_id": trajectory.question.id,
            "kind": step.action.kind if step is not None else None,
            "problem": step.action.problem if step is not None else "",
            "passages": step.passages if step is not None else trajectory.given,
            "stop": trajectory.stop,
        }
        if self.score is not None:
            info["step_score"] = self.score
        if (answer := self.answer_score) is not None:
            info |= {"em": answer.em, "f1": answer.f1}
        if self.failure:
            info["failure"] = self.failure
        return info

    def reward(self, settings: EnvConfig) -> float:
        """The reward; 0 at the start of an episode and after a failure."""
        answer = self.answer_score if settings.reward != "process" else None
        outcome = getattr(answer, settings.metric) if answer is not None else 0.0
        weight = settings.process_weight if settings.reward == "both" else 1.0
        return float(outcome + weight * (self.score or 0.0))


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
        #: What the policy is asked for next.
        self._request: Generate | None = None
        #: Whether the context window of the server's model was full when it was asked.
        self._is_full = False
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
        if not self.is_running or self._transition is None:
            raise StepladderError("no episode is running: call reset() before step()")
        text, stopped = cut_at_stop(str(action), self.backend.agent.stop_strings)  # converts numpy strings
        if len(text) > self.backend.settings.max_action:
            text, stopped = text[: self.backend.settings.max_action], False
        finish = Finish.STOP if stopped else Finish.END
        if self._is_full and not text:
            finish = Finish.CONTEXT_FULL
        return self._advance(Generation(self._transition.context, Segment(Author.POLICY, text), text, finish))

    @property
    def is_running(self) -> bool:
        """Whether an episode waits for an action."""
        return self._transition is not None and self._transition.trajectory.stop is None

    def write(self) -> Algorithm[str]:
        """The next action of the model behind the server; empty if its context window is full."""
        if self._request is None or not self.is_running:
            raise StepladderError("no episode is running: call reset() before write()")
        reply: Generation = yield self._request
        self._is_full = reply.finish is Finish.CONTEXT_FULL
        return reply.text

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
        self._transition, self._is_full = transition, False
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

    def _advance(self, reply: Generation | None) -> Algorithm[Transition]:
        """Continue the episode with a reply (None: start it) until the policy has to generate again.

        A context of more than `max_observation` characters ends it, as a full context window would.
        """
        assert self._episode is not None
        limit = self.backend.settings.max_observation
        try:
            request = self._episode.send(reply)
            while not isinstance(request, Generate) or len(_text_of(request.context)) > limit:
                if isinstance(request, Generate):
                    request = self._episode.send(empty_generation(request.context))
                else:
                    request = self._episode.send((yield request))
            assert request.trajectory is not None
            self._request = request
            trajectory, context = request.trajectory, request.context
        except StopIteration as end:
            trajectory, context = end.value, end.value.context()
        if reply is None or not self.backend.uses_steps:
            return Transition(trajectory, context)
        score = (yield Score(trajectory))[-1]
        return Transition(trajectory, context, NEUTRAL if score is None else float(score))

    def _failed(self, reason: str) -> Transition:
        """The transition after a failure that is not the policy's fault: the episode ends in its current state."""
        if self._transition is None:
            raise StepladderError(f"the episode could not start: {reason}")
        trajectory = replace(self._transition.trajectory, stop=StopReason.FAILED)
        return Transition(trajectory, self._transition.context, failure=reason)


def run_slots(backend: EnvBackend, pending: Mapping[EpisodeSlot, Algorithm[Transition]]) -> list[Transition]:
    """Run the algorithms of slots together. If that raises, their state is unknown: all have to be reset."""
    try:
        outcomes = backend.run(list(pending.values()))
        return [slot.finish_step(outcome) for slot, outcome in zip(pending, outcomes)]
    except BaseException:
        for slot in pending:
            slot.abandon()
        raise


def write_actions(backend: EnvBackend, slots: Sequence[EpisodeSlot]) -> list[str]:
    """The next actions of the model behind the server, in concurrent calls. Changes no episode."""
    if backend.settings.server is None:
        raise StepladderError("no model writes actions here: make the environment with server={'model': NAME, ...}")
    outcomes = backend.run([slot.write() for slot in slots])
    if failures := failures_of(outcomes):
        raise StepladderError(f"{len(failures)} of {len(slots)} actions were not written: {failures[0].reason}")
    return [outcome.value or "" for outcome in outcomes]


def _text_of(context: Sequence[Segment]) -> str:
    """The policy's prompt as one text."""
    return "".join(segment.text for segment in context)
