"""Claims: what the sub-answers and evidence of an episode state although it is not right, or not annotated.

In: the texts of such steps, and the hop that each replies to. Out: the names that later queries may ask about in good
faith, and whether a final answer repeats a claim. A `Claims` is never changed in place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepladder.core.answer_metrics import normalize
from stepladder.oracle.wording import names_in


@dataclass(frozen=True, slots=True)
class _Claim:
    """A statement."""

    #: The hop it replies to; None if its query asked for no hop.
    hop: int | None
    #: The statement itself if it is short, and the names in it.
    spellings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of an episode so far."""

    claims: tuple[_Claim, ...] = ()
    #: Hops of which a step said that nothing was found, although it was.
    overlooked: frozenset[int] = frozenset()

    def add(self, text: str, hop: int | None, *, exact: bool, unknown: bool) -> "Claims":
        """With one more statement. `exact`: a sub-answer, not evidence; `unknown`: it says that nothing was found."""
        if unknown:
            return self if hop is None else replace(self, overlooked=self.overlooked | {hop})
        names = [" ".join(name) for name in names_in(text)]
        spellings = tuple(dict.fromkeys([*([text.strip(" .")] if exact else []), *names]))
        return replace(self, claims=(*self.claims, _Claim(hop, spellings)))

    def by_hop(self) -> tuple[dict[int, Sequence[str]], Sequence[str]]:
        """What was claimed for each hop, and what replied to queries for no hop."""
        placed: dict[int, Sequence[str]] = {}
        unplaced: list[str] = []
        for claim in self.claims:
            if claim.hop is None:
                unplaced += claim.spellings
            else:
                placed[claim.hop] = (*placed.get(claim.hop, ()), *claim.spellings)
        return placed, unplaced

    def has(self, hop: int) -> bool:
        """Whether anything was claimed for a hop."""
        return any(claim.hop == hop for claim in self.claims)

    def state(self, text: str, hop: int) -> bool:
        """Whether a text repeats a claim for a hop, or one for no hop."""
        wanted = normalize(text)
        return bool(wanted) and any(
            wanted == normalize(spelling)
            for claim in self.claims
            if claim.hop in (hop, None)
            for spelling in claim.spellings
        )
