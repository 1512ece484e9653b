"""Where a text is in its grammar: in which literal or free text, and how long that text already is.

In: the bytes of each token, known to be in the grammar. Out: a state that determines which tokens may follow, so that
their masks are computed once per state; and whether a free text has to end, because it has used its share of the limit.
"""

import codecs
from dataclasses import dataclass, field
from typing import Any

from stepladder.core.grammars.grammar import Constraint, Grammar, Space, Text

#: An option of the grammar, and in it the index of a character, a text or a space.
_Place = tuple[int, int]
#: With a place in a text: before its first character, after a space, or after its first visible character.
_Position = tuple[int, int, int]
_START, _SPACE, _WITHIN = range(3)


@dataclass(slots=True, eq=False)
class State:
    """All places where a text can be."""

    positions: frozenset[_Position]
    #: The bytes of an incomplete character.
    partial: bytes
    #: The free texts that may have begun and not ended.
    texts: dict[_Place, Text]
    #: After a token: the state, and how many characters it added to the free text of that state.
    after: dict[bytes, tuple["State", int]] = field(default_factory=dict)
    #: The masks of this state, by whatever else they depend on.
    masks: dict[Any, Any] = field(default_factory=dict)

    @property
    def is_ambiguous(self) -> bool:
        """Whether texts that began at different places may be going on: then no one number is their length."""
        return len({place for _, place in self.texts}) > 1

    @property
    def ends(self) -> str:
        """The characters at which its text can end."""
        return "".join(sorted(set.intersection(*(set(text.without) for text in self.texts.values()))))


class Automaton:
    """The states of a grammar, built as they are needed and shared by all texts."""

    def __init__(self, grammar: Grammar) -> None:
        self.units: list[list[str | Text | Space]] = [
            [unit for part in option for unit in (part if isinstance(part, str) else (part,))]
            for option in grammar.options
        ]
        self.states: dict[tuple[frozenset[_Position], bytes], State] = {}
        self.start = self._state(self._reachable({self._enter((option, 0)) for option in range(len(self.units))}), b"")

    def step(self, state: State, token: bytes) -> tuple[State, int]:
        """The state after a token, and how many characters the token added to the free text of that state.

        The first visible character of a text is not counted, nor a space before it.
        """
        decoder = codecs.getincrementaldecoder("utf-8")()
        positions, texts, added = state.positions, state.texts.keys(), 0
        for character in decoder.decode(state.partial + token):
            counts = any(stage == _WITHIN and (option, place) in texts for option, place, stage in positions)
            reached = {following for each in positions if (following := self._after(each, character)) is not None}
            positions = self._reachable(reached)
            before, texts = texts, self._texts(positions).keys()
            added = added + counts if texts == before else 0
        found = state.after[token] = self._state(positions, decoder.getstate()[0]), added
        return found

    def _state(self, positions: frozenset[_Position], partial: bytes) -> State:
        if (positions, partial) not in self.states:
            self.states[positions, partial] = State(positions, partial, self._texts(positions))
        return self.states[positions, partial]

    def _texts(self, positions: frozenset[_Position]) -> dict[_Place, Text]:
        units = {(option, place): self._unit((option, place)) for option, place, _ in positions}
        return {place: unit for place, unit in sorted(units.items()) if isinstance(unit, Text)}

    def _unit(self, place: _Place) -> str | Text | Space | None:
        units = self.units[place[0]]
        return units[place[1]] if place[1] < len(units) else None

    def _enter(self, place: _Place) -> _Position:
        unit = self._unit(place)
        return (*place, _START if isinstance(unit, Text) and unit.required else _WITHIN)

    def _after(self, position: _Position, character: str) -> _Position | None:
        option, place, stage = position
        unit = self._unit((option, place))
        if isinstance(unit, Text):
            following = _SPACE if stage == _START and character == " " else _WITHIN
            return (option, place, following) if character not in unit.without else None
        fits = character in unit.characters if isinstance(unit, Space) else character == unit
        return self._enter((option, place + 1)) if fits else None

    def _reachable(self, positions: set[_Position]) -> frozenset[_Position]:
        """With the positions behind texts, which may end, and behind whitespace, which is optional."""
        found, waiting = set(positions), list(positions)
        while waiting:
            option, place, stage = waiting.pop()
            if isinstance(self._unit((option, place)), Text | Space) and stage == _WITHIN:
                following = self._enter((option, place + 1))
                waiting += [following] if following not in found else []
                found.add(following)
        return frozenset(found)


class TextProgress:
    """One text that is being written."""

    def __init__(self, automaton: Automaton, limits: dict[Text, int]) -> None:
        """`limits`: the maximum tokens of each free text; empty if only characters are limited."""
        self.automaton, self.limits, self.state = automaton, limits, automaton.start
        self.least = min(limits.values(), default=0)
        #: Tokens and characters of the free text that has not ended.
        self.tokens = self.characters = 0

    def accept(self, token: bytes) -> None:
        """Advance by a token. One that ends a text or begins one does not count."""
        before = self.state
        self.state, added = before.after.get(token) or self.automaton.step(before, token)
        same = bool(before.texts) and before.texts.keys() == self.state.texts.keys()
        self.tokens = self.tokens + 1 if same else 0
        self.characters = self.characters + added if same else added

    @property
    def must_end(self) -> bool:
        """Whether the free text has used its tokens. An incomplete character is completed first."""
        if not self.limits or self.tokens < self.least or not self.state.texts or self.state.partial:
            return False
        return all(self.tokens >= self.limits[text] for text in self.state.texts.values())


def token_limits(constraint: Constraint) -> dict[Text, int]:
    """The maximum tokens of each free text; empty if only characters are limited."""
    if constraint.counts != "tokens":
        return {}
    texts = {part for option in constraint.grammar.options for part in option if isinstance(part, Text)}
    return {text: constraint.grammar.max_tokens_of(text, constraint.max_tokens) for text in texts}
