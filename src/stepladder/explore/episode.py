"""One episode: an agent answers one question, step by step, until it answers, errs or meets a limit.

In: an agent, a question, settings, a seed. Out (as the generator's return value): a `Trajectory`. `take_step` is one
turn on its own, `propose_step` and `look_up` are its halves; searches that branch, such as MCTS, are built from them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from stepladder.agents.base import Agent
from stepladder.core.requests import (
    Algorithm,
    AnyRequest,
    Finish,
    Generate,
    Generation,
    Request,
    Result,
    Retrieve,
    Sampling,
    requests_in,
)
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Action, ActionKind, Question, Segment, Step, StopReason, Trajectory, Usage
from stepladder.core.unicode import replace_surrogates


@dataclass(frozen=True, slots=True)
class EpisodeConfig:
    """Limits and sampling of an episode."""

    #: Most steps of the policy; a search and its sub-answer are two.
    max_steps: int = 12
    #: Passages a search returns.
    k: int = 3
    sampling: Sampling = Sampling()

    def __post_init__(self) -> None:
        if self.max_steps < 1 or self.k < 1:
            raise ValueError(f"max_steps is {self.max_steps} and k is {self.k}; both must be at least 1")


def episode(agent: Agent, question: Question, settings: EpisodeConfig, seed: int) -> Algorithm[Trajectory]:
    """Play one question from start to end. Samples of one question differ by their seeds."""
    trajectory = yield from begin(agent, question, settings, seed)
    while trajectory.stop is None:
        trajectory = yield from take_step(agent, trajectory, settings, seed_of(seed, len(trajectory.steps)))
    return trajectory


def begin(agent: Agent, question: Question, settings: EpisodeConfig, seed: int) -> Algorithm[Trajectory]:
    """The state before the first step; agents that look first have searched."""
    trajectory = Trajectory(question, agent.name, seed=seed)
    query = agent.opening_query(question)
    if query is None:
        return trajectory
    return replace(trajectory, given=(yield Retrieve(query, settings.k)))


def take_step(agent: Agent, trajectory: Trajectory, settings: EpisodeConfig, seed: int) -> Algorithm[Trajectory]:
    """The trajectory with one more step: written by the engine, parsed by the agent, answered by the search."""
    proposed = yield from propose_step(agent, trajectory, settings, seed)
    return (yield from look_up(proposed, settings))


def propose_step(agent: Agent, trajectory: Trajectory, settings: EpisodeConfig, seed: int) -> Algorithm[Trajectory]:
    """The trajectory with one more step as the policy wrote it. If that is a query, nobody has searched for it yet."""
    rendered = agent.render(trajectory)
    if settings.sampling.temperature == 0:
        seed = 0  # nothing is drawn, and equal states ask for the same
    reply: Generation = yield Generate(rendered, agent.stops, settings.sampling, seed, trajectory)
    if reply.finish is Finish.CONTEXT_FULL and not reply.text:
        return replace(trajectory, stop=StopReason.CONTEXT_LIMIT)
    action = _writable(agent.parse(reply.text, trajectory))
    read, restarts = new_segments(trajectory, reply.context)
    step = Step(read, reply.written, action, restarts=restarts, usage=reply.usage)
    if action.kind is ActionKind.ANSWER:
        return trajectory.extend(step, StopReason.ANSWERED)
    if action.kind is ActionKind.MALFORMED:
        return trajectory.extend(step, _CUT_OFF.get(reply.finish, StopReason.MALFORMED))
    if len(trajectory.steps) + 1 >= settings.max_steps:  # nobody would read what a search found now
        return trajectory.extend(step, StopReason.STEP_LIMIT)
    return trajectory.extend(step)


def _writable(action: Action) -> Action:
    """An action that can be kept in a file: escapes of JSON can stand for halves of characters."""
    return replace(action, content=replace_surrogates(action.content), thought=replace_surrogates(action.thought))


def look_up(trajectory: Trajectory, settings: EpisodeConfig) -> Algorithm[Trajectory]:
    """The trajectory with what the search found for its newest step, where that is a query to go on from."""
    if trajectory.stop is not None or trajectory.steps[-1].action.kind is not ActionKind.QUERY:
        return trajectory
    *before, query = trajectory.steps
    found = yield Retrieve(query.action.content, settings.k)
    return replace(trajectory, steps=(*before, replace(query, passages=found)))


#: Malformed text that was cut off is the limit's doing, not the policy's.
_CUT_OFF = {Finish.LENGTH: StopReason.TOKEN_LIMIT, Finish.CONTEXT_FULL: StopReason.CONTEXT_LIMIT}


def new_segments(trajectory: Trajectory, context: Sequence[Segment]) -> tuple[tuple[Segment, ...], bool]:
    """What a context adds to the steps so far, and whether it begins anew instead of going on from them."""
    known = trajectory.context()
    goes_on = tuple(context[: len(known)]) == known
    return (tuple(context[len(known) :]), False) if goes_on else (tuple(context), True)


def watch_states(algorithm: Algorithm[Any], look: Callable[[Trajectory], None]) -> Algorithm[Any]:
    """The same algorithm; `look` is shown the state before every generation, and the final trajectory."""

    def see(asked: AnyRequest) -> None:
        states = [each.trajectory for each in requests_in(asked) if isinstance(each, Generate)]
        if states and states[0] is not None:
            look(states[0])

    found = yield from _observed(algorithm, asked=see)
    if isinstance(found, Trajectory):
        look(found)
    return found


@dataclass(slots=True)
class Cost:
    """What an algorithm has taken, with all that it threw away."""

    usage: Usage = Usage()
    searches: int = 0


def metered(algorithm: Algorithm[Result], cost: Cost) -> Algorithm[Result]:
    """The same algorithm; what it takes is added to `cost`."""

    def count(asked: AnyRequest, replies: Any) -> None:
        for request, reply in zip(requests_in(asked), [replies] if isinstance(asked, Request) else replies):
            if isinstance(reply, Generation):
                cost.usage += reply.usage
            cost.searches += isinstance(request, Retrieve)

    return (yield from _observed(algorithm, answered=count))


def _observed(
    algorithm: Algorithm[Result],
    *,
    asked: Callable[[AnyRequest], None] = lambda _: None,
    answered: Callable[[AnyRequest, Any], None] = lambda _, __: None,
) -> Algorithm[Result]:
    """The same algorithm; onlookers are told what it asks for, and what it gets."""
    go_on: Callable[[], AnyRequest] = partial(next, algorithm)
    while True:
        try:
            asking = go_on()
        except StopIteration as end:
            found: Result = end.value
            return found
        asked(asking)
        try:
            reply = yield asking
        except Exception as error:  # noqa: BLE001 - the algorithm may handle it, as it would unobserved
            go_on = partial(algorithm.throw, error)
        else:
            answered(asking, reply)
            go_on = partial(algorithm.send, reply)
