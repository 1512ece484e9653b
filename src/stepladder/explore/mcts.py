"""Monte Carlo tree search over the steps of one question.

In: an agent, a question, settings, a seed. Out (as the generator's return value): a `Tree`. A simulation selects a path
from the root to a leaf (UCT or PUCT), expands the leaf if it was evaluated before, evaluates one of its children, and
backpropagates the value along the path. A leaf is evaluated by a rollout to the end of the episode or by a step scorer.

Simulations run in waves of `parallel`. The paths of a wave are selected one after the other with virtual losses, then
expanded and evaluated concurrently, so a single tree keeps an engine busy. The tree depends on its seed alone: random
draws belong to positions in the tree, not to time or batches. A simulation that fails keeps its virtual loss, so that a
state that cannot be continued does not attract all other simulations.

With `keep_rollouts` a rollout expands every state on its way and continues with the action that was sampled most
often. Its last states have siblings with values at once, the others need one more rollout: far fewer calls per group of
siblings that can be compared, if samples of one state are one call. The next rollout starts near the end of the last
one, where the way to another end is short.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from stepladder.agents.base import Agent
from stepladder.core.answer_metrics import score_question
from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm, Sampling, Score
from stepladder.core.seeding import seed_of
from stepladder.core.step_scorer import NEUTRAL
from stepladder.core.trace import Node, Question, Rollout, StopReason, Trajectory, Tree
from stepladder.driver.gather import gather
from stepladder.explore.episode import EpisodeConfig, candidates, initial_state, run_to_end

Selection = Literal["uct", "puct", "puct-policy"]


@dataclass(frozen=True, slots=True)
class MCTSConfig:
    """Settings of a tree search. `pipeline/search_config.py` has the constants of ReasonRAG and ProRAG as presets."""

    #: Limits of an episode, and the sampling of children.
    episode: EpisodeConfig
    #: The sampling of rollouts.
    rollout: Sampling
    simulations: int = 200
    #: Steps sampled from a state; equal actions become one child.
    width: int = 5
    #: States at this depth are evaluated but not expanded.
    depth: int = 10
    #: UCT, PUCT with a uniform prior, or PUCT with the policy's log-probs as prior.
    selection: Selection = "puct"
    #: Exploration constant.
    c: float = 2.5
    #: Discount per step between a node and the end.
    gamma: float = 1.0
    #: Discount per step between the root and the end: short episodes are worth more.
    decay: float = 1.0
    #: How a leaf is evaluated.
    evaluate: Literal["rollout", "score"] = "rollout"
    #: How a terminal state is evaluated: by the F1 of its answer, or by the scorer if no answer is known.
    ends: Literal["answer", "score"] = "answer"
    #: Concurrent simulations.
    parallel: int = 4
    #: Early stopping: after so many simulations in which no value below the root changed by more than `tolerance`.
    patience: int | None = None
    tolerance: float = 0.01
    #: Rollouts expand the states on their way: fewer calls per group of siblings with values.
    keep_rollouts: bool = False

    def __post_init__(self) -> None:
        for name in ("simulations", "width", "depth", "parallel"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")


def mcts_search(agent: Agent, question: Question, settings: MCTSConfig, seed: int) -> Algorithm[Tree]:
    """Grow the search tree of one question."""
    if not question.answers and settings.ends == "answer":
        raise StepladderError(f"question {question.id!r} has no answers: the search cannot reward any episode")
    root = _SearchNode((yield from initial_state(agent, question, settings.episode, seed)))
    search = _Search(agent, settings, seed, [root])
    done = failures = last_change = 0
    stable: list[float] = []  # the values of the first steps at the last change
    while done < settings.simulations:
        wave = min(settings.parallel, settings.simulations - done)
        failed = yield from search.run_wave(wave)
        done, failures = done + wave, failures + len(failed)
        if failures == done and done >= min(len(root.children), settings.simulations):
            raise failed[0]  # every first step was tried and failed, so the others would fail as well
        values = [child.value for child in root.children]
        differences = [abs(now - before) for now, before in zip(values, stable)]
        if len(values) != len(stable) or max(differences, default=0.0) > settings.tolerance:
            stable, last_change = values, root.visits
        if settings.patience is not None and root.visits - last_change >= settings.patience:
            break
    return search.tree(failures)


@dataclass(slots=True, eq=False)
class _SearchNode:
    """A node during the search. It holds no reference to its parent, so that finished trees are freed immediately."""

    trajectory: Trajectory
    #: Its index in the finished tree, and its parent's.
    number: int = 0
    parent: int | None = None
    #: Indices among the children from the root down. Random draws are seeded by it.
    position: tuple[int, ...] = ()
    prior: float = 1.0
    children: "list[_SearchNode]" = field(default_factory=list)
    #: Samples with this action when the parent was expanded.
    samples: int = 1
    visits: int = 0
    total: float = 0.0
    #: Selected simulations that have not been backpropagated: virtual losses, visits with value 0.
    in_flight: int = 0
    #: The reward of a terminal state, once known.
    reward: float | None = None
    rollouts: list[Rollout] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """Q, the mean of the backpropagated values."""
        return self.total / self.visits if self.visits else 0.0

    def best_child(self, settings: MCTSConfig) -> "_SearchNode":
        """The child with the highest UCT or PUCT score; the first of equals."""
        parent_visits = sum(child.visits + child.in_flight for child in self.children)

        def selection_score(child: _SearchNode) -> float:
            n = child.visits + child.in_flight
            q = child.total / n if n else 0.0
            if settings.selection == "uct":
                return q + settings.c * math.sqrt(math.log(parent_visits) / n) if n else math.inf
            return q + settings.c * child.prior * math.sqrt(parent_visits) / (1 + n)

        return max(self.children, key=selection_score)

    def only_tried(self) -> "_SearchNode | None":
        """The only child with a value or a simulation in flight; None if there are more of them or no other child."""
        tried = [each for each in self.children if each.visits or each.in_flight or each.reward is not None]
        return tried[0] if len(tried) == 1 < len(self.children) else None

    def has_untried(self) -> bool:
        """Whether a state on the only way that was tried from here, or this one, has a single child with a value."""
        tried = [self]
        while len(tried) == 1 and tried[0].only_tried() is None:
            tried = [child for child in tried[0].children if child.visits]
        return len(tried) == 1


#: The nodes of a simulation, from the root to a leaf.
_Path = list[_SearchNode]


@dataclass(frozen=True, slots=True)
class _Search:
    """The state of one tree search."""

    agent: Agent
    settings: MCTSConfig
    seed: int
    #: In the order of creation, parents first.
    nodes: list[_SearchNode]

    def run_wave(self, size: int) -> Algorithm[list[Exception]]:
        """Run concurrent simulations; returns the errors of those that failed."""
        root = self.nodes[0]
        root.in_flight += size
        paths = [self._select([root]) for _ in range(size)]
        expandable = list(dict.fromkeys(leaf for *_, leaf in paths if self._is_expandable(leaf)))
        expanded = yield from gather(self._expand(leaf) for leaf in expandable)
        broken = {leaf: error for leaf, error in zip(expandable, expanded) if error is not None}
        paths = [self._select(path) for path in paths]
        selected = [path for path in paths if path[-1] not in broken]
        values = yield from gather(self._evaluate(path, index) for index, path in enumerate(selected))
        errors = [broken[leaf] for *_, leaf in paths if leaf in broken]
        for path, value in zip(selected, values):
            if isinstance(value, Exception):
                errors.append(value)
            else:
                self._backpropagate(path, value)
        return errors

    def _select(self, path: _Path) -> _Path:
        """Extend a path to a leaf; every node added to it gets a virtual loss."""
        while path[-1].children:
            child = self._next_child(path[-1])
            child.in_flight += 1
            path.append(child)
        return path

    def _next_child(self, node: _SearchNode) -> _SearchNode:
        """The best child; with `keep_rollouts` one without a value, if a single sibling has one."""
        tried = node.only_tried() if self.settings.keep_rollouts else None
        if tried is None:
            return node.best_child(self.settings)
        return tried if tried.has_untried() else next(child for child in node.children if child is not tried)

    def _is_expandable(self, leaf: _SearchNode) -> bool:
        """Whether a leaf gets children: it is not terminal, and was evaluated before or is being evaluated."""
        known = leaf.parent is None or leaf.visits + leaf.in_flight > 1  # one of those in flight is this simulation
        return known and leaf.trajectory.stop is None and len(leaf.position) < self.settings.depth

    def _expand(self, leaf: _SearchNode) -> Algorithm[None]:
        """Sample the children of a leaf. Equal actions become one child."""
        settings = self.settings
        seeds = [seed_of(self.seed, "child", *leaf.position, draw) for draw in range(settings.width)]
        found = yield from candidates(self.agent, leaf.trajectory, settings.episode, seeds)
        if leaf.children:  # another rollout of the wave has passed here
            return
        sampled = [each.trajectory for each in found]
        if any(len(each.steps) == len(leaf.trajectory.steps) for each in sampled):  # the context window is full
            leaf.trajectory = replace(leaf.trajectory, stop=StopReason.CONTEXT_LIMIT)
            leaf.reward = 0.0
            return
        for index, (each, prior) in enumerate(zip(found, self._priors(sampled), strict=True)):
            position = (*leaf.position, index)
            child = _SearchNode(each.trajectory, len(self.nodes), leaf.number, position, prior, samples=each.count)
            if each.trajectory.stop is not None and settings.ends == "answer":
                child.reward = outcome(each.trajectory)
            leaf.children.append(child)
            self.nodes.append(child)

    def _priors(self, children: Sequence[Trajectory]) -> list[float]:
        """The prior probability of each child."""
        if self.settings.selection != "puct-policy":
            return [1 / len(children)] * len(children)
        written = [each.steps[-1].written for each in children]
        if any(each.text and not each.logprobs for each in written):
            raise StepladderError(
                "selection 'puct-policy' needs the policy's log-probs, and this engine gives none: use 'puct'"
            )
        # The mean per token: the sum would mostly measure the length of a step.
        means = [sum(each.logprobs) / max(len(each.logprobs), 1) for each in written]
        likelihoods = [math.exp(mean - max(means)) for mean in means]
        return [each / sum(likelihoods) for each in likelihoods]

    def _evaluate(self, path: _Path, index: int) -> Algorithm[float]:
        """The value of a leaf, as seen from the leaf. With `keep_rollouts` the path is first extended to its end."""
        if self.settings.keep_rollouts and self.settings.evaluate == "rollout":
            yield from self._extend(path)
        leaf = path[-1]
        if leaf.trajectory.stop is not None and leaf.reward is None:
            leaf.reward = (yield from self._score(leaf)) if leaf.trajectory.answer is not None else 0.0
        if leaf.reward is not None:
            return self._discounted(leaf, leaf.reward, 0)
        if self.settings.evaluate == "score":
            return (yield from self._score(leaf))
        seed = seed_of(self.seed, "rollout", *leaf.position, leaf.visits, index)
        rollout = replace(self.settings.episode, sampling=self.settings.rollout)
        end = yield from run_to_end(self.agent, leaf.trajectory, rollout, seed)
        assert end.stop is not None
        steps = len(end.steps) - len(leaf.trajectory.steps)
        leaf.rollouts.append(Rollout(outcome(end), steps, end.stop, end.answer))
        return self._discounted(leaf, outcome(end), steps)

    def _extend(self, path: _Path) -> Algorithm[None]:
        """Expand the last state of a path and continue with its most frequent action, to the end of the episode."""
        while path[-1].trajectory.stop is None and len(path[-1].position) < self.settings.depth:
            if not path[-1].children:
                yield from self._expand(path[-1])
            if not path[-1].children:  # the context window is full
                return
            child = max(path[-1].children, key=lambda each: each.samples)
            child.in_flight += 1
            path.append(child)

    def _score(self, leaf: _SearchNode) -> Algorithm[float]:
        """The score of the newest step, requested once: leaves at the maximum depth are evaluated repeatedly.

        A step that is not judged changes nothing: its leaf has the score of the last step that is.
        """
        if "leaf" not in leaf.scores:
            scores = yield Score(leaf.trajectory)
            leaf.scores["leaf"] = next((float(score) for score in reversed(scores) if score is not None), NEUTRAL)
        return leaf.scores["leaf"]

    def _discounted(self, leaf: _SearchNode, reward: float, steps: int) -> float:
        """The reward of an episode that ends `steps` after the leaf, discounted to the leaf."""
        return float(reward * self.settings.decay ** (len(leaf.position) + steps) * self.settings.gamma**steps)

    def _backpropagate(self, path: _Path, value: float) -> None:
        """Add the value of a simulation to every node on its path, and remove its virtual losses."""
        for node in reversed(path):
            node.in_flight -= 1
            node.visits += 1
            node.total += value
            value *= self.settings.gamma

    def tree(self, failures: int) -> Tree:
        """The finished tree."""
        root = self.nodes[0].trajectory
        nodes = tuple(
            Node(
                node.number,
                node.parent,
                None if node.parent is None else node.trajectory.steps[-1],
                node.visits,
                node.value,
                None if node.parent is None else node.prior,
                node.trajectory.stop,
                node.reward,
                tuple(node.rollouts),
                node.scores,
            )
            for node in self.nodes
        )
        return Tree(root.question, root.agent, nodes, root.given, root.seed, failures)


def outcome(trajectory: Trajectory) -> float:
    """The outcome reward of an episode: the F1 of its answer; for a choice its accuracy."""
    return score_question(trajectory.answer, trajectory.question).f1
