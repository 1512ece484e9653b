"""How much better than expected a step was: from rewards and scores to one number a step. Pure functions on arrays.

Names of sizes: G trajectories of one question (a group), S steps of a trajectory, N nodes of a tree. Steps of a group
are lists of G arrays of S numbers, for trajectories differ in length.

    outcome_advantages    the answer's reward against those of the group (GRPO, Search-R1)
    process_advantages    scores of steps against all of the group, by tokens (ProRAG), by steps, or among peers
    dual_advantages       the two together (ProRAG)
    node_values           what a state is worth: the mean reward of the ends below it (TreePS-RAG)
    gain_advantages       how much more a state is worth than the one before it
    branch_advantages     an end's reward against its tree and against all trees of the question (Tree-GRPO)

Where nothing differs there is nothing to learn: all advantages are then exactly 0, not noise divided by almost 0.
"""

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
#: What the scores of steps are measured against.
Over = Literal["tokens", "steps", "peers"]

#: Below this a spread is rounding.
_FLAT = 1e-6


def standardize(values: ArrayLike, weights: ArrayLike | None = None, min_std: float = 0.0) -> Floats:
    """Less the mean, by the standard deviation; zeros where all are alike. Each may count with a weight.

    >>> standardize([1.0, 0.0, 1.0, 0.0]).tolist()
    [1.0, -1.0, 1.0, -1.0]
    """
    found = np.asarray(values, dtype=np.float64)
    if found.size == 0:
        return found
    counts = np.ones(found.shape) if weights is None else np.asarray(weights, dtype=np.float64)
    if counts.sum() <= 0:
        return np.zeros(found.shape)
    return _scaled(found - np.average(found, weights=counts), counts, min_std)


def _scaled(distances: Floats, weights: Floats, min_std: float) -> Floats:
    """Distances from a mean by their spread."""
    spread = float(np.sqrt(np.average(distances**2, weights=weights))) if weights.sum() > 0 else 0.0
    return distances / max(spread, min_std) if spread > _FLAT else np.zeros(distances.shape)


def outcome_advantages(rewards_G: ArrayLike) -> Floats:
    """One number a trajectory."""
    return standardize(rewards_G)


def process_advantages(
    scores: Sequence[ArrayLike],
    tokens: Sequence[ArrayLike],
    over: Over = "tokens",
    peers: Sequence[Sequence[Hashable | None]] | None = None,
    *,
    min_std: float = 0.0,
) -> list[Floats]:
    """One number a step. `tokens`: how many the policy wrote in each; over them, long steps count more in a mean.

    Over `peers`, a step is measured against the mean of those with the same label, and one without against all.
    Scores that spread less than `min_std` are divided by that: small differences then stay small.
    """
    lengths = [len(np.asarray(each)) for each in scores]
    together = np.concatenate([np.asarray(each, dtype=np.float64) for each in scores]) if scores else np.zeros(0)
    counts = np.concatenate([np.asarray(each, dtype=np.float64) for each in tokens]) if tokens else np.zeros(0)
    if counts.shape != together.shape:
        raise ValueError(f"{together.size} scores of steps, but {counts.size} counts of tokens")
    if over == "peers":
        labels = [label for each in peers or () for label in each]
        if len(labels) != together.size:
            raise ValueError(f"{together.size} scores of steps, but {len(labels)} labels")
        found = _scaled(together - _peer_means(together, counts, labels), counts, min_std)
    else:
        found = standardize(together, None if over == "steps" else counts, min_std)
    return np.split(found, np.cumsum(lengths)[:-1]) if lengths else []


def _peer_means(values: Floats, weights: Floats, labels: Sequence[Hashable | None]) -> Floats:
    """For each value the mean of those with its label; of all, where it has none."""
    means = np.zeros(values.shape)
    for label in set(labels):
        own = np.array([each == label for each in labels])
        basis = own if label is not None else np.ones(values.shape, dtype=bool)
        if weights[basis].sum() > 0:
            means[own] = np.average(values[basis], weights=weights[basis])
    return means


def dual_advantages(outcome_G: ArrayLike, process: Sequence[ArrayLike], process_weight: float) -> list[Floats]:
    """What the answer earned, to every step, and `process_weight` times what the step itself earned."""
    whole = np.asarray(outcome_G, dtype=np.float64)
    return [
        one + process_weight * np.asarray(steps, dtype=np.float64) for one, steps in zip(whole, process, strict=True)
    ]


def node_values(parents_N: Sequence[int | None], rewards_N: Sequence[float | None]) -> Floats:
    """The mean reward of the ends below each node, itself included. Ends have a reward, inner nodes none.

    A parent stands before its children; the root has none.
    """
    sums, ends = np.zeros(len(parents_N)), np.zeros(len(parents_N))
    for node in range(len(parents_N) - 1, -1, -1):
        reward, parent = rewards_N[node], parents_N[node]
        if reward is not None:
            sums[node] += reward
            ends[node] += 1
        if parent is not None:
            sums[parent] += sums[node]
            ends[parent] += ends[node]
    return np.divide(sums, ends, out=np.zeros_like(sums), where=ends > 0)


def gain_advantages(
    parents_N: Sequence[int | None], rewards_N: Sequence[float | None], *, standing: bool = False
) -> Floats:
    """What the step to each node gained: its value less its parent's, by the spread of all ends; 0 at the root.

    Below the last node at which branches part nothing is gained any more. With `standing`, the value of a node less the
    root's is added: there, every step is credited with how its branch ended.
    """
    values = node_values(parents_N, rewards_N)
    ends = np.array([reward for reward in rewards_N if reward is not None], dtype=np.float64)
    spread = float(ends.std()) if ends.size else 0.0
    if spread <= _FLAT:
        return np.zeros(len(parents_N))
    before = np.array([values[node] if parent is None else values[parent] for node, parent in enumerate(parents_N)])
    gains: Floats = (values - before + (values - values[0] if standing else 0.0)) / spread
    return gains


def branch_advantages(trees_G: Sequence[int], rewards_G: ArrayLike) -> Floats:
    """One number a branch: its reward against those of its own tree (`trees_G` says which), and against all."""
    rewards, trees = np.asarray(rewards_G, dtype=np.float64), np.asarray(trees_G)
    found = standardize(rewards)
    for tree in np.unique(trees):
        own = trees == tree
        found[own] += standardize(rewards[own])
    return found
