"""A step that a person writes in place of the policy, to see how the policy continues from there.

In: a trajectory, the position of the step to replace, an action. Out: the trajectory up to that position with the new
step. The passages of a query are not retrieved yet (`retrieve_passages`).

What the step reads is what the replaced step has read, with the same token ids. Its text is the agent's `write`, the
format in which the policy writes, in the policy's turn; it has no token ids and no log-probs, because no model sampled
it: the next engine that reads it encodes it, as it does with a gold transcript.
"""

from dataclasses import replace

from stepladder.agents.base import Agent
from stepladder.core.errors import StepladderError
from stepladder.core.requests import Finish
from stepladder.core.trace import Action, ActionKind, Author, Segment, Step, StopReason, Trajectory
from stepladder.explore.episode import EpisodeConfig, must_answer, stop_reason


def prefix(trajectory: Trajectory, steps: int) -> Trajectory:
    """The first steps of a trajectory, which continues."""
    return replace(trajectory, steps=trajectory.steps[:steps], stop=None)


def kinds_due(agent: Agent, trajectory: Trajectory, settings: EpisodeConfig) -> frozenset[ActionKind]:
    """The kinds of action that may come next."""
    return agent.due(trajectory, forced=must_answer(agent, trajectory, settings)) - {ActionKind.MALFORMED}


def replace_step(
    agent: Agent, trajectory: Trajectory, position: int, action: Action, settings: EpisodeConfig
) -> Trajectory:
    """Replace the step at a position, and drop those after it. Raises if the agent cannot take this action there."""
    before, replaced = prefix(trajectory, position), trajectory.steps[position]
    forced = must_answer(agent, before, settings)
    due = kinds_due(agent, before, settings)
    if action.kind not in due:
        kinds = " or ".join(sorted(kind.value for kind in due))
        raise StepladderError(f"step {position + 1} cannot be '{action.kind.value}': expected {kinds}")
    text, read = agent.write(action, before), replaced.read
    opening = agent.opening(before, forced=forced)
    if opening and text.startswith(opening):
        text = text.removeprefix(opening)
    elif opening and read and read[-1].text == opening:
        read = read[:-1]
    parsed = agent.read_action(text, before, forced=forced)
    if parsed.kind is not action.kind or not parsed.content:
        problem = parsed.problem or "its text would be read as something else"
        raise StepladderError(f"step {position + 1} cannot be written like this: {problem}")
    step = Step(read, Segment(Author.POLICY, text), parsed, restarts=replaced.restarts)
    if parsed.kind is ActionKind.ANSWER:
        return before.extend(step, StopReason.FORCED if forced else StopReason.ANSWERED)
    after = before.extend(step)
    stop = stop_reason(agent, after, settings, Finish.STOP, forced=forced)
    return replace(after, stop=stop)
