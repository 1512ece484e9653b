"""The served agent, used by the HTTP and MCP servers.

In: text from a client. Out: algorithms for the scheduler.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from secrets import randbits

from stepladder.agents.base import Agent
from stepladder.core.requests import Algorithm, Retrieve, Sampling
from stepladder.core.trace import Passage, Question, Trajectory
from stepladder.driver import Driver
from stepladder.explore.episode import EpisodeConfig

#: The algorithm that answers a question with a sampling and a seed: an episode, or a search guided by a reward model.
RunEpisode = Callable[[Question, Sampling, int], Algorithm[Trajectory]]

#: Bits of seeds drawn by the server: exact in every JSON parser.
_SEED_BITS = 48


@dataclass(frozen=True, slots=True)
class ServedAgent:
    """How questions are answered, with the driver of engine and retriever."""

    driver: Driver
    run_episode: RunEpisode
    #: Default sampling; its `max_tokens` is also the upper limit.
    sampling: Sampling = Sampling()
    #: Default number of passages per search.
    k: int = 3
    #: Shown to clients: the agent, its model, its index.
    info: Mapping[str, object] = field(default_factory=dict)
    #: Whether steps can be reported as they are made: they are those of the final trajectory.
    live: bool = True
    #: Of plain episodes: the agent and its limits, to continue from a step that a user has edited.
    agent: Agent | None = None
    limits: EpisodeConfig | None = None

    @property
    def can_search(self) -> bool:
        """Whether there is an index that clients can search."""
        return self.driver.retriever is not None

    def question(self, text: str, sampling: Sampling | None = None, seed: int | None = None) -> Algorithm[Trajectory]:
        """Answer a question; without a seed, one is drawn and stored in the trajectory."""
        # The same id for all: equal questions of several clients are then computed once.
        question = Question("asked", text, ())
        return self.run_episode(question, sampling or self.sampling, randbits(_SEED_BITS) if seed is None else seed)

    def search(self, query: str, k: int | None = None) -> Algorithm[tuple[Passage, ...]]:
        """Search the agent's index."""
        passages: tuple[Passage, ...] = yield Retrieve(query, k or self.k)
        return passages
