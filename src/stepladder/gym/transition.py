"""One transition of an episode with an external policy.

In: an episode (`explore/episode.py`), suspended at a `Generate` request, and the policy's text. Out: a `Transition` at
the next `Generate` request or at the end. Searches and scores in between go to the driver, which batches them over
environments.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stepladder.core.answer_metrics import AnswerScore, score_answer
from stepladder.core.requests import Algorithm, Finish, Generate, Generation, Score, empty_generation
from stepladder.core.trace import Author, Segment, Trajectory
from stepladder.engines.base import cut_at_stop


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
        return text_of(self.context)

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
        return score_answer(trajectory.answer, trajectory.question.answers)

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


def text_of(context: Sequence[Segment]) -> str:
    """The policy's prompt as one text."""
    return "".join(segment.text for segment in context)


def as_generation(action: str, context: tuple[Segment, ...], stops: Sequence[str], max_chars: int) -> Generation:
    """An action as an engine's reply: truncated after the first stop string and to the maximum length."""
    text, stopped = cut_at_stop(action, stops)
    if len(text) > max_chars:
        text, stopped = text[:max_chars], False
    return Generation(context, Segment(Author.POLICY, text), text, Finish.STOP if stopped else Finish.END)


def advance(
    episode: Algorithm[Trajectory], reply: Generation | None, *, max_chars: int, scored: bool
) -> Algorithm[Transition]:
    """Continue an episode with a reply (None: start it) until the policy has to generate again.

    A context of more than `max_chars` characters ends it, as a full context window would. `scored`: score the new step.
    """
    result = yield from _until_generate(episode, reply, max_chars)
    if isinstance(result, Generate):
        assert result.trajectory is not None
        trajectory, context = result.trajectory, result.context
    else:
        trajectory, context = result, result.context()
    if not scored or reply is None:
        return Transition(trajectory, context)
    scores = yield Score(trajectory)
    return Transition(trajectory, context, float(scores[-1]))


def _until_generate(
    episode: Algorithm[Trajectory], reply: Generation | None, max_chars: int
) -> Algorithm[Generate | Trajectory]:
    """The next `Generate` request of the episode, or its final trajectory."""
    try:
        request = episode.send(reply)
        while True:
            if not isinstance(request, Generate):
                request = episode.send((yield request))
            elif len(text_of(request.context)) > max_chars:
                request = episode.send(empty_generation(request.context))
            else:
                return request
    except StopIteration as end:
        trajectory: Trajectory = end.value
        return trajectory
