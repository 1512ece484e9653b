"""Guided inference: sample several candidates and let a step scorer choose. Any policy, any scorer, no training.

    actions        n samples per step; continue with the best-scored one (RAG-Gym)
    beam           n samples per step from each state of the beam; keep the best of all
    trajectories   n episodes; the one with the best step scores
    mcts           a tree search whose leaves and ends are valued by the scorer; the most visited path
    vote           n episodes; the most common answer. Needs no scorer

In: an agent, a question, settings, a `Guide`, a seed. Out (as the generator's return value): the chosen `Trajectory`.
Discarded samples are not part of it; `metered` counts the total cost.

Malformed steps are chosen only if there are no others. Ties go to the action that was sampled most often, then to the
one that was sampled first.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Literal

from stepladder.agents.base import Agent
from stepladder.core.answer_metrics import normalize
from stepladder.core.requests import Algorithm, Sampling, Score
from stepladder.core.seeding import seed_of
from stepladder.core.step_scorer import NEUTRAL
from stepladder.core.trace import Question, Trajectory
from stepladder.driver.gather import gather, successes
from stepladder.explore.episode import (
    Candidate,
    EpisodeConfig,
    candidates,
    episode,
    initial_state,
    retrieve_passages,
    run_to_end,
)
from stepladder.explore.mcts import MCTSConfig, mcts_search

Strategy = Literal["actions", "beam", "trajectories", "mcts", "vote"]
Aggregate = Literal["min", "mean", "last"]

#: The score of a trajectory from the scores of its steps.
_AGGREGATES: dict[Aggregate, Callable[[Sequence[float]], float]] = {
    "min": min,
    "mean": lambda scores: sum(scores) / len(scores),
    "last": lambda scores: scores[-1],
}


def _aggregated(scores: Sequence[float | None], aggregate: Aggregate) -> float:
    """The score of a trajectory. Steps that are not judged do not count; without any other, it is neutral."""
    own = scores[-1:] if aggregate == "last" else scores
    judged = [score for score in own if score is not None]
    return _AGGREGATES[aggregate](judged) if judged else NEUTRAL


@dataclass(frozen=True, slots=True)
class Guide:
    """How candidates are sampled and chosen."""

    strategy: Strategy = "actions"
    #: Samples per step (actions, beam, mcts) or episodes (trajectories, vote).
    n: int = 8
    #: Beam: the beam width.
    beams: int = 2
    #: Beam and trajectories: how step scores are aggregated.
    aggregate: Aggregate = "min"
    #: Multiply a score by the number of equal samples, so that the policy's preference counts as well. With many
    #: samples the highest score alone tends to find errors of the scorer.
    weighted: bool = False
    #: MCTS: simulations per question.
    simulations: int = 32
    #: Whether the passages of a query are retrieved before it is scored. Judges read them, and reward models that
    #: score after retrieval; with others only chosen queries cost a search.
    retrieve_first: bool = False

    def __post_init__(self) -> None:
        if min(self.n, self.beams, self.simulations) < 1:
            raise ValueError("n, beams and simulations must be at least 1")


def guided_search(
    agent: Agent, question: Question, settings: EpisodeConfig, guide: Guide, seed: int
) -> Algorithm[Trajectory]:
    """Answer one question. Candidates are sampled with `settings.sampling`."""
    search: Algorithm[Trajectory] = getattr(_GuidedSearch(agent, question, settings, guide, seed), guide.strategy)()
    return (yield from search)


#: A candidate behind its rank: the best first, malformed ones last.
_Ranked = tuple[tuple[bool, float, int], Candidate]


@dataclass(frozen=True, slots=True)
class _GuidedSearch:
    """The strategies, one method each."""

    agent: Agent
    question: Question
    settings: EpisodeConfig
    guide: Guide
    seed: int

    def actions(self) -> Algorithm[Trajectory]:
        state = yield from self._start()
        while state.stop is None:
            found = yield from self._candidates(state, len(state.steps))
            ranked = yield from self._ranked(found, "last")
            state = yield from self._complete(ranked[0][1].trajectory)
        return state

    def beam(self) -> Algorithm[Trajectory]:
        depth = 0
        ends: list[_Ranked] = []
        open_states = [(yield from self._start())]
        while open_states:
            sampled = yield from gather(
                self._candidates(state, depth, index) for index, state in enumerate(open_states)
            )
            found = [each for some in sampled if not isinstance(some, Exception) for each in some]
            if not found and not ends:
                successes(sampled)  # raises
            ranked = yield from self._ranked(found, self.guide.aggregate)
            best = sorted([*ends, *ranked], key=itemgetter(0))[: self.guide.beams]
            ends = [each for each in best if each[1].trajectory.stop is not None]
            unfinished = [each.trajectory for _, each in best if each.trajectory.stop is None]
            completed = yield from gather(map(self._complete, unfinished))
            open_states = [each for each in completed if isinstance(each, Trajectory)]
            if not ends and not open_states:
                successes(completed)  # raises: every search has failed
            depth += 1
        return ends[0][1].trajectory

    def trajectories(self) -> Algorithm[Trajectory]:
        episodes = yield from self._episodes()
        counts = Counter(map(_answer_key, episodes))
        found = [Candidate(each, counts[_answer_key(each)]) for each in episodes]
        ranked = yield from self._ranked(found, self.guide.aggregate)
        return ranked[0][1].trajectory

    def vote(self) -> Algorithm[Trajectory]:
        episodes = yield from self._episodes()
        winner, _ = Counter(map(_answer_key, episodes)).most_common(1)[0]
        return next(each for each in episodes if _answer_key(each) == winner)

    def mcts(self) -> Algorithm[Trajectory]:
        settings, greedy = self.settings, Sampling(max_tokens=self.settings.sampling.max_tokens)
        search = MCTSConfig(
            episode=settings,
            rollout=greedy,
            simulations=self.guide.simulations,
            width=self.guide.n,
            depth=settings.max_steps,
            c=1.0,  # few simulations, and values are probabilities
            evaluate="score",
            ends="score",
        )
        tree = yield from mcts_search(self.agent, self.question, search, self.seed)
        children_by_node = tree.children_by_node()
        node = tree.nodes[0]
        while visited := [child for child in children_by_node[node.id] if child.visits]:
            node = max(visited, key=lambda child: (child.visits, child.value))
        # The tree may not have reached an end.
        return (yield from run_to_end(self.agent, tree.trajectory(node), replace(settings, sampling=greedy), seed=0))

    def _start(self) -> Algorithm[Trajectory]:
        return initial_state(self.agent, self.question, self.settings, self.seed)

    def _candidates(self, state: Trajectory, *position: int) -> Algorithm[list[Candidate]]:
        seeds = [seed_of(self.seed, *position, draw) for draw in range(self.guide.n)]
        return candidates(self.agent, state, self.settings, seeds, retrieve=self.guide.retrieve_first)

    def _ranked(self, found: Sequence[Candidate], aggregate: Aggregate) -> Algorithm[list[_Ranked]]:
        """The candidates from best to worst. A single one needs no score, except to be compared with ends of a beam."""
        well_formed = [each for each in found if each.is_well_formed]
        compared = well_formed if len(well_formed) > 1 or self.guide.strategy == "beam" else []
        retrieved = self.guide.retrieve_first or self.guide.strategy == "trajectories"
        step_scores = (yield [Score(each.trajectory, retrieved) for each in compared]) if compared else []
        scores = {
            id(each): _aggregated(own, aggregate) * (each.count if self.guide.weighted else 1)
            for each, own in zip(compared, step_scores, strict=True)
        }
        ranked = [((not each.is_well_formed, -scores.get(id(each), 0.0), -each.count), each) for each in found]
        return sorted(ranked, key=itemgetter(0))

    def _complete(self, state: Trajectory) -> Algorithm[Trajectory]:
        """The state with the passages of its newest query."""
        return state if self.guide.retrieve_first else (yield from retrieve_passages(state, self.settings))

    def _episodes(self) -> Algorithm[list[Trajectory]]:
        """The episodes with an answer, or all if none has one. Failed episodes are dropped unless all fail."""
        sampled = yield from gather(
            episode(self.agent, self.question, self.settings, seed_of(self.seed, draw)) for draw in range(self.guide.n)
        )
        kept = successes(sampled)
        return [each for each in kept if each.answer is not None] or kept


def _answer_key(trajectory: Trajectory) -> str:
    """Equal for answers that count as the same."""
    answer = trajectory.answer or ""
    return normalize(answer) or answer
