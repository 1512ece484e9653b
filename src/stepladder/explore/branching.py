"""Trees by branching off: play some episodes to their ends, then go on differently from states along their way.

In: an agent, a question, how many episodes to begin with, how many branches to add. Out (as the generator's return
value): a `Tree` whose ends have their rewards. Every end is one sample of what all states before it are worth, and
what branches share is written once: online RL gets values of single steps for less than the price of as many separate
episodes (TreePS-RAG, Tree-GRPO).
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
from stepladder.explore.episode import EpisodeConfig, begin, take_step


@dataclass(frozen=True, slots=True)
class _Branch:
    """An episode that went on from a node: which one, and the whole trajectory to its end."""

    origin: int
    trajectory: Trajectory


def branching(
    agent: Agent, question: Question, settings: EpisodeConfig, seed: int, *, stems: int, branches: int
) -> Algorithm[Tree]:
    """A tree with `stems` episodes from the question and `branches` more from states along them.

    Branches are shared equally by the stems; each begins at a state drawn among those between the ends of its stem.
    """
    if stems < 1 or branches < 0:
        raise ValueError(f"stems is {stems} and branches is {branches}; there must be at least one stem")
    start = yield from begin(agent, question, settings, seed)
    played = yield from gather(
        _play_on(agent, start, settings, seed_of(seed, "stem", number)) for number in range(stems)
    )
    grown = _Grown(start, seed)
    whole = [grown.add(_Branch(0, trajectory)) for trajectory in _kept(played, grown)]
    rng = random.Random(seed_of(seed, "branch"))
    states_of = [path[1:-1] or path[:1] for path in whole]  # from the question itself would be another stem
    origins = [rng.choice(states_of[number % len(whole)]) for number in range(branches)] if whole else []
    states = {node: grown.state(node) for node in set(origins)}
    continued = yield from gather(
        _play_on(agent, states[origin], settings, seed_of(seed, "branch", number))
        for number, origin in enumerate(origins)
    )
    for origin, result in zip(origins, continued, strict=True):
        for trajectory in _kept([result], grown):
            grown.add(_Branch(origin, trajectory))
    return grown.tree()


def _play_on(agent: Agent, state: Trajectory, settings: EpisodeConfig, seed: int) -> Algorithm[Trajectory]:
    while state.stop is None:
        state = yield from take_step(agent, state, settings, seed_of(seed, len(state.steps)))
    return state


def _kept(results: Iterable[Trajectory | Exception], grown: "_Grown") -> list[Trajectory]:
    """Those that came to an end; the others are counted."""
    found = list(results)
    kept = [each for each in found if isinstance(each, Trajectory) and each.steps]
    grown.failures += len(found) - len(kept)
    errors = [each for each in found if isinstance(each, Exception)]
    if errors and not kept and not grown.whole:
        raise errors[0]
    return kept


class _Grown:
    """A tree in the making."""

    def __init__(self, start: Trajectory, seed: int) -> None:
        self.start = start
        self.seed = seed
        self.nodes: list[Node] = [Node(0, None, None)]
        self.failures = 0
        #: The ids of the nodes of each branch, from the root to its end.
        self.whole: list[Sequence[int]] = []

    def add(self, branch: _Branch) -> Sequence[int]:
        """Put a branch into the tree, behind the node that it went on from; all its nodes, from the root."""
        steps = branch.trajectory.steps
        path = self._path(branch.origin)
        for step in steps[len(path) - 1 :]:
            self.nodes.append(Node(len(self.nodes), path[-1], step))
            path.append(self.nodes[-1].id)
        end = self.nodes[path[-1]]
        self.nodes[end.id] = replace(end, stop=branch.trajectory.stop, reward=score(branch.trajectory).f1)
        for node in path:
            self.nodes[node] = replace(self.nodes[node], visits=self.nodes[node].visits + 1)
        self.whole.append(path)
        return path

    def state(self, node: int) -> Trajectory:
        """The unfinished trajectory to a node."""
        steps = tuple(step for each in self._path(node) if (step := self.nodes[each].step) is not None)
        return replace(self.start, steps=steps)

    def _path(self, node: int) -> list[int]:
        path = [node]
        while (parent := self.nodes[path[-1]].parent) is not None:
            path.append(parent)
        return path[::-1]

    def tree(self) -> Tree:
        """What has grown. A node's value is the mean reward of the ends below it."""
        sums = [0.0] * len(self.nodes)
        for path in self.whole:
            for node in path:
                sums[node] += self.nodes[path[-1]].reward or 0.0
        nodes = tuple(replace(node, value=sums[node.id] / max(node.visits, 1)) for node in self.nodes)
        return Tree(self.start.question, self.start.agent, nodes, self.start.given, self.seed, self.failures)
