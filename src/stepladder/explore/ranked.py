"""RAG-Gym's process data: sample several actions per step, continue with the best-scored one, keep the others.

In: an agent, a question, settings, a seed. Out (as the generator's return value): a `Tree` of one branch with the
siblings of every node. The branch is a demonstration, the best and the worst action of a state make a preference pair.
The value of a node is its score, its visits are the number of equal samples.
"""

from dataclasses import replace

from stepladder.agents.base import Agent
from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm, Rank, Score
from stepladder.core.seeding import seed_of
from stepladder.core.step_scorer import NEUTRAL
from stepladder.core.trace import ActionKind, Node, Question, Tree
from stepladder.explore.episode import EpisodeConfig, candidates, initial_state
from stepladder.explore.mcts import outcome

#: The name of the score in `Node.scores`.
RANK = "rank"


def ranked(
    agent: Agent, question: Question, settings: EpisodeConfig, seed: int, *, n: int, jointly: bool = False
) -> Algorithm[Tree]:
    """Run one episode with the best of `n` sampled actions at every step.

    `jointly`: the scorer compares all actions of a state, as RAG-Gym's judge does, instead of scoring each alone.
    """
    if not question.answers:
        raise StepladderError(f"question {question.id!r} has no answers: the episode cannot be rewarded")
    state = yield from initial_state(agent, question, settings, seed)
    nodes, current = [Node(0, None, None, visits=n)], 0
    while state.stop is None:
        seeds = [seed_of(seed, len(state.steps), draw) for draw in range(n)]
        found = yield from candidates(agent, state, settings, seeds)
        written = [each for each in found if len(each.trajectory.steps) > len(state.steps)]
        if not written:  # the context window is full
            break
        if jointly:
            values = yield Rank(tuple(each.trajectory for each in written))
        else:
            scores = yield [Score(each.trajectory) for each in written]
            values = [score[-1] for score in scores]
        first = len(nodes)
        for each, value in zip(written, values, strict=True):
            trajectory = each.trajectory
            reward = None if trajectory.stop is None else outcome(trajectory)
            # A step that the scorer cannot judge has no rank, so it makes no pair; it is chosen before a bad one.
            known, ranks = (NEUTRAL, {}) if value is None else (float(value), {RANK: float(value)})
            node = Node(len(nodes), current, trajectory.steps[-1], each.count, known, None, trajectory.stop, reward)
            nodes.append(replace(node, scores=ranks))
        current = max(nodes[first:], key=lambda node: (_is_well_formed(node), node.value, node.visits)).id
        state = written[current - first].trajectory
    return Tree(question, agent.name, tuple(nodes), state.given, seed)


def best_branch(tree: Tree) -> tuple[Node, ...]:
    """The path of best children from the root: by rank or, in a search tree, by visits and value."""

    ranked = any(RANK in node.scores for node in tree.nodes)

    def sort_key(node: Node) -> tuple[bool, float, float]:
        return (_is_well_formed(node), *((node.value, node.visits) if ranked else (node.visits, node.value)))

    children_by_node = tree.children_by_node()
    path = [tree.nodes[0]]
    while children := children_by_node[path[-1].id]:
        path.append(max(children, key=sort_key))
    return tuple(path)


def _is_well_formed(node: Node) -> bool:
    return node.step is not None and node.step.action.kind is not ActionKind.MALFORMED
