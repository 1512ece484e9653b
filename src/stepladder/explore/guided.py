"""Guided inference: sample more than one needs, and let a scorer choose. Any policy, any scorer, no training.

    actions        n samples of every step; go on with the one that scores best (RAG-Gym)
    beam           n samples of every step from each of the best states so far; keep the best of all
    trajectories   n whole episodes; the one whose steps score best
    mcts           a search tree, its leaves and ends valued by the scorer; the most visited way down
    vote           n whole episodes; the most common answer. Needs no scorer

In: an agent, a question, settings, a `Guide`, a seed. Out (as the generator's return value): the `Trajectory` that was
chosen. What was thrown away is not in it: `metered` counts what everything together cost.

Steps outside the grammar are never chosen while there are others. Of equal scores the action that was sampled most
often goes first, then the one that was sampled first.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stepladder.agents.base import Agent
from stepladder.core.answer_metrics import normalize
from stepladder.core.requests import Algorithm, Sampling, Score
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question, Trajectory
from stepladder.driver.gather import gather
from stepladder.explore.candidates import Candidate, candidates
from stepladder.explore.episode import EpisodeConfig, begin, episode, look_up, take_step
from stepladder.explore.mcts import MCTSConfig, search

Strategy = Literal["actions", "beam", "trajectories", "mcts", "vote"]
Aggregate = Literal["min", "mean", "last"]


@dataclass(frozen=True, slots=True)
class Guide:
    """How to choose."""

    strategy: Strategy = "actions"
    #: Samples of a step (actions, beam, mcts) or of the whole episode (trajectories, vote).
    n: int = 8
    #: Beam: states that are kept.
    beams: int = 2
    #: Beam and trajectories: what the scores of a trajectory's steps make of it.
    aggregate: Aggregate = "min"
    #: Multiply a score by the samples that say the same: what the policy thinks counts beside what the scorer thinks.
    #: With many samples the highest score alone finds what fools the scorer.
    weighted: bool = False
    #: MCTS: simulations a question.
    simulations: int = 32
    #: Whether a query's results must be at hand when it is scored. A judge may look at them; a reward model does not,
    #: and then only queries that are chosen cost a search.
    searched: bool = False

    def __post_init__(self) -> None:
        if min(self.n, self.beams, self.simulations) < 1:
            raise ValueError("n, beams and simulations must be at least 1")

    def worth(self, scores: Sequence[float]) -> float:
        """What the scores of its steps make of a trajectory."""
        if self.aggregate == "mean":
            return sum(scores) / len(scores)
        return min(scores) if self.aggregate == "min" else scores[-1]


def guided(agent: Agent, question: Question, settings: EpisodeConfig, guide: Guide, seed: int) -> Algorithm[Trajectory]:
    """Answer one question. `settings.sampling` says how samples are drawn."""
    return (yield from _STRATEGIES[guide.strategy](agent, question, settings, guide, seed))


def _by_actions(
    agent: Agent, question: Question, settings: EpisodeConfig, guide: Guide, seed: int
) -> Algorithm[Trajectory]:
    state = yield from begin(agent, question, settings, seed)
    while state.stop is None:
        seeds = [seed_of(seed, len(state.steps), draw) for draw in range(guide.n)]
        found = yield from candidates(agent, state, settings, seeds, searched=guide.searched)
        scored = yield from _scored(found, replace(guide, aggregate="last"))
        state = yield from _complete(scored[0].candidate.trajectory, settings, guide)
    return state


def _by_beam(
    agent: Agent, question: Question, settings: EpisodeConfig, guide: Guide, seed: int
) -> Algorithm[Trajectory]:
    start = yield from begin(agent, question, settings, seed)
    depth = 0
    ends: list[_Scored] = []
    open_states: list[Trajectory] = [start]
    while open_states:
        grown = yield from gather(
            candidates(
                agent,
                state,
                settings,
                [seed_of(seed, depth, place, draw) for draw in range(guide.n)],
                searched=guide.searched,
            )
            for place, state in enumerate(open_states)
        )
        found = [each for some in grown if not isinstance(some, Exception) for each in some]
        if not found and not ends:
            raise next(each for each in grown if isinstance(each, Exception))
        scored = yield from _scored(found, guide)
        best = sorted([*ends, *scored], key=lambda each: each.rank)[: guide.beams]
        ends = [each for each in best if each.candidate.trajectory.stop is not None]
        going_on = [each.candidate.trajectory for each in best if each.candidate.trajectory.stop is None]
        completed = yield from gather(_complete(state, settings, guide) for state in going_on)
        open_states = [each for each in completed if isinstance(each, Trajectory)]
        if not ends and not open_states:  # every search has failed
            raise next(each for each in completed if isinstance(each, Exception))
        depth += 1
    return ends[0].candidate.trajectory


def _by_trajectories(
    agent: Agent, question: Question, settings: EpisodeConfig, guide: Guide, seed: int
) -> Algorithm[Trajectory]:
    played = yield from _episodes(agent, question, settings, guide.n, seed)
    alike = Counter(_answer_key(each) for each in played)
    scored = yield from _scored([Candidate(each, alike[_answer_key(each)]) for each in played], guide)
    return scored[0].candidate.trajectory


def _by_vote(
    agent: Agent, question: Question, settings: EpisodeConfig, guide: Guide, seed: int
) -> Algorithm[Trajectory]:
    played = yield from _episodes(agent, question, settings, guide.n, seed)
    winner, _ = Counter(map(_answer_key, played)).most_common(1)[0]
    return next(each for each in played if _answer_key(each) == winner)


def _answer_key(trajectory: Trajectory) -> str:
    """What makes two answers the same."""
    answer = trajectory.answer or ""
    return normalize(answer) or answer


def _by_search(
    agent: Agent, question: Question, settings: EpisodeConfig, guide: Guide, seed: int
) -> Algorithm[Trajectory]:
    tree = yield from search(
        agent,
        question,
        MCTSConfig(
            episode=settings,
            rollout=Sampling(max_tokens=settings.sampling.max_tokens),
            simulations=guide.simulations,
            width=guide.n,
            depth=settings.max_steps,
            c=1.0,  # values are probabilities, and there are few simulations
            evaluate="score",
            ends="score",
        ),
        seed,
    )
    children_by_node = tree.children_by_node()
    node = tree.nodes[0]
    while visited := [child for child in children_by_node[node.id] if child.visits]:
        node = max(visited, key=lambda child: (child.visits, child.value))
    trajectory = tree.trajectory(node)
    greedy = replace(settings, sampling=Sampling(max_tokens=settings.sampling.max_tokens))
    while trajectory.stop is None:  # the simulations ended before the episode did
        trajectory = yield from take_step(agent, trajectory, greedy, 0)
    return trajectory


_STRATEGIES = {
    "actions": _by_actions,
    "beam": _by_beam,
    "trajectories": _by_trajectories,
    "mcts": _by_search,
    "vote": _by_vote,
}


@dataclass(frozen=True, slots=True)
class _Scored:
    """A candidate with its worth; `rank` sorts the best first."""

    candidate: Candidate
    worth: float

    @property
    def rank(self) -> tuple[bool, float, int]:
        return not self.candidate.is_sound, -self.worth, -self.candidate.count


def _scored(found: Sequence[Candidate], guide: Guide) -> Algorithm[list[_Scored]]:
    """The candidates from best to worst. Those outside the grammar are last; a single one needs no score."""
    sound = [each for each in found if each.is_sound]
    asked = sound if len(sound) > 1 or guide.strategy == "beam" else []
    scores = (yield [Score(each.trajectory) for each in asked]) if asked else []
    worths = {
        id(each): guide.worth(scores) * (each.count if guide.weighted else 1)
        for each, scores in zip(asked, scores, strict=True)
    }
    return sorted((_Scored(each, worths.get(id(each), 0.0)) for each in found), key=lambda each: each.rank)


def _complete(state: Trajectory, settings: EpisodeConfig, guide: Guide) -> Algorithm[Trajectory]:
    """The state with what its newest query found, if nobody has searched for it yet."""
    return state if guide.searched else (yield from look_up(state, settings))


def _episodes(
    agent: Agent, question: Question, settings: EpisodeConfig, n: int, seed: int
) -> Algorithm[list[Trajectory]]:
    """Whole episodes; those that fail are left out unless all do. Such as have an answer come first."""
    played = yield from gather(episode(agent, question, settings, seed_of(seed, draw)) for draw in range(n))
    kept = [each for each in played if isinstance(each, Trajectory)]
    if not kept:
        raise next(each for each in played if isinstance(each, Exception))
    return [each for each in kept if each.answer is not None] or kept
