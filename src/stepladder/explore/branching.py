"""Trees by branching: roll out some episodes, then sample other continuations from states along them.

In: an agent, a question, the number of episodes (stems) and of branches. Out (as the generator's return value): a
`Tree` whose terminal nodes have rewards. Every terminal node is one sample of the values of all states before it, and
shared prefixes are generated once: online RL gets step values for less than the cost of as many separate episodes
(TreePS-RAG, Tree-GRPO).
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from stepladder.agents.base import Agent
from stepladder.core.answer_metrics import score
from stepladder.core.requests import Algorithm
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Node, Question, Trajectory, Tree
from stepladder.driver.gather import gather
from stepladder.explore.episode import EpisodeConfig, initial_state, run_to_end


def branching(
    agent: Agent, question: Question, settings: EpisodeConfig, seed: int, *, stems: int, branches: int
) -> Algorithm[Tree]:
    """A tree with `stems` episodes from the question and `branches` more from states along them.

    Branches are distributed evenly over the stems; each starts at a random state inside its stem.
    """
    if stems < 1 or branches < 0:
        raise ValueError(f"stems is {stems} and branches is {branches}; at least one stem is needed")
    start = yield from initial_state(agent, question, settings, seed)
    builder = _TreeBuilder(start, seed)
    episodes = yield from gather(
        run_to_end(agent, start, settings, seed_of(seed, "stem", number)) for number in range(stems)
    )
    for result in episodes:
        builder.add([0], result)
    if not builder.paths:
        errors = [each for each in episodes if isinstance(each, Exception)]
        if errors:
            raise errors[0]
        return builder.tree()
    rng = random.Random(seed_of(seed, "branch"))
    # A branch from the root would be another stem, unless the stem has no other state.
    states = [[path[:length] for length in range(2, len(path))] or [path[:1]] for path, _ in builder.paths]
    origins = [rng.choice(states[number % len(states)]) for number in range(branches)]
    continued = yield from gather(
        run_to_end(agent, builder.state(origin), settings, seed_of(seed, "branch", number))
        for number, origin in enumerate(origins)
    )
    for origin, result in zip(origins, continued, strict=True):
        builder.add(origin, result)
    return builder.tree()


class _TreeBuilder:
    """Builds a tree from episodes. A path is the node ids from the root to a state."""

    def __init__(self, start: Trajectory, seed: int) -> None:
        self.start = start
        self.seed = seed
        self.nodes: list[Node] = [Node(0, None, None)]
        #: Every finished episode behind its path.
        self.paths: list[tuple[list[int], Trajectory]] = []
        self.failures = 0

    def add(self, origin: Sequence[int], result: Trajectory | Exception) -> None:
        """Add an episode that continues from a state, or count its failure."""
        if isinstance(result, Exception) or not result.steps:
            self.failures += 1
            return
        path = list(origin)
        for step in result.steps[len(origin) - 1 :]:
            self.nodes.append(Node(len(self.nodes), path[-1], step))
            path.append(self.nodes[-1].id)
        self.paths.append((path, result))

    def state(self, path: Sequence[int]) -> Trajectory:
        """The trajectory to a state, without a stop reason."""
        return replace(self.start, steps=tuple(step for node in path if (step := self.nodes[node].step) is not None))

    def tree(self) -> Tree:
        """The finished tree. The value of a node is the mean reward of the terminal nodes below it."""
        rewards: list[list[float]] = [[] for _ in self.nodes]
        for path, trajectory in self.paths:
            reward = score(trajectory).f1
            self.nodes[path[-1]] = replace(self.nodes[path[-1]], stop=trajectory.stop, reward=reward)
            for node in path:
                rewards[node].append(reward)
        nodes = tuple(
            replace(node, visits=len(own), value=sum(own) / max(len(own), 1)) for node, own in zip(self.nodes, rewards)
        )
        return Tree(self.start.question, self.start.agent, nodes, self.start.given, self.seed, self.failures)
