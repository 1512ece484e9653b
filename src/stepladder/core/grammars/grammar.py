"""What a policy may write in one step: literals and free text, in one of several sequences.

An agent states the grammar of its next step (`Agent.grammar`), a request carries it, and an engine enforces it token by
token (constrained decoding). There are two notations: `regex` for llguidance, vLLM and servers like it, and `gbnf` for
llama.cpp.

Free text has a maximum length, so that a step ends before its token limit. What the literals leave of the limit, each
byte counted as a token, is divided among the texts. An engine in process counts the tokens of a text, so every step
ends in time. Servers can only count characters, of which a token has several: there, unusual text may reach the limit.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal

from pydantic import TypeAdapter

#: A character, or a range of them.
Member = str | tuple[str, str]
#: What free text never contains: control characters, except for tabs and line breaks.
_CONTROL: tuple[Member, ...] = (("\x00", "\x08"), ("\x0b", "\x1f"), "\x7f")
#: What a text that is required begins with: a visible character. These ranges leave out spaces of all kinds. Characters
#: above U+FFFF are left out too: the notations do not share a way to write them.
_VISIBLE = (
    ("!", "~"),
    ("\xa1", "\u167f"),
    ("\u1681", "\u1fff"),
    ("\u2010", "\u2027"),
    ("\u2030", "\u205e"),
    ("\u2070", "\u2fff"),
    ("\u3001", "\ud7ff"),
    ("\uf900", "\ufefe"),
    ("\uff01", "\uffef"),
)
#: Free text has room for at least this many tokens, even if the limit is too small for all texts.
_MIN_TOKENS = 8
#: The maximum length of free text in characters per token, where tokens cannot be counted.
_CHARACTERS = 3
#: llama.cpp refuses more.
_MAX_CHARACTERS = 2000
#: A character takes at most this many tokens more than one.
_PARTIAL = 3


@dataclass(frozen=True, slots=True)
class Text:
    """Free text."""

    #: Characters that it cannot contain, among them the first of the literal that follows.
    without: str = "<"
    #: Whether it has to begin with a visible character, a space before it aside.
    required: bool = True
    #: Its share of the tokens, relative to the other texts.
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Space:
    """One of these characters, or nothing."""

    characters: str = " \n"


#: A literal, free text, or optional whitespace.
Part = str | Text | Space


@dataclass(frozen=True, slots=True)
class Grammar:
    """The text is one of these sequences of parts.

    >>> import re
    >>> grammar = Grammar((("<think>", Text(required=False), "</think>", Space(), "<answer>", Text(), "</answer>"),))
    >>> [bool(re.fullmatch(grammar.regex(), f"<think>So.</think><answer>{text}</answer>")) for text in ("Rome", " ")]
    [True, False]
    """

    options: tuple[tuple[Part, ...], ...]

    def ending_with(self, mark: str, contents: Iterable[str]) -> "Grammar":
        """This grammar, with one of these contents in place of a sequence's last free text if it follows `mark`.

        >>> grammar = Grammar((("<search>", Text(), "</search>"), ("<answer>", Text(), "</answer>")))
        >>> grammar.ending_with("<answer>", "AB").options[1:]
        (('<answer>', 'A', '</answer>'), ('<answer>', 'B', '</answer>'))
        """
        found: list[tuple[Part, ...]] = []
        for option in self.options:
            place = max((n for n, part in enumerate(option) if isinstance(part, Text)), default=0)
            before = option[place - 1] if place else ""
            if mark and isinstance(before, str) and before.endswith(mark):
                found += [(*option[:place], content, *option[place + 1 :]) for content in contents]
            else:
                found.append(option)
        return Grammar(tuple(found))

    def max_tokens_of(self, text: Text, max_tokens: int) -> int:
        """The maximum tokens of a free text in a step of at most `max_tokens`."""
        literals = max(sum(map(_num_bytes, option)) for option in self.options)
        weights = max(sum(part.weight for part in option if isinstance(part, Text)) for option in self.options)
        return max((max_tokens - literals) * text.weight // weights, _MIN_TOKENS)

    def regex(self, max_tokens: int | None = None) -> str:
        """A regular expression in the syntax that Python, Rust and xgrammar share. Without `max_tokens`: any length."""

        def render(part: Part) -> str:
            return _text(part, self._repeat(part, max_tokens)) if isinstance(part, Text) else _literal(part)

        return "|".join(f"({''.join(map(render, option))})" for option in self.options)

    def gbnf(self, max_tokens: int | None = None) -> str:
        """A grammar of llama.cpp."""

        def render(part: Part) -> str:
            if isinstance(part, str):
                return json.dumps(part, ensure_ascii=False)
            return _text(part, self._repeat(part, max_tokens), '" "? ') if isinstance(part, Text) else _literal(part)

        return "root ::= " + " | ".join(" ".join(map(render, option)) for option in self.options)

    def _repeat(self, text: Text, max_tokens: int | None) -> str:
        if max_tokens is None:
            return "*"
        return f"{{0,{min(_CHARACTERS * self.max_tokens_of(text, max_tokens), _MAX_CHARACTERS)}}}"


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar and a token limit, as an engine enforced them. Stored with the tokens as JSON (`Segment.grammar`)."""

    grammar: Grammar
    max_tokens: int
    #: What the length of a free text was counted in.
    counts: Literal["tokens", "characters"] = "tokens"

    @property
    def regex(self) -> str:
        """The regular expression that the whole text matches. It limits texts that are counted in characters."""
        return self.grammar.regex(self.max_tokens if self.counts == "characters" else None)

    def dumps(self) -> str:
        """As JSON."""
        return _dumps(self)

    @staticmethod
    def loads(text: str) -> "Constraint":
        """From JSON."""
        return _constraints().validate_json(text)


