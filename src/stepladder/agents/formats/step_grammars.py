"""The grammars of agents, derived from their tags: what each may write in its next step."""

import json
from collections.abc import Iterable, Sequence

from stepladder.core.grammars.grammar import Grammar, Part, Space, Text

#: A thought may be empty. It may be three times as long as an action.
_WEIGHT = 3
THOUGHT = Text(required=False, weight=_WEIGHT)


def block_grammar(thought: Sequence[Part], tags: Iterable[str]) -> Grammar:
    """A thought and then one block with one of these tags."""
    return Grammar(tuple((*thought, f"<{tag}>", Text(), f"</{tag}>") for tag in tags))


def tagged_thought(tag: str) -> tuple[Part, ...]:
    """A thought in its tag."""
    return Space(), f"<{tag}>", THOUGHT, f"</{tag}>", Space("\n")


def line_grammar(keywords: Iterable[str]) -> Grammar:
    """ReAct: a line with a thought, and a line with one of these words and its argument in brackets.

    The closing bracket may be the end: chat models end their turn there. A thought contains none, which would be a stop
    string at the end of its line.
    """
    thought = Text("<\n]", required=False, weight=_WEIGHT)
    return Grammar(
        tuple(
            (Space(), "Thought:", thought, f"\nAction: {word}[", Text("<\n[]"), "]", Space("\n")) for word in keywords
        )
    )


def json_grammar(objects: Iterable[Sequence[str]]) -> Grammar:
    """One line of JSON: an object with the fields of one of these lists. The first of two or more is a thought."""

    def parts(names: Sequence[str]) -> tuple[Part, ...]:
        found: list[Part] = [Space()]
        for number, name in enumerate(names):
            found.append(f'{", " if number else "{"}{json.dumps(name)}: "')
            is_thought = len(names) > 1 and not number
            found.append(Text('<"\\\n\t', required=not is_thought, weight=_WEIGHT if is_thought else 1))
            found.append('"')
        return (*found, "}", Space("\n"))

    return Grammar(tuple(map(parts, objects)))
