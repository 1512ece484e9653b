"""Text that can leave the process: Python's strings hold lone surrogates, UTF-8 does not."""


def replace_surrogates(text: str) -> str:
    r"""The text with lone surrogates replaced by U+FFFD.

    >>> replace_surrogates("Orl\u00e9ans \ud800")
    'Orléans �'
    """
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
