"""Final answers scored by the chain of steps before them.

A step is scored at one token, by what the layers below can see there. That an earlier step is wrong is known only in
the last layers at that step, so the score of an answer in the same pass hardly knows it. But an answer is right only if
the steps that it rests on are: the probability that it is right is taken to be the product of the probabilities of all
steps so far, each given that those before it are good. The scores of other steps stay their own.
"""

import math
from collections.abc import Sequence

import torch
from torch.nn.functional import logsigmoid

from stepladder.core.trace import ActionKind, Trajectory

#: The largest log-probability of a chain, so that its logit is finite.
_LARGEST = -1e-6


def with_chain_scores(trajectory: Trajectory, logits: Sequence[float]) -> tuple[float, ...]:
    """The logits of steps, those of answers replaced by the logits of their chains."""
    return tuple(
        chain_logit(logits[: number + 1]) if step.action.kind is ActionKind.ANSWER else logits[number]
        for number, step in enumerate(trajectory.steps)
    )


def chain_logit(logits: Sequence[float]) -> float:
    """The logit of the product of probabilities.

    >>> round(chain_logit([0.0, 0.0]), 6) == round(math.log(0.25 / 0.75), 6)
    True
    >>> chain_logit([-8.0, 3.0]) < -8.0 < chain_logit([9.0, 3.0]) < 3.0
    True
    """
    logp = min(sum(min(each, 0.0) - math.log1p(math.exp(-abs(each))) for each in logits), _LARGEST)
    return logp - math.log(-math.expm1(logp))


def chain_logits(scores_S: torch.Tensor, answers_A: torch.Tensor, before_M2: torch.Tensor) -> torch.Tensor:
    """The scores of a batch, those of answers replaced by the logits of their chains.

    `answers_A`: indices of answers among the scores. `before_M2`: for each step before an answer the place of the
    answer in `answers_A`, and the index of the step. Gradients reach the answer's own score alone: an answer is no
    evidence against the good steps before it.
    """
    logp_A = logsigmoid(scores_S[answers_A])
    logp_A = logp_A.index_add(0, before_M2[:, 0], logsigmoid(scores_S.detach()[before_M2[:, 1]]))
    logp_A = logp_A.clamp(max=_LARGEST)
    return scores_S.index_copy(0, answers_A, logp_A - torch.log(-torch.expm1(logp_A)))
