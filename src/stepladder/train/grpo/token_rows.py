"""Episodes as rows of tokens, and how much each token counts in the loss.

In: credited episodes. Out: one row per episode: ids, loss mask, advantages, the engine's log-probs, and loss weights.
The loss of an update is the mean over its tokens by these weights: over tokens, steps, or episodes (`loss_type`).
"""

from collections.abc import Sequence
from typing import Any

from stepladder.train.grpo.config import LossType
from stepladder.train.grpo.credit.base import CreditedEpisode
from stepladder.train.grpo.rollouts import multiple_contexts_error

#: An episode by the names of its columns; `grammars` has the tokens that were sampled under each grammar.
TokenRow = dict[str, list[Any]]


def token_row(credited: CreditedEpisode, loss_type: LossType = "token") -> TokenRow:
    """An episode as tokens: ids, loss mask and weights, advantages, and the engine's log-probs; and where each grammar
    applied.
    """
    ids: list[int] = []
    grammars: list[tuple[str, range]] = []
    loss_mask: list[int] = []
    advantages: list[float] = []
    logprobs: list[float] = []
    loss_weights: list[float] = []
    lengths = [len(step.written.tokens) for step in credited.trajectory.steps]
    weights = step_weights(lengths, credited.loss_mask, loss_type)
    for number, step in enumerate(credited.trajectory.steps):
        if step.restarts and number:
            raise multiple_contexts_error(credited.trajectory.agent)
        read = [token for segment in step.read for token in segment.tokens]
        written = list(step.written.tokens)
        ids += read + written
        if step.written.grammar:
            grammars.append((step.written.grammar, range(len(ids) - len(written), len(ids))))
        loss_mask += [0] * len(read) + [int(credited.loss_mask[number])] * len(written)
        advantages += [0.0] * len(read) + [credited.advantages[number]] * len(written)
        loss_weights += [0.0] * len(read) + [weights[number]] * len(written)
        known = list(step.written.logprobs) or [float("nan")] * len(written)
        logprobs += [float("nan")] * len(read) + known
    return {
        "ids": ids, "loss_mask": loss_mask, "advantages": advantages, "logprobs": logprobs, "grammars": grammars,
        "loss_weights": loss_weights,
    }  # fmt: skip


def empty_row(padding: int) -> TokenRow:
    """In place of an episode that failed before its first token."""
    unknown, zeros = [float("nan")] * 2, [0.0] * 2
    return {
        "ids": [padding] * 2, "loss_mask": [0] * 2, "advantages": zeros, "logprobs": unknown, "grammars": [],
        "loss_weights": zeros,
    }  # fmt: skip


def step_weights(lengths: Sequence[int], loss_mask: Sequence[bool], loss_type: LossType) -> list[float]:
    """What one token of each step of an episode counts in the loss. `lengths`: tokens of the steps.

    >>> step_weights([4, 2, 2], [True, True, False], "token")
    [1.0, 1.0, 0.0]
    >>> step_weights([4, 2, 2], [True, True, False], "step")
    [0.25, 0.5, 0.0]
    >>> step_weights([4, 1, 2], [True, True, False], "sequence")
    [0.2, 0.2, 0.0]
    """
    in_loss = [length if masked else 0 for length, masked in zip(lengths, loss_mask, strict=True)]
    together = sum(in_loss)
    units = {"token": [1] * len(in_loss), "step": in_loss, "sequence": [together] * len(in_loss)}[loss_type]
    return [1.0 / unit if own else 0.0 for own, unit in zip(in_loss, units)]


def padded(numbers: Sequence[float], width: int) -> list[float]:
    """The numbers and zeros, `width` in total."""
    return [*numbers, *[0.0] * (width - len(numbers))]
