"""The agent that is served: how it plays a question, and what is known of it. HTTP and MCP ask it the same way.

In: text from a client. Out: algorithms for the player.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from secrets import randbits

from stepladder.core.requests import Algorithm, Retrieve, Sampling
from stepladder.core.trace import Passage, Question, Trajectory
from stepladder.driver import Driver

#: Says how a question is played with some sampling and a seed: an episode, or a search that a reward model guides.
Play = Callable[[Question, Sampling, int], Algorithm[Trajectory]]

#: Bits of a seed that the server draws: as many as every JSON reader keeps.
_SEED_BITS = 48


@dataclass(frozen=True, slots=True)
class ServedAgent:
    """A way to play questions, and the engine and index to play them on."""

    driver: Driver
    play: Play
    #: Where a client does not say; its tokens are the most a client may ask for.
    sampling: Sampling = Sampling()
    #: Passages a search returns, where a client does not say.
    k: int = 3
    #: For clients that want to know: the agent, its model, its index.
    info: Mapping[str, object] = field(default_factory=dict)
    #: Whether the steps in hand while it plays are those of the trajectory in the end.
    live: bool = True

    @property
    def searches(self) -> bool:
        """Whether there is an index, in which clients can search too."""
        return self.driver.retriever is not None

    def question(self, text: str, sampling: Sampling | None = None, seed: int | None = None) -> Algorithm[Trajectory]:
        """Play a question; without a seed, with one of its own, which its trajectory names."""
        # One id for all: equal questions of several clients are then equal work, which is done once.
        asked = Question("asked", text, ())
        return self.play(asked, sampling or self.sampling, randbits(_SEED_BITS) if seed is None else seed)

    def search(self, query: str, k: int | None = None) -> Algorithm[tuple[Passage, ...]]:
        """Search the agent's index."""
        found: tuple[Passage, ...] = yield Retrieve(query, k or self.k)
        return found
