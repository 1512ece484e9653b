"""Memory limits of index builds: parsing and formatting."""

import re

from stepladder.core.errors import StepladderError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", re.IGNORECASE)

#: Default memory limit of an index build, in bytes.
DEFAULT_MEMORY = 4 * 10**9


def parse_bytes(text: str) -> int:
    """Parse an amount of memory.

    >>> parse_bytes("4GB"), parse_bytes("500 M")
    (4000000000, 500000000)
    """
    found = _AMOUNT.fullmatch(text.strip())
    if not found or not float(found[1]):
        raise StepladderError(f"'{text}' is not an amount of memory; write it as 500MB or 4GB")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def format_bytes(count: float) -> str:
    """Format an amount of memory.

    >>> format_bytes(3_500_000_000)
    '3.5 GB'
    """
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
