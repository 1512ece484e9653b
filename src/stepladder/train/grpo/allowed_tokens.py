"""The tokens that a grammar allowed, at the positions of a loss.

In: the rows of an update (`token_row`), of which some steps were generated under a grammar. Out: for each position the
tokens that the policy could choose from. They are computed again from the grammar and the tokens, which takes less than
storing them.
"""

from collections.abc import Sequence
from typing import Any

import torch

from stepladder.core.grammars.grammar import Constraint
from stepladder.engines.transformers.constrained import Bits, GrammarMasks, unpack_bits


def allowed_tokens(
    masks: GrammarMasks,
    rows: Sequence[dict[str, list[Any]]],
    row_N: Sequence[int],
    column_N: Sequence[int],
    logits_NV: torch.Tensor,
) -> torch.Tensor:
    """For each position, one boolean per logit. A column is the position of a token minus 1, as in a completion."""
    bits: dict[tuple[int, int], Bits] = {}
    for index in set(row_N):
        for grammar, span in rows[index]["grammars"]:
            found = masks.of(Constraint.loads(grammar), rows[index]["ids"][span.start : span.stop])
            bits |= {(index, position): each for position, each in zip(span, found)}
    places = [(row, column + 1) for row, column in zip(row_N, column_N)]
    constrained = [number for number, place in enumerate(places) if place in bits]
    allowed_NV = torch.ones(logits_NV.shape, dtype=torch.bool, device=logits_NV.device)
    if constrained:
        found = [bits[places[number]] for number in constrained]
        allowed_NV[constrained] = unpack_bits(found, logits_NV.shape[1], logits_NV.device)
    return allowed_NV
