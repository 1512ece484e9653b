"""The losses of reward models, on scores alone.

In: scores of steps, as a model gives them. Out: one loss a pair or a step, to be averaged by whoever asks.

    ranking     -log sigmoid(r+ - r- - m)      ProRAG and RAG-Gym, on two steps from one state; m is a margin
    centring    (r+ + r-)^2                    keeps 0 between the two: only differences matter to the ranking
    value       cross-entropy of sigmoid(r)    with a value between 0 and 1, such as a Monte-Carlo estimate
"""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid


def ranking_loss(better_P: torch.Tensor, worse_P: torch.Tensor, margins_P: torch.Tensor) -> torch.Tensor:
    """How unlikely the right order of each pair is."""
    return -logsigmoid(better_P - worse_P - margins_P)


def centering_loss(better_P: torch.Tensor, worse_P: torch.Tensor) -> torch.Tensor:
    """How far the middle of each pair is from 0, so that a score of 0 means neither good nor bad."""
    return (better_P + worse_P) ** 2


def value_loss(scores_S: torch.Tensor, targets_S: torch.Tensor) -> torch.Tensor:
    """How unlikely the value of each step is, where sigmoid(score) is read as that value."""
    return binary_cross_entropy_with_logits(scores_S, targets_S, reduction="none")
