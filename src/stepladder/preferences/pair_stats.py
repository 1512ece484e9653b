"""Statistics of preference pairs: counts by kind, depth and margin, and agreement with the gold judge.

In: pairs, one at a time. Out: counts. Agreement is computed over the pairs whose steps both have a gold verdict.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stepladder.core.trace import Pair
from stepladder.evaluation.statistics import pooled_share

#: Upper bounds of the margin groups, and the names of all groups, the narrowest first.
_MARGINS = (0.05, 0.1, 0.25, 0.5)
_GROUPS = (*(f"below {bound:.2f}" for bound in _MARGINS), f"{_MARGINS[-1]:.2f} and more", "only the order is known")


@dataclass(slots=True)
class PairStats:
    """Counts over pairs."""

    pairs: int = 0
    questions: set[str] = field(default_factory=set)
    #: By kind of the chosen and the rejected action, by depth, by margin.
    kinds: Counter[str] = field(default_factory=Counter)
    depths: Counter[int] = field(default_factory=Counter)
    margins: Counter[str] = field(default_factory=Counter)
    #: By question: in how many pairs the gold judge prefers the chosen step, the rejected one, or neither.
    gold: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, pair: Pair) -> None:
        """Count one pair."""
        self.pairs += 1
        self.questions.add(pair.question_id)
        self.kinds[f"{pair.chosen.action.kind.value} over {pair.rejected.action.kind.value}"] += 1
        self.depths[pair.depth] += 1
        self.margins[_GROUPS[-1 if pair.margin is None else bisect_right(_MARGINS, pair.margin)]] += 1
        chosen, rejected = pair.chosen.scores.get("gold"), pair.rejected.scores.get("gold")
        if chosen is not None and rejected is not None:
            preferred = "neither" if chosen == rejected else "chosen" if chosen > rejected else "rejected"
            self.gold.setdefault(pair.question_id, Counter())[preferred] += 1

    def summary(self) -> dict[str, Any]:
        """Plain data, the number of pairs first."""
        return {
            "pairs": self.pairs,
            "questions": len(self.questions),
            "gold": self.agreement(),
            "kinds": dict(self.kinds.most_common()),
            "depths": {str(depth): self.depths[depth] for depth in sorted(self.depths)},
            "margins": {group: self.margins[group] for group in _GROUPS if self.margins[group]},
        }

    def agreement(self) -> dict[str, Any] | None:
        """How often the gold judge prefers the chosen step; None without any pair that it graded.

        `agrees` is a share of the pairs in which it prefers one step; in the others both are good or both are faulty.
        """
        if not self.gold:
            return None
        counts = sum(self.gold.values(), Counter[str]())
        found = {name: counts[name] for name in ("chosen", "rejected", "neither")}
        chosen = [each["chosen"] for each in self.gold.values()]
        decided = [each["chosen"] + each["rejected"] for each in self.gold.values()]
        share = pooled_share(chosen, decided)
        agrees = {"agrees": share and share.mean, "low": share and share.low, "high": share and share.high}
        return {"graded": counts.total(), **found, **agrees}


def format_counts(counts: Mapping[str, float]) -> str:
    """Counts in one line, without zeros.

    >>> format_counts({"asked": 1200, "failed": 0, "refused": 2})
    'asked 1,200, refused 2'
    """
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
