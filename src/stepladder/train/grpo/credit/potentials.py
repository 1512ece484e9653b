"""Potentials: how close a state is to the answer, from 0 to 1. `gain` credits a step with their difference.

In: a group with the evidence of one potential. Out: per episode one potential per state, before each of its steps; None
where it is not known. A new potential is a function and a line in `POTENTIALS`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from stepladder.core.answer_metrics import normalize, score
from stepladder.core.questions.gold_matching import gold_found
from stepladder.core.step_scorer import sigmoid
from stepladder.core.trace import Passage, Trajectory
from stepladder.train.grpo.credit.base import EpisodeGroup, Need

#: Per episode and state.
Values = list[list[float | None]]


@dataclass(frozen=True, slots=True)
class Potential:
    """The potentials of the states of a group, and what they are computed from."""

    values: Callable[[EpisodeGroup], Values]
    needs: Need


def _step_scores(group: EpisodeGroup) -> Values:
    """The score of a step is the value of the state behind it. Nothing is known of the question alone."""
    assert group.evidence.step_scores is not None
    return [
        [None, *(None if logit is None else sigmoid(logit) for logit in own[:-1])][: len(own)]
        for own in group.evidence.step_scores
    ]


def _likelihood(group: EpisodeGroup) -> Values:
    """The geometric mean of the probabilities of the answer's tokens (IGPO)."""
    assert group.evidence.answer_logps is not None
    return [[None if logp is None else math.exp(logp) for logp in own] for own in group.evidence.answer_logps]


def _monte_carlo(group: EpisodeGroup) -> Values:
    """The mean F1 of the episodes that continue from a state."""
    assert group.evidence.continuations is not None
    return [
        [float(np.mean([score(each).f1 for each in some])) if some else None for some in own]
        for own in group.evidence.continuations
    ]


def _agreement(group: EpisodeGroup) -> Values:
    """The share of pairs of continuations with the same answer, right or wrong. An episode without one has no equal."""
    assert group.evidence.continuations is not None
    return [[agreement(some) for some in own] for own in group.evidence.continuations]


def agreement(continuations: Sequence[Trajectory]) -> float | None:
    """How often two of these episodes have the same answer; None for fewer than two."""
    answers = [None if each.answer is None else normalize(each.answer) for each in continuations]
    pairs = [one is not None and one == other for one, other in combinations(answers, 2)]
    return sum(pairs) / len(pairs) if pairs else None


def _recall(group: EpisodeGroup) -> Values:
    """The share of the gold passages that were found so far (StepSearch)."""
    return [
        [float(np.mean(gold_found(each.question, found))) if each.question.gold_passages else None for found in states]
        for each in group.episodes
        for states in [list(_found_before(each))]
    ]


def _graph(group: EpisodeGroup) -> Values:
    """How near the nearest entity is that was found so far (the idea of SAPO's distances in a graph)."""
    assert group.evidence.distances is not None
    distances = group.evidence.distances
    return [[closeness(found, distances) for found in _found_before(each)] for each in group.episodes]


def closeness(found: Sequence[Passage], distances: Mapping[str, Sequence[int | None]]) -> float:
    """1 / (1 + d) of the nearest passage, on average over the parts of the answer; 0 if nothing was found."""
    known = [distances[passage.id] for passage in found if passage.id in distances]
    nearest = [[0.0 if distance is None else 1 / (1 + distance) for distance in part] for part in zip(*known)]
    return float(np.mean([max(part) for part in nearest])) if nearest else 0.0


def _found_before(trajectory: Trajectory) -> Iterator[tuple[Passage, ...]]:
    """For every step the passages that were found before it."""
    found = trajectory.given
    for step in trajectory.steps:
        yield found
        found += step.passages


#: The values of the setting `potential`.
POTENTIALS: dict[str, Potential] = {
    "prm": Potential(_step_scores, Need.STEP_SCORES),
    "monte-carlo": Potential(_monte_carlo, Need.CONTINUATIONS),
    "likelihood": Potential(_likelihood, Need.ANSWER_LOGPS),
    "recall": Potential(_recall, Need.GOLD_PASSAGES),
    "graph": Potential(_graph, Need.DISTANCES),
    "agreement": Potential(_agreement, Need.CONTINUATIONS),
}
