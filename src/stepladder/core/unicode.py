"""Make text encodable as UTF-8: Python strings may hold lone surrogates, UTF-8 cannot."""


def replace_surrogates(text: str) -> str:
    r"""Replace lone surrogates by U+FFFD.

    >>> replace_surrogates("Orl\u00e9ans \ud800")
    'Orléans �'
    """
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
