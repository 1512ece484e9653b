"""Final answers scored by the worst step so far.

A step is scored at one token, by what the layers below can see there. That an earlier step is wrong is known only in
the last layers at that step, so the score of an answer in the same pass hardly knows it. But an answer is only as good
as the steps that it rests on: its score is the least of those of all steps so far, its own included. The scores of
other steps stay their own.
"""

from collections.abc import Sequence

import torch

from stepladder.core.trace import ActionKind, Trajectory


def with_least_scores(trajectory: Trajectory, logits: Sequence[float]) -> tuple[float, ...]:
    """The logits of steps, those of answers replaced by the least so far."""
    return tuple(
        min(logits[: number + 1]) if step.action.kind is ActionKind.ANSWER else logits[number]
        for number, step in enumerate(trajectory.steps)
    )


def least_scores(scores_S: torch.Tensor, answers_A: torch.Tensor, before_M2: torch.Tensor) -> torch.Tensor:
    """The scores of a batch, those of answers replaced by the least so far.

    `answers_A`: indices of answers among the scores. `before_M2`: for each step before an answer the place of the
    answer in `answers_A`, and the index of the step. Gradients reach an answer's own score alone, and only if it is the
    least: an answer is no evidence against the steps before it.
    """
    own_A = scores_S[answers_A]
    before_M = scores_S.detach()[before_M2[:, 1]]
    least_A = torch.full_like(own_A, torch.inf).scatter_reduce(0, before_M2[:, 0], before_M, "amin")
    return scores_S.index_copy(0, answers_A, torch.where(own_A <= least_A, own_A, least_A))
