"""Make text of any origin safe to encode and to show: no lone surrogates, no control characters."""


def replace_surrogates(text: str) -> str:
    r"""Replace lone surrogates by U+FFFD.

    >>> replace_surrogates("Orl\u00e9ans \ud800")
    'Orléans �'
    """
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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
