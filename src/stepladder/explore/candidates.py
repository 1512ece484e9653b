"""Several steps sampled from one state, to choose among.

In: an agent, a state, seeds. Out (as the generator's return value): `Candidate`s, of which no two do the same. They
keep the order in which they were drawn, so that what is chosen depends on the seeds alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stepladder.agents.base import Agent
from stepladder.core.answer_metrics import normalize
from stepladder.core.requests import Algorithm
from stepladder.core.trace import Action, ActionKind, StopReason, Trajectory
from stepladder.driver.gather import gather
from stepladder.explore.episode import EpisodeConfig, propose_step, take_step


@dataclass(frozen=True, slots=True)
class Candidate:
    """A step that may be gone on from."""

    #: The state with the step. Without a new one the model had no room to write anything.
    trajectory: Trajectory
    #: How many of the samples do the same.
    count: int

    @property
    def is_sound(self) -> bool:
        """Whether something was written, and in the grammar."""
        steps = self.trajectory.steps
        return (
            self.trajectory.stop is not StopReason.CONTEXT_LIMIT
            and bool(steps)
            and steps[-1].action.kind is not ActionKind.MALFORMED
        )


def candidates(
    agent: Agent,
    state: Trajectory,
    settings: EpisodeConfig,
    seeds: Sequence[int],
    *,
    searched: bool = True,
) -> Algorithm[list[Candidate]]:
    """One sample a seed, equal actions once. `searched`: whether queries are searched for at once.

    Samples that fail are left out; where all do, the first error is raised.
    """
    draw = take_step if searched else propose_step
    made = yield from gather(draw(agent, state, settings, seed) for seed in seeds)
    kept = [each for each in made if isinstance(each, Trajectory)]
    if not kept:
        raise next(each for each in made if isinstance(each, Exception))
    distinct: dict[tuple[str, str], Trajectory] = {}
    counts: dict[tuple[str, str], int] = {}
    for each in kept:
        key = action_key(each.steps[-1].action) if len(each.steps) > len(state.steps) else ("", "")
        distinct.setdefault(key, each)
        counts[key] = counts.get(key, 0) + 1
    return [Candidate(trajectory, counts[key]) for key, trajectory in distinct.items()]


def action_key(action: Action) -> tuple[str, str]:
    """What makes two actions the same, however the thoughts before them are worded."""
    plain = "" if action.kind is ActionKind.MALFORMED else normalize(action.content)
    return action.kind.value, plain or action.content
