"""One pair as the page shows it: the state, both steps, and who judged them and how."""

import math
from typing import Any

from stepladder.core.trace import Pair, Side
from stepladder.preferences.marks import Mark
from stepladder.serve.studio.pairs.pair_index import PairRow

#: What the scores of a step are, by name.
_SCORES = {
    "mc": "Monte-Carlo value of its rollouts",
    "spre": "value that prefers short solutions (SPRE)",
    "gold": "the gold judge: 1 is right, 0 is faulty",
    "prm": "the reward model",
    "llm": "the language model that judges",
}


def pair_detail(row: PairRow, pair: Pair, mark: Mark | None) -> dict[str, Any]:
    """A pair as plain data."""
    return {
        **row.data(),
        "reason": pair.reason,
        "agent": pair.agent,
        "context": [{"author": segment.author.value, "text": segment.text} for segment in pair.context],
        "sides": [_side(pair.chosen), _side(pair.rejected)],
        "mark": mark_data(mark),
    }


def mark_data(mark: Mark | None) -> dict[str, str] | None:
    """A mark as plain data."""
    return None if mark is None else {"note": mark.note, "time": mark.time}


def _side(side: Side) -> dict[str, Any]:
    action = side.action
    return {
        "kind": action.kind.value,
        "thought": action.thought,
        "content": action.content,
        "problem": action.problem,
        "text": side.written.text,
        "value": _finite(side.value),
        "visits": side.visits,
        "scores": [
            {"name": name, "score": _finite(score), "about": _SCORES.get(name, "")}
            for name, score in sorted(side.scores.items())
        ],
    }


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
