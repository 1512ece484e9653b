"""Candidate steps sampled from one state.

In: an agent, a state, seeds. Out (as the generator's return value): `Candidate`s with distinct actions, in the order of
the seeds, so that a choice among them depends on the seeds alone.
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
    """A state with one sampled step."""

    #: Without a new step if the context window was full.
    trajectory: Trajectory
    #: The number of samples with this action.
    count: int

    @property
    def is_well_formed(self) -> bool:
        """Whether a step was written in the agent's format."""
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
    retrieve: bool = True,
) -> Algorithm[list[Candidate]]:
    """One sample per seed; equal actions become one candidate. `retrieve`: also retrieve the passages of queries.

    Failed samples are dropped; if all fail, the first error is raised.
    """
    sample = take_step if retrieve else propose_step
    sampled = yield from gather(sample(agent, state, settings, seed) for seed in seeds)
    kept = [each for each in sampled if isinstance(each, Trajectory)]
    if not kept:
        raise next(each for each in sampled if isinstance(each, Exception))
    distinct: dict[tuple[str, str], Trajectory] = {}
    counts: dict[tuple[str, str], int] = {}
    for each in kept:
        key = action_key(each.steps[-1].action) if len(each.steps) > len(state.steps) else ("", "")
        distinct.setdefault(key, each)
        counts[key] = counts.get(key, 0) + 1
    return [Candidate(trajectory, counts[key]) for key, trajectory in distinct.items()]


def action_key(action: Action) -> tuple[str, str]:
    """Equal for actions that count as the same; thoughts do not matter."""
    plain = "" if action.kind is ActionKind.MALFORMED else normalize(action.content)
    return action.kind.value, plain or action.content
