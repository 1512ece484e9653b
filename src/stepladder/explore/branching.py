"""Trees by branching: roll out some episodes, then sample other continuations from states along them.

In: an agent, a question, the number of episodes (stems) and of branches. Out (as the generator's return value): a
`Tree` whose terminal nodes have rewards. Every terminal node is one sample of the values of all states before it, and
shared prefixes are generated once: online RL gets step values for less than the cost of as many separate episodes
(TreePS-RAG, Tree-GRPO).
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from stepladder.agents.base import Agent
from stepladder.core.answer_metrics import score
from stepladder.core.requests import Algorithm
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Node, Question, Trajectory, Tree
from stepladder.driver.gather import gather
from stepladder.explore.episode import EpisodeConfig, initial_state, run_to_end


@dataclass(frozen=True, slots=True)
class _Branch:
    """An episode that continues from a node: the node, and the complete trajectory."""

    origin: int
    trajectory: Trajectory


def branching(
    agent: Agent, question: Question, settings: EpisodeConfig, seed: int, *, stems: int, branches: int
) -> Algorithm[Tree]:
    """A tree with `stems` episodes from the question and `branches` more from states along them.

    Branches are distributed evenly over the stems; each starts at a random state inside its stem.
    """
    if stems < 1 or branches < 0:
        raise ValueError(f"stems is {stems} and branches is {branches}; at least one stem is needed")
    start = yield from initial_state(agent, question, settings, seed)
    episodes = yield from gather(
        run_to_end(agent, start, settings, seed_of(seed, "stem", number)) for number in range(stems)
    )
    builder = _TreeBuilder(start, seed)
    paths = [builder.add(_Branch(0, trajectory)) for trajectory in _finished(episodes, builder)]
    rng = random.Random(seed_of(seed, "branch"))
    states_of = [path[1:-1] or path[:1] for path in paths]  # a branch from the root would be another stem
    origins = [rng.choice(states_of[number % len(paths)]) for number in range(branches)] if paths else []
    states = {node: builder.state(node) for node in set(origins)}
    continued = yield from gather(
        run_to_end(agent, states[origin], settings, seed_of(seed, "branch", number))
        for number, origin in enumerate(origins)
    )
    for origin, result in zip(origins, continued, strict=True):
        for trajectory in _finished([result], builder):
            builder.add(_Branch(origin, trajectory))
    return builder.tree()


def _finished(results: Iterable[Trajectory | Exception], builder: "_TreeBuilder") -> list[Trajectory]:
    """The finished episodes; the others are counted as failures."""
    found = list(results)
    kept = [each for each in found if isinstance(each, Trajectory) and each.steps]
    builder.failures += len(found) - len(kept)
    errors = [each for each in found if isinstance(each, Exception)]
    if errors and not kept and not builder.paths:
        raise errors[0]
    return kept


class _TreeBuilder:
    """Builds a tree from branches."""

    def __init__(self, start: Trajectory, seed: int) -> None:
        self.start = start
        self.seed = seed
        self.nodes: list[Node] = [Node(0, None, None)]
        self.failures = 0
        #: The node ids of each branch, from the root to its end.
        self.paths: list[Sequence[int]] = []

    def add(self, branch: _Branch) -> Sequence[int]:
        """Add a branch behind its origin; returns its node ids from the root."""
        steps = branch.trajectory.steps
        path = self._path(branch.origin)
        for step in steps[len(path) - 1 :]:
            self.nodes.append(Node(len(self.nodes), path[-1], step))
            path.append(self.nodes[-1].id)
        end = self.nodes[path[-1]]
        self.nodes[end.id] = replace(end, stop=branch.trajectory.stop, reward=score(branch.trajectory).f1)
        for node in path:
            self.nodes[node] = replace(self.nodes[node], visits=self.nodes[node].visits + 1)
        self.paths.append(path)
        return path

    def state(self, node: int) -> Trajectory:
        """The trajectory to a node, without a stop reason."""
        steps = tuple(step for each in self._path(node) if (step := self.nodes[each].step) is not None)
        return replace(self.start, steps=steps)

    def _path(self, node: int) -> list[int]:
        path = [node]
        while (parent := self.nodes[path[-1]].parent) is not None:
            path.append(parent)
        return path[::-1]

    def tree(self) -> Tree:
        """The finished tree. The value of a node is the mean reward of the terminal nodes below it."""
        sums = [0.0] * len(self.nodes)
        for path in self.paths:
            for node in path:
                sums[node] += self.nodes[path[-1]].reward or 0.0
        nodes = tuple(replace(node, value=sums[node.id] / max(node.visits, 1)) for node in self.nodes)
        return Tree(self.start.question, self.start.agent, nodes, self.start.given, self.seed, self.failures)
