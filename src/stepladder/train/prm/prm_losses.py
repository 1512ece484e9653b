"""The losses of a PRM.

In: step scores (logits). Out: one loss per pair or step, not reduced.

    ranking     -log sigmoid(r+ - r- - m)      ProRAG and RAG-Gym, on two steps from one state; m is a margin
    centering   (r+ + r-)^2                    keeps 0 between the two: the ranking loss is shift-invariant
    value       cross-entropy of sigmoid(r)    with a value between 0 and 1, such as a Monte-Carlo estimate
"""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid


def ranking_loss(better_P: torch.Tensor, worse_P: torch.Tensor, margins_P: torch.Tensor) -> torch.Tensor:
    """Negative log-likelihood of the order of each pair."""
    return -logsigmoid(better_P - worse_P - margins_P)


def centering_loss(better_P: torch.Tensor, worse_P: torch.Tensor) -> torch.Tensor:
    """Centers the scores of each pair at 0, so that a score of 0 is neither good nor bad."""
    return (better_P + worse_P) ** 2


def value_loss(scores_S: torch.Tensor, targets_S: torch.Tensor) -> torch.Tensor:
    """Cross-entropy between sigmoid(score) and the value of each step."""
    return binary_cross_entropy_with_logits(scores_S, targets_S, reduction="none")
