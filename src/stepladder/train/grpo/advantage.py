"""Advantages of trajectories and steps, from rewards and scores. Pure functions on arrays.

Shape suffixes: G trajectories of one question (a group), S steps of a trajectory, N nodes of a tree. Steps of a group
are lists of G arrays of S numbers, because trajectories differ in length.

    outcome_advantages    the answer's reward relative to the group (GRPO, Search-R1)
    process_advantages    step scores relative to the group, by tokens (ProRAG), by steps, or among peers
    process_deviations    the same, not divided by their standard deviation
    dual_advantages       the sum of both (ProRAG)
    node_values           the value of a state: the mean reward of the leaves below it (TreePS-RAG)
    gain_advantages       the value of a state minus that of its parent
    branch_advantages     a leaf's reward relative to its tree and to all trees of the question (Tree-GRPO)

If all values are equal, all advantages are exactly 0, not noise divided by almost 0. `ddof` is 1 for the standard
deviation of a sample (with n - 1), as in ProRAG's code, and 0 for that of the population.
"""

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
#: The baseline of step scores.
Over = Literal["tokens", "steps", "peers"]

#: A smaller standard deviation is rounding error.
_ZERO_STD = 1e-6


def standardize(values: ArrayLike, weights: ArrayLike | None = None, min_std: float = 0.0, ddof: int = 0) -> Floats:
    """Subtract the weighted mean and divide by the standard deviation; zeros if all values are equal.

    >>> standardize([1.0, 0.0, 1.0, 0.0]).tolist()
    [1.0, -1.0, 1.0, -1.0]
    """
    array = np.asarray(values, dtype=np.float64)
    counts = np.ones(array.shape) if weights is None else np.asarray(weights, dtype=np.float64)
    return _scale(_center(array, counts), counts, min_std, ddof)


def _center(values: Floats, weights: Floats) -> Floats:
    """Deviations from the weighted mean; zeros without any weight."""
    if weights.sum() <= 0:
        return np.zeros(values.shape)
    centered: Floats = values - np.average(values, weights=weights)
    return centered


def _scale(deviations: Floats, weights: Floats, min_std: float, ddof: int) -> Floats:
    """Divide deviations from a mean by their standard deviation."""
    std = _root_mean_square(deviations, weights, ddof)
    return deviations / max(std, min_std) if std > _ZERO_STD else np.zeros(deviations.shape)


def _root_mean_square(deviations: Floats, weights: Floats, ddof: int) -> float:
    """The standard deviation, from deviations of which each counts as often as its weight."""
    count = float(weights.sum())
    if count <= ddof:
        return 0.0
    return float(np.sqrt(np.average(deviations**2, weights=weights) * count / (count - ddof)))


def outcome_advantages(rewards_G: ArrayLike, ddof: int = 0) -> Floats:
    """One advantage per trajectory."""
    return standardize(rewards_G, ddof=ddof)


def process_advantages(
    scores: Sequence[ArrayLike],
    tokens: Sequence[ArrayLike],
    over: Over = "tokens",
    peers: Sequence[Sequence[Hashable | None]] | None = None,
    *,
    min_std: float = 0.0,
    ddof: int = 0,
) -> list[Floats]:
    """One advantage per step. `tokens`: of each step, its weight in a mean over tokens.

    With `peers`, the baseline of a step is the mean of the steps with the same label, or of all for one without. The
    standard deviation is at least `min_std`, so that small differences stay small.
    """
    deviations, weights = _step_deviations(scores, tokens, over, peers)
    return _split(_scale(deviations, weights, min_std, ddof), scores)


def process_deviations(
    scores: Sequence[ArrayLike],
    tokens: Sequence[ArrayLike],
    over: Over = "tokens",
    peers: Sequence[Sequence[Hashable | None]] | None = None,
) -> list[Floats]:
    """`process_advantages` before the division: the differences of step scores from their baselines."""
    return _split(_step_deviations(scores, tokens, over, peers)[0], scores)


