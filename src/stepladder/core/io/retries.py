"""Retry backoff: how long to wait before the next attempt.

In: the number of attempts so far, the headers of the last response. Out: seconds, or None to give up. No I/O.
"""

import random
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

#: Longest wait before a retry, in seconds. A longer Retry-After means giving up.
MAX_RETRY_WAIT = 120.0


def retry_wait(tries: int, headers: Mapping[str, str], backoff: float) -> float | None:
    """Seconds to wait after that many attempts: the server's Retry-After, or else exponential backoff with jitter.

    None if the server asks for more than `MAX_RETRY_WAIT`.

    >>> retry_wait(3, {"retry-after": "1.5"}, backoff=1.0)
    1.5
    """
    requested = _seconds(headers.get("retry-after"))
    if requested is not None:
        return requested if requested <= MAX_RETRY_WAIT else None
    # The jitter is deliberately not seeded: clients that failed together should not retry together.
    return min(backoff * 2.0 ** (tries - 1), MAX_RETRY_WAIT) * random.uniform(0.5, 1.0)


def _seconds(retry_after: str | None) -> float | None:
    """Parse a Retry-After header (seconds or a date); None if absent or invalid."""
    if retry_after is None:
        return None
    if re.fullmatch(r"\d+(\.\d+)?", retry_after.strip()):
        return float(retry_after)
    try:
        date = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
