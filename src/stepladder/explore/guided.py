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
from stepladder.explore.episode import EpisodeConfig, episode, initial_state, retrieve_passages, run_to_end
from stepladder.explore.mcts import MCTSConfig, mcts_search

Strategy = Literal["actions", "beam", "trajectories", "mcts", "vote"]
Aggregate = Literal["min", "mean", "last"]


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
    #: Whether the passages of a query are retrieved before it is scored. A judge may read them; a reward model does
    #: not, and then only chosen queries cost a search.
    retrieve_first: bool = False

    def __post_init__(self) -> None:
        if min(self.n, self.beams, self.simulations) < 1:
            raise ValueError("n, beams and simulations must be at least 1")

    def aggregated(self, scores: Sequence[float]) -> float:
        """The score of a trajectory from the scores of its steps."""
        if self.aggregate == "mean":
            return sum(scores) / len(scores)
        return min(scores) if self.aggregate == "min" else scores[-1]


def guided_search(
    agent: Agent, question: Question, settings: EpisodeConfig, guide: Guide, seed: int
) -> Algorithm[Trajectory]:
    """Answer one question. Candidates are sampled with `settings.sampling`."""
    return (yield from _STRATEGIES[guide.strategy](agent, question, settings, guide, seed))


def _by_actions(
    agent: Agent, question: Question, settings: EpisodeConfig, guide: Guide, seed: int
) -> Algorithm[Trajectory]:
    state = yield from initial_state(agent, question, settings, seed)
    while state.stop is None:
        seeds = [seed_of(seed, len(state.steps), draw) for draw in range(guide.n)]
        found = yield from candidates(agent, state, settings, seeds, retrieve=guide.retrieve_first)
        scored = yield from _scored(found, replace(guide, aggregate="last"))
        state = yield from _complete(scored[0].candidate.trajectory, settings, guide)
    return state


def _by_beam(
    agent: Agent, question: Question, settings: EpisodeConfig, guide: Guide, seed: int
) -> Algorithm[Trajectory]:
    start = yield from initial_state(agent, question, settings, seed)
    depth = 0
    ends: list[_Scored] = []
    open_states: list[Trajectory] = [start]
    while open_states:
        sampled = yield from gather(
            candidates(
                agent,
                state,
                settings,
                [seed_of(seed, depth, index, draw) for draw in range(guide.n)],
                retrieve=guide.retrieve_first,
            )
            for index, state in enumerate(open_states)
        )
        found = [each for some in sampled if not isinstance(some, Exception) for each in some]
        if not found and not ends:
            raise next(each for each in sampled if isinstance(each, Exception))
        scored = yield from _scored(found, guide)
        best = sorted([*ends, *scored], key=lambda each: each.rank)[: guide.beams]
        ends = [each for each in best if each.candidate.trajectory.stop is not None]
        unfinished = [each.candidate.trajectory for each in best if each.candidate.trajectory.stop is None]
        completed = yield from gather(_complete(state, settings, guide) for state in unfinished)
        open_states = [each for each in completed if isinstance(each, Trajectory)]
        if not ends and not open_states:  # every search has failed
            raise next(each for each in completed if isinstance(each, Exception))
        depth += 1
    return ends[0].candidate.trajectory


def _by_trajectories(
    agent: Agent, question: Question, settings: EpisodeConfig, guide: Guide, seed: int
) -> Algorithm[Trajectory]:
    episodes = yield from _episodes(agent, question, settings, guide.n, seed)
    counts = Counter(map(_answer_key, episodes))
    scored = yield from _scored([Candidate(each, counts[_answer_key(each)]) for each in episodes], guide)
    return scored[0].candidate.trajectory


def _by_vote(
    agent: Agent, question: Question, settings: EpisodeConfig, guide: Guide, seed: int
) -> Algorithm[Trajectory]:
    episodes = yield from _episodes(agent, question, settings, guide.n, seed)
    winner, _ = Counter(map(_answer_key, episodes)).most_common(1)[0]
    return next(each for each in episodes if _answer_key(each) == winner)


def _answer_key(trajectory: Trajectory) -> str:
    """Equal for answers that count as the same."""
    answer = trajectory.answer or ""
    return normalize(answer) or answer


def _by_search(
    agent: Agent, question: Question, settings: EpisodeConfig, guide: Guide, seed: int
) -> Algorithm[Trajectory]:
    tree = yield from mcts_search(
        agent,
        question,
        MCTSConfig(
            episode=settings,
            rollout=Sampling(max_tokens=settings.sampling.max_tokens),
            simulations=guide.simulations,
            width=guide.n,
            depth=settings.max_steps,
            c=1.0,  # few simulations, and values are probabilities
            evaluate="score",
            ends="score",
        ),
        seed,
    )
    children_by_node = tree.children_by_node()
    node = tree.nodes[0]
    while visited := [child for child in children_by_node[node.id] if child.visits]:
        node = max(visited, key=lambda child: (child.visits, child.value))
    greedy = replace(settings, sampling=Sampling(max_tokens=settings.sampling.max_tokens))
    return (yield from run_to_end(agent, tree.trajectory(node), greedy, seed=0))  # if the tree did not reach an end


_STRATEGIES = {
    "actions": _by_actions,
    "beam": _by_beam,
    "trajectories": _by_trajectories,
    "mcts": _by_search,
    "vote": _by_vote,
}


@dataclass(frozen=True, slots=True)
class _Scored:
    """A candidate with its score; `rank` sorts the best first."""

    candidate: Candidate
    score: float

    @property
    def rank(self) -> tuple[bool, float, int]:
        return not self.candidate.is_well_formed, -self.score, -self.candidate.count


def _scored(found: Sequence[Candidate], guide: Guide) -> Algorithm[list[_Scored]]:
    """The candidates from best to worst. Malformed ones are last; a single candidate needs no score."""
    well_formed = [each for each in found if each.is_well_formed]
    compared = well_formed if len(well_formed) > 1 or guide.strategy == "beam" else []
    step_scores = (yield [Score(each.trajectory) for each in compared]) if compared else []
    scores = {
        id(each): guide.aggregated(own) * (each.count if guide.weighted else 1)
        for each, own in zip(compared, step_scores, strict=True)
    }
    return sorted((_Scored(each, scores.get(id(each), 0.0)) for each in found), key=lambda each: each.rank)


def _complete(state: Trajectory, settings: EpisodeConfig, guide: Guide) -> Algorithm[Trajectory]:
    """The state with the passages of its newest query."""
    return state if guide.retrieve_first else (yield from retrieve_passages(state, settings))


def _episodes(
    agent: Agent, question: Question, settings: EpisodeConfig, n: int, seed: int
) -> Algorithm[list[Trajectory]]:
    """The episodes with an answer, or all if none has one. Failed episodes are dropped unless all fail."""
    sampled = yield from gather(episode(agent, question, settings, seed_of(seed, draw)) for draw in range(n))
    kept = [each for each in sampled if isinstance(each, Trajectory)]
    if not kept:
        raise next(each for each in sampled if isinstance(each, Exception))
    return [each for each in kept if each.answer is not None] or kept