def _step_deviations(
    scores: Sequence[ArrayLike],
    tokens: Sequence[ArrayLike],
    over: Over,
    peers: Sequence[Sequence[Hashable | None]] | None,
) -> tuple[Floats, Floats]:
    """Of all steps of the group in a row: the difference from the baseline, and the weight."""
    together, counts = _joined(scores), _joined(tokens)
    if counts.shape != together.shape:
        raise ValueError(f"{together.size} step scores, but {counts.size} token counts")
    if over == "peers":
        labels = [label for each in peers or () for label in each]
        if len(labels) != together.size:
            raise ValueError(f"{together.size} step scores, but {len(labels)} labels")
        return together - _peer_means(together, counts, labels), counts
    weights = np.ones(together.shape) if over == "steps" else counts
    return _center(together, weights), weights


def _joined(parts: Sequence[ArrayLike]) -> Floats:
    return np.concatenate([np.asarray(each, dtype=np.float64) for each in parts]) if parts else np.zeros(0)


def _split(values: Floats, like: Sequence[ArrayLike]) -> list[Floats]:
    """The values of all steps in a row by trajectory."""
    lengths = [len(np.asarray(each)) for each in like]
    return np.split(values, np.cumsum(lengths)[:-1]) if lengths else []


def _peer_means(values: Floats, weights: Floats, labels: Sequence[Hashable | None]) -> Floats:
    """For each value the mean of those with its label, or of all for one without."""
    means = np.zeros(values.shape)
    for label in set(labels):
        own = np.array([each == label for each in labels])
        group = own if label is not None else np.ones(values.shape, dtype=bool)
        if weights[group].sum() > 0:
            means[own] = np.average(values[group], weights=weights[group])
    return means


def dual_advantages(outcome_G: ArrayLike, process: Sequence[ArrayLike], process_weight: float) -> list[Floats]:
    """The outcome advantage for every step, plus `process_weight` times the step's own advantage."""
    outcome = np.asarray(outcome_G, dtype=np.float64)
    return [
        one + process_weight * np.asarray(steps, dtype=np.float64) for one, steps in zip(outcome, process, strict=True)
    ]


def node_values(parents_N: Sequence[int | None], rewards_N: Sequence[float | None]) -> Floats:
    """The mean reward of the leaves below each node, itself included. Only leaves have a reward.

    A parent comes before its children; the root has none.
    """
    sums, leaves = np.zeros(len(parents_N)), np.zeros(len(parents_N))
    for node in range(len(parents_N) - 1, -1, -1):
        reward, parent = rewards_N[node], parents_N[node]
        if reward is not None:
            sums[node] += reward
            leaves[node] += 1
        if parent is not None:
            sums[parent] += sums[node]
            leaves[parent] += leaves[node]
    return np.divide(sums, leaves, out=np.zeros_like(sums), where=leaves > 0)


def gain_advantages(
    parents_N: Sequence[int | None],
    rewards_N: Sequence[float | None],
    ddof: int = 0,
    *,
    relative_to_root: bool = False,
    scaled: bool = True,
) -> Floats:
    """The value of each node minus its parent's, divided by the standard deviation of all leaves; 0 at the root.

    Behind the last branching point the gain is 0. With `relative_to_root`, the value of a node minus the root's is
    added, so that every step is credited with the outcome of its branch. Not divided unless `scaled`.
    """
    values = node_values(parents_N, rewards_N)
    leaves = np.array([reward for reward in rewards_N if reward is not None], dtype=np.float64)
    ones = np.ones(leaves.shape)
    std = _root_mean_square(_center(leaves, ones), ones, ddof)
    if std <= _ZERO_STD:
        return np.zeros(len(parents_N))
    parent_values = np.array(
        [values[node] if parent is None else values[parent] for node, parent in enumerate(parents_N)]
    )
    gains: Floats = values - parent_values + (values - values[0] if relative_to_root else 0.0)
    return gains / std if scaled else gains


def branch_advantages(trees_G: Sequence[int], rewards_G: ArrayLike, ddof: int = 0, *, scaled: bool = True) -> Floats:
    """One advantage per branch: its reward relative to its own tree (`trees_G` has its number), and to all."""
    rewards, trees = np.asarray(rewards_G, dtype=np.float64), np.asarray(trees_G)

    def relative(some: Floats) -> Floats:
        return standardize(some, ddof=ddof) if scaled else _center(some, np.ones(some.shape))

    found = relative(rewards)
    for tree in np.unique(trees):
        own = trees == tree
        found[own] += relative(rewards[own])
    return found
