"""Make text of any origin safe to encode and to show: no lone surrogates, no control characters.

Lone surrogates come from JSON escapes and from arguments that are not UTF-8; no file, terminal or tokenizer takes them.
They are replaced where text becomes a record (core/trace.py) and where JSON is read that is not a record.
"""

from typing import Any


def replace_surrogates(text: str) -> str:
    r"""Replace lone surrogates by U+FFFD.

    >>> replace_surrogates("Orl\u00e9ans \ud800")
    'Orléans �'
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins what is a pair
    return text


def without_surrogates(value: Any) -> Any:
    """A JSON value whose strings can be encoded as UTF-8."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if type(value) in (list, tuple):
        return type(value)(without_surrogates(each) for each in value)
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(each) for key, each in value.items()}
    return value


def repair(record: object, *names: str) -> None:
    """Replace lone surrogates in these fields, a text or a tuple of texts, of a frozen record under construction."""
    for name in names:
        found = getattr(record, name)
        if not (isinstance(found, str) and found.isascii()):
            object.__setattr__(record, name, without_surrogates(found))


def readable(text: str, most: int = 600) -> str:
    """Text on one line of at most `most` characters; characters that are not printable are replaced.

    >>> readable("Velm\\n  is\\x1b a city")
    'Velm is\N{REPLACEMENT CHARACTER} a city'
    >>> readable("Velm is a city", 8)
    'Velm is…'
    """
    words = " ".join(text.split())
    words = words if len(words) <= most else words[: most - 1].rstrip() + "…"
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in words)
