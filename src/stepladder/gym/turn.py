"""One turn of an episode whose policy is outside: it writes, and reads what comes of it.

In: an episode (`explore/episode.py`), suspended where it asks for a generation, and the text that the policy wrote.
Out: a `Turn`, when the episode asks for the next generation or is over. Searches and scores in between are asked of
the driver, which gathers those of many environments.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stepladder.core.answer_metrics import AnswerScore, score_answer
from stepladder.core.requests import Algorithm, Finish, Generate, Generation, Score, empty_generation
from stepladder.core.trace import Author, Segment, Trajectory
from stepladder.engines.base import cut_at_stop


@dataclass(frozen=True, slots=True)
class Turn:
    """Where an episode stands after a turn, or at its beginning."""

    trajectory: Trajectory
    #: What the policy reads next; at the end, what it read and wrote last.
    context: tuple[Segment, ...]
    #: What the newest step is worth, between 0 and 1, where steps are scored.
    score: float | None = None
    #: Why the episode broke, if it did.
    failure: str = ""

    @property
    def observation(self) -> str:
        """The context as text."""
        return text_of(self.context)

    @property
    def terminated(self) -> bool:
        """Whether the policy ended the episode, by answering or by breaking the grammar."""
        return self.trajectory.stop is not None and not self.trajectory.stop.is_truncation

    @property
    def truncated(self) -> bool:
        """Whether a limit or a failure ended the episode."""
        return self.trajectory.stop is not None and self.trajectory.stop.is_truncation

    @property
    def answer_score(self) -> AnswerScore | None:
        """How good the answer is; None before the end, and where no answer is known."""
        trajectory = self.trajectory
        if trajectory.stop is None or not trajectory.question.answers:
            return None
        return score_answer(trajectory.answer, trajectory.question.answers)

    def info(self) -> dict[str, Any]:
        """What Gymnasium's `info` says of the turn."""
        trajectory = self.trajectory
        step = trajectory.steps[-1] if trajectory.steps and not self.failure else None
        told: dict[str, Any] = {
            "trajectory": trajectory,
            "question_id": trajectory.question.id,
            "kind": step.action.kind if step is not None else None,
            "problem": step.action.problem if step is not None else "",
            "passages": step.passages if step is not None else trajectory.given,
            "stop": trajectory.stop,
        }
        if self.score is not None:
            told["step_score"] = self.score
        if (answer := self.answer_score) is not None:
            told |= {"em": answer.em, "f1": answer.f1}
        if self.failure:
            told["failure"] = self.failure
        return told


def text_of(context: Sequence[Segment]) -> str:
    """What a policy reads, as one text."""
    return "".join(segment.text for segment in context)


def written(action: str, context: tuple[Segment, ...], stops: Sequence[str], longest: int) -> Generation:
    """An action as the reply of an engine: cut behind the first stop string, and at the most characters allowed."""
    text, stopped = cut_at_stop(action, stops)
    if len(text) > longest:
        text, stopped = text[:longest], False
    return Generation(context, Segment(Author.POLICY, text), text, Finish.STOP if stopped else Finish.END)


def take_turn(
    episode: Algorithm[Trajectory], reply: Generation | None, *, longest: int, scored: bool
) -> Algorithm[Turn]:
    """Let an episode go on from a reply (None: begin) until the policy has to write again.

    A context of more than `longest` characters ends it, as a model's window would. `scored`: ask what the new step is
    worth.
    """
    asked = yield from _until_asked(episode, reply, longest)
    if isinstance(asked, Generate):
        assert asked.trajectory is not None
        trajectory, context = asked.trajectory, asked.context
    else:
        trajectory, context = asked, asked.context()
    if not scored or reply is None:
        return Turn(trajectory, context)
    scores = yield Score(trajectory)
    return Turn(trajectory, context, float(scores[-1]))


def _until_asked(
    episode: Algorithm[Trajectory], reply: Generation | None, longest: int
) -> Algorithm[Generate | Trajectory]:
    """What the episode asks the policy, or how it ended."""
    try:
        asking = episode.send(reply)
        while True:
            if not isinstance(asking, Generate):
                asking = episode.send((yield asking))
            elif len(text_of(asking.context)) > longest:
                asking = episode.send(empty_generation(asking.context))
            else:
                return asking
    except StopIteration as end:
        ended: Trajectory = end.value
        return ended
