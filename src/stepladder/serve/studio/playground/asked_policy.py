"""A policy that the playground can ask, and where its policies come from.

In: a scheduler with a driver, and how a question becomes an algorithm. Out: `AskedPolicy`. `PolicySource` is what the
page is served with: the policies that a user names (loaded_policies.py), or the one agent of `serve-agent`
(`FixedPolicy`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stepladder.agents.base import Agent
from stepladder.core.requests import Algorithm, Sampling
from stepladder.core.trace import Question, Trajectory
from stepladder.explore.episode import EpisodeConfig
from stepladder.serve.agent.scheduler import Scheduler
from stepladder.serve.agent.served_agent import ServedAgent
from stepladder.serve.http.http_errors import HTTPError
from stepladder.serve.server_configs import AgentServerConfig
from stepladder.serve.studio.playground.playground_requests import PolicyRequest


@dataclass(frozen=True, slots=True)
class AskedPolicy:
    """A policy with an engine, an index and limits, ready to be asked."""

    #: Equal for equal policies: kept answers are continued by the policy that gave them.
    key: object
    scheduler: Scheduler
    run_episode: Callable[[Question, Sampling, int], Algorithm[Trajectory]]
    #: Default sampling; its `max_tokens` is the limit of a step.
    sampling: Sampling
    #: Of plain episodes, whose steps can be edited; None for searches that choose among candidates.
    agent: Agent | None = None
    limits: EpisodeConfig = EpisodeConfig()
    #: Whether a reward model scores the steps.
    scores: bool = False
    #: Whether steps can be shown as they are made.
    live: bool = True
    #: The question of the data with this text, or a new one. May take seconds.
    find_question: Callable[[str], Question] = lambda text: Question("asked", text, ())
    #: What the page says about it: label, agent, model, index, reward model, whether it is the oracle.
    about: Mapping[str, Any] = field(default_factory=dict)


class PolicySource(Protocol):
    """Where the policies of a playground come from."""

    #: Whether the user names the policy. Otherwise there is only one.
    names_policies: bool
    #: Characters of a question, and seconds of an answer.
    max_characters: int
    answer_seconds: float

    def choices(self) -> dict[str, Any]:
        """What the page offers: policies, agents, data sets, what is loaded."""

    async def acquire(self, request: PolicyRequest) -> AskedPolicy:
        """The policy, loaded if it is not. It stays loaded until it is released. Raises `HTTPError`."""

    def release(self, policy: AskedPolicy) -> None:
        """The policy has answered."""

    def examples(self, request: PolicyRequest) -> Sequence[Question]:
        """Questions of the data that belongs to the policy. May take seconds."""

    async def close(self) -> None:
        """Free everything."""


class FixedPolicy:
    """The agent of `serve-agent`, which is always the same."""

    names_policies = False

    def __init__(self, agent: ServedAgent, scheduler: Scheduler, config: AgentServerConfig) -> None:
        self.max_characters, self.answer_seconds = config.max_characters, config.answer_seconds
        name = config.model
        about = {"label": name, **{key: agent.info.get(key) for key in ("agent", "index")}, "oracle": False}
        limits = agent.limits or EpisodeConfig(sampling=agent.sampling, k=agent.k)
        self._policy = AskedPolicy(
            name,
            scheduler,
            agent.run_episode,
            agent.sampling,
            agent.agent,
            limits,
            scores=agent.driver.scorer is not None,
            live=agent.live,
            about=about,
        )

    def choices(self) -> dict[str, Any]:
        """The one agent."""
        return {"policies": [], "fixed": dict(self._policy.about)}

    async def acquire(self, request: PolicyRequest) -> AskedPolicy:
        """The one agent."""
        if any(request.model_dump().values()):
            raise HTTPError(422, "this server serves one agent: leave the policy empty")
        return self._policy

    def release(self, policy: AskedPolicy) -> None:
        """Nothing: it stays."""

    def examples(self, request: PolicyRequest) -> Sequence[Question]:  # noqa: ARG002
        """None: a served agent has no data."""
        return ()

    async def close(self) -> None:
        """Nothing: the server closes its agent."""
