"""Advantages of trajectories and steps, from rewards and scores. Pure functions on arrays.

Shape suffixes: G trajectories of one question (a group), S steps of a trajectory, N nodes of a tree. Steps of a group
are lists of G arrays of S numbers, because trajectories differ in length.

    outcome_advantages    the answer's reward relative to the group (GRPO, Search-R1)
    process_advantages    step scores relative to the group, by tokens (ProRAG), by steps, or among peers
    dual_advantages       the sum of both (ProRAG)
    node_values           the value of a state: the mean reward of the leaves below it (TreePS-RAG)
    gain_advantages       the value of a state minus that of its parent
    branch_advantages     a leaf's reward relative to its tree and to all trees of the question (Tree-GRPO)

If all values are equal, all advantages are exactly 0, not noise divided by almost 0.
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


def standardize(values: ArrayLike, weights: ArrayLike | None = None, min_std: float = 0.0) -> Floats:
    """Subtract the weighted mean and divide by the standard deviation; zeros if all values are equal.

    >>> standardize([1.0, 0.0, 1.0, 0.0]).tolist()
    [1.0, -1.0, 1.0, -1.0]
    """
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        return array
    counts = np.ones(array.shape) if weights is None else np.asarray(weights, dtype=np.float64)
    if counts.sum() <= 0:
        return np.zeros(array.shape)
    return _scale(array - np.average(array, weights=counts), counts, min_std)


def _scale(deviations: Floats, weights: Floats, min_std: float) -> Floats:
    """Divide deviations from a mean by their standard deviation."""
    std = float(np.sqrt(np.average(deviations**2, weights=weights))) if weights.sum() > 0 else 0.0
    return deviations / max(std, min_std) if std > _ZERO_STD else np.zeros(deviations.shape)


def outcome_advantages(rewards_G: ArrayLike) -> Floats:
    """One advantage per trajectory."""
    return standardize(rewards_G)


def process_advantages(
    scores: Sequence[ArrayLike],
    tokens: Sequence[ArrayLike],
    over: Over = "tokens",
    peers: Sequence[Sequence[Hashable | None]] | None = None,
    *,
    min_std: float = 0.0,
) -> list[Floats]:
    """One advantage per step. `tokens`: of each step, its weight in a mean over tokens.

    With `peers`, the baseline of a step is the mean of the steps with the same label, or of all for one without. The
    standard deviation is at least `min_std`, so that small differences stay small.
    """
    lengths = [len(np.asarray(each)) for each in scores]
    together = np.concatenate([np.asarray(each, dtype=np.float64) for each in scores]) if scores else np.zeros(0)
    counts = np.concatenate([np.asarray(each, dtype=np.float64) for each in tokens]) if tokens else np.zeros(0)
    if counts.shape != together.shape:
        raise ValueError(f"{together.size} step scores, but {counts.size} token counts")
    if over == "peers":
        labels = [label for each in peers or () for label in each]
        if len(labels) != together.size:
            raise ValueError(f"{together.size} step scores, but {len(labels)} labels")
        found = _scale(together - _peer_means(together, counts, labels), counts, min_std)
    else:
        found = standardize(together, None if over == "steps" else counts, min_std)
    return np.split(found, np.cumsum(lengths)[:-1]) if lengths else []


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
    parents_N: Sequence[int | None], rewards_N: Sequence[float | None], *, relative_to_root: bool = False
) -> Floats:
    """The value of each node minus its parent's, divided by the standard deviation of all leaves; 0 at the root.

    Behind the last branching point the gain is 0. With `relative_to_root`, the value of a node minus the root's is
    added, so that every step is credited with the outcome of its branch.
    """
    values = node_values(parents_N, rewards_N)
    leaves = np.array([reward for reward in rewards_N if reward is not None], dtype=np.float64)
    std = float(leaves.std()) if leaves.size else 0.0
    if std <= _ZERO_STD:
        return np.zeros(len(parents_N))
    parent_values = np.array(
        [values[node] if parent is None else values[parent] for node, parent in enumerate(parents_N)]
    )
    gains: Floats = (values - parent_values + (values - values[0] if relative_to_root else 0.0)) / std
    return gains


def branch_advantages(trees_G: Sequence[int], rewards_G: ArrayLike) -> Floats:
    """One advantage per branch: its reward relative to its own tree (`trees_G` has its number), and to all."""
    rewards, trees = np.asarray(rewards_G, dtype=np.float64), np.asarray(trees_G)
    found = standardize(rewards)
    for tree in np.unique(trees):
        own = trees == tree
        found[own] += standardize(rewards[own])
    return found
