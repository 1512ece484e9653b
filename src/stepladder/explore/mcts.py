"""Monte-Carlo tree search over the steps of one question: which steps lead to a right answer, and which do not.

In: an agent, a question, settings, a seed. Out (as the generator's return value): a `Tree`. A simulation goes down the
tree by a rule (UCT, PUCT), gives the leaf it comes to its children, if that was valued before, values one of them, and
tells every node on the way. A leaf is valued by playing on to an end (a roll-out) or by asking a scorer: a process
reward model, or a judge.

Simulations run in waves of `parallel`. Those of a wave go down one after the other, each seeing the others as losses
until they are back (virtual loss), then expand and play side by side. So one tree alone keeps an engine busy, and the
tree depends on nothing but its seed: draws belong to places in the tree, not to moments or batches. A simulation that
breaks never comes back: it stays a loss, so that a state that cannot be gone on from does not take all the others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stepladder.agents.base import Agent
from stepladder.core.answer_metrics import score_answer
from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm, Sampling, Score
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Node, Question, Rollout, StopReason, Trajectory, Tree
from stepladder.driver.gather import gather
from stepladder.explore.candidates import candidates
from stepladder.explore.episode import EpisodeConfig, begin, take_step

Selection = Literal["uct", "puct", "puct-policy"]


@dataclass(frozen=True, slots=True)
class MCTSConfig:
    """How a tree grows. ReasonRAG's and ProRAG's constants are in explore/settings.py."""

    #: Limits of an episode, and how children are sampled.
    episode: EpisodeConfig
    #: How roll-outs are sampled.
    rollout: Sampling
    simulations: int = 200
    #: Steps that are sampled from a state; equal ones are one child.
    width: int = 5
    #: Deeper states are valued, but get no children.
    depth: int = 10
    #: UCT, PUCT with a uniform prior, or PUCT with the policy's own log-probs as prior.
    selection: Selection = "puct"
    #: Weight of what was little visited.
    c: float = 2.5
    #: Discount a step between a node and an end.
    gamma: float = 1.0
    #: Discount a step between the root and an end: short ways are worth more.
    decay: float = 1.0
    #: How a leaf is valued.
    evaluate: Literal["rollout", "score"] = "rollout"
    #: How an end is valued: by the F1 of its answer, or, where no right answer is known, by the scorer.
    ends: Literal["answer", "score"] = "answer"
    #: Simulations that are under way at once.
    parallel: int = 4
    #: Stop when no value below the root has moved by more than `tolerance` for so many simulations; None: never.
    patience: int | None = None
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        for name in ("simulations", "width", "depth", "parallel"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")


def search(agent: Agent, question: Question, settings: MCTSConfig, seed: int) -> Algorithm[Tree]:
    """Grow the tree of one question."""
    if not question.answers and settings.ends == "answer":
        raise StepladderError(f"question {question.id!r} has no answers: nothing tells a good end from a bad one")
    root = _State((yield from begin(agent, question, settings.episode, seed)))
    grove = _Grove(agent, settings, seed, root)
    settling = _Settling(settings)
    done = failures = 0
    while done < settings.simulations and not settling.settled:
        wave = min(settings.parallel, settings.simulations - done)
        failed = yield from grove.wave(wave)
        done, failures = done + wave, failures + len(failed)
        if failures == done and done >= min(len(root.children), settings.simulations):
            raise failed[0]  # every first step was tried, and nothing has worked: nor will the rest
        settling.look([child.value for child in root.children], root.visits)
    return grove.tree(failures)


class _State:
    """A node while its tree grows. It does not know its parent: trees are freed the moment they are done."""

    __slots__ = (
        "children",
        "number",
        "parent",
        "path",
        "prior",
        "reward",
        "rollouts",
        "scores",
        "total",
        "trajectory",
        "under_way",
        "visits",
    )

    def __init__(self, trajectory: Trajectory, number: int = 0, prior: float = 1.0) -> None:
        self.trajectory = trajectory
        #: Its place in the finished tree, and its parent's.
        self.number = number
        self.parent: int | None = None
        #: Places among the children, from the root down. Draws belong to it.
        self.path: tuple[int, ...] = ()
        self.prior = prior
        self.children: list[_State] = []
        self.visits = 0
        self.total = 0.0
        #: Simulations that went through here and are not back: each counts as a visit that earned nothing.
        self.under_way = 0
        #: What it earned, where the episode has ended and that is known.
        self.reward: float | None = None
        self.rollouts: list[Rollout] = []
        self.scores: dict[str, float] = {}

    @property
    def value(self) -> float:
        """Q, the mean of what came back."""
        return self.total / self.visits if self.visits else 0.0

    def best_child(self, settings: MCTSConfig) -> "_State":
        """The child to go to: good so far, or little known. The first of equals."""
        seen = sum(child.visits + child.under_way for child in self.children)

        def rank(child: _State) -> float:
            n = child.visits + child.under_way
            q = child.total / n if n else 0.0
            if settings.selection == "uct":
                return q + settings.c * math.sqrt(math.log(seen) / n) if n else math.inf
            return q + settings.c * child.prior * math.sqrt(seen) / (1 + n)

        return max(self.children, key=rank)

    def adopt(self, child: "_State") -> None:
        """Make a state the newest child."""
        child.parent = self.number
        child.path = (*self.path, len(self.children))
        self.children.append(child)


#: The states that a simulation goes through, from the root to a leaf.
_Way = list[_State]


class _Grove:
    """The tree of one question and how it grows."""

    def __init__(self, agent: Agent, settings: MCTSConfig, seed: int, root: _State) -> None:
        self.agent = agent
        self.settings = settings
        self.seed = seed
        #: In the order they were made, parents first.
        self.states = [root]

    def wave(self, size: int) -> Algorithm[list[Exception]]:
        """Some simulations side by side; returns what went wrong."""
        root = self.states[0]
        root.under_way += size
        ways = [self._go_down([root]) for _ in range(size)]
        barren = list(dict.fromkeys(leaf for *_, leaf in ways if self._may_grow(leaf)))
        grown = yield from gather(self._expand(leaf) for leaf in barren)
        broken = {leaf: problem for leaf, problem in zip(barren, grown) if problem is not None}
        ways = [self._go_down(way) for way in ways]
        valued = [way for way in ways if way[-1] not in broken]
        values = yield from gather(self._evaluate(leaf, place) for place, (*_, leaf) in enumerate(valued))
        problems = [broken[leaf] for *_, leaf in ways if leaf in broken]
        for way, value in zip(valued, values):
            if isinstance(value, Exception):
                problems.append(value)
            else:
                self._tell(way, value)
        return problems

    def _go_down(self, way: _Way) -> _Way:
        """The way on to a leaf; whatever is new on it is marked as being under way."""
        while way[-1].children:
            child = way[-1].best_child(self.settings)
            child.under_way += 1
            way.append(child)
        return way

    def _may_grow(self, leaf: _State) -> bool:
        """Whether a leaf gets children: it was valued before, or is being valued, and is no end."""
        known = leaf.parent is None or leaf.visits + leaf.under_way > 1  # this simulation is one of those under way
        return known and leaf.trajectory.stop is None and len(leaf.path) < self.settings.depth

    def _expand(self, leaf: _State) -> Algorithm[None]:
        """Give a leaf its children. Equal actions become one child."""
        settings = self.settings
        seeds = [seed_of(self.seed, "child", *leaf.path, draw) for draw in range(settings.width)]
        found = yield from candidates(self.agent, leaf.trajectory, settings.episode, seeds)
        made = [each.trajectory for each in found]
        if any(len(each.steps) == len(leaf.trajectory.steps) for each in made):  # no room was left to write anything
            leaf.trajectory = replace(leaf.trajectory, stop=StopReason.CONTEXT_LIMIT)
            leaf.reward = 0.0
            return
        for trajectory, prior in zip(made, self._priors(made), strict=True):
            child = _State(trajectory, len(self.states), prior)
            if trajectory.stop is not None and settings.ends == "answer":
                child.reward = outcome(trajectory)
            leaf.adopt(child)
            self.states.append(child)

    def _priors(self, children: Sequence[Trajectory]) -> list[float]:
        """How likely each child is before anything is known of it."""
        if self.settings.selection != "puct-policy":
            return [1 / len(children)] * len(children)
        written = [each.steps[-1].written for each in children]
        if any(each.text and not each.logprobs for each in written):
            raise StepladderError(
                "selection 'puct-policy' needs the log-probs of what the policy wrote, and this engine gives none: "
                "use 'puct'"
            )
        # The mean of a token, because the sum would mostly say which step is longer.
        means = [sum(each.logprobs) / max(len(each.logprobs), 1) for each in written]
        likelihoods = [math.exp(mean - max(means)) for mean in means]
        return [each / sum(likelihoods) for each in likelihoods]

    def _evaluate(self, leaf: _State, place: int) -> Algorithm[float]:
        """What a simulation brings back to the leaf."""
        if leaf.trajectory.stop is not None and leaf.reward is None:
            leaf.reward = (yield from self._score(leaf)) if leaf.trajectory.answer is not None else 0.0
        if leaf.reward is not None:
            return self._worth(leaf, leaf.reward, 0)
        if self.settings.evaluate == "score":
            return (yield from self._score(leaf))
        seed = seed_of(self.seed, "rollout", *leaf.path, leaf.visits, place)
        end = yield from self._play_on(leaf.trajectory, seed)
        assert end.stop is not None
        steps = len(end.steps) - len(leaf.trajectory.steps)
        leaf.rollouts.append(Rollout(outcome(end), steps, end.stop, end.answer))
        return self._worth(leaf, outcome(end), steps)

    def _score(self, leaf: _State) -> Algorithm[float]:
        """What the scorer says of the newest step, asked once: the deepest leaves come again and again."""
        if "leaf" not in leaf.scores:
            leaf.scores["leaf"] = float((yield Score(leaf.trajectory))[-1])
        return leaf.scores["leaf"]

    def _play_on(self, trajectory: Trajectory, seed: int) -> Algorithm[Trajectory]:
        settings = replace(self.settings.episode, sampling=self.settings.rollout)
        while trajectory.stop is None:
            trajectory = yield from take_step(self.agent, trajectory, settings, seed_of(seed, len(trajectory.steps)))
        return trajectory

    def _worth(self, leaf: _State, reward: float, steps: int) -> float:
        """An end's reward as it reaches the leaf."""
        return float(reward * self.settings.decay ** (len(leaf.path) + steps) * self.settings.gamma**steps)

    def _tell(self, way: _Way, value: float) -> None:
        """Add a simulation that is back to every state on its way."""
        for state in reversed(way):
            state.under_way -= 1
            state.visits += 1
            state.total += value
            value *= self.settings.gamma

    def tree(self, failures: int) -> Tree:
        """The tree as a record."""
        root = self.states[0].trajectory
        nodes = tuple(
            Node(
                state.number,
                state.parent,
                None if state.parent is None else state.trajectory.steps[-1],
                state.visits,
                state.value,
                None if state.parent is None else state.prior,
                state.trajectory.stop,
                state.reward,
                tuple(state.rollouts),
                state.scores,
            )
            for state in self.states
        )
        return Tree(root.question, root.agent, nodes, root.given, root.seed, failures)


class _Settling:
    """Notices when the values below the root have stopped moving."""

    def __init__(self, settings: MCTSConfig) -> None:
        self.settings = settings
        self.values: list[float] = []
        self.since = 0
        self.settled = False

    def look(self, values: list[float], done: int) -> None:
        """The values after so many simulations."""
        moved = len(values) != len(self.values) or any(
            abs(now - before) > self.settings.tolerance for now, before in zip(values, self.values)
        )
        if moved:
            self.values, self.since = values, done
        self.settled = self.settings.patience is not None and done - self.since >= self.settings.patience


def outcome(trajectory: Trajectory) -> float:
    """What an episode earned: the F1 of its answer."""
    return score_answer(trajectory.answer, trajectory.question.answers).f1