@cache
def _constraints() -> TypeAdapter[Constraint]:
    return TypeAdapter(Constraint)


@lru_cache
def _dumps(constraint: Constraint) -> str:
    return _constraints().dump_json(constraint).decode()


def _num_bytes(part: Part) -> int:
    """The most bytes of a literal or of optional whitespace; of a text, those that complete its last character."""
    return _PARTIAL if isinstance(part, Text) else 1 if isinstance(part, Space) else len(part.encode())


def _literal(part: str | Space) -> str:
    if isinstance(part, Space):
        return _class(part.characters) + "?"
    return "".join(_escaped(character, r"\.+*?()|[]{}^$") for character in part)


def _text(text: Text, repeat: str, space: str = " ?") -> str:
    # A negated class has ASCII characters only: xgrammar, which vLLM uses, takes the bytes of others for characters.
    rest = _class((*text.without, *_CONTROL), negated=True) + repeat
    return f"{space}{_class(_without(_VISIBLE, text.without))}{rest}" if text.required else rest


def _without(ranges: Iterable[tuple[str, str]], characters: str) -> Iterator[Member]:
    """Ranges without these characters.

    >>> list(_without([("a", "e"), ("x", "z")], "cx"))
    [('a', 'b'), ('d', 'e'), ('y', 'z')]
    """
    for first, last in ranges:
        start = ord(first)
        for hole in sorted(ord(character) for character in characters if first <= character <= last):
            if start < hole:
                yield chr(start), chr(hole - 1)
            start = hole + 1
        if start <= ord(last):
            yield chr(start), last


def _class(members: Iterable[Member], *, negated: bool = False) -> str:
    """A character class."""
    ranges = (each if isinstance(each, tuple) else (each, each) for each in members)
    parts = (_member(first) + (f"-{_member(last)}" if first != last else "") for first, last in ranges)
    return f"[{'^' if negated else ''}{''.join(parts)}]"


def _member(character: str) -> str:
    # llama.cpp knows no backslash before these two.
    return f"\\x{ord(character):02x}" if character in "^-" else _escaped(character, r"\[]")


def _escaped(character: str, special: str) -> str:
    if character in special:
        return "\\" + character
    if character in "\n\t":
        return {"\n": r"\n", "\t": r"\t"}[character]
    if character.isprintable():
        return character
    return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"
