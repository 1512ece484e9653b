"""How long to wait before a server is asked again.

In: how often it was tried, the headers of its last answer. Out: seconds, or None where waiting is of no use. No I/O.
"""

import random
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

#: The longest wait before a retry, in seconds. A server that asks for more is not waited for.
MAX_RETRY_WAIT = 120.0


def retry_wait(tries: int, headers: Mapping[str, str], backoff: float) -> float | None:
    """Seconds to wait after so many tries: what the server asks for, else exponential with jitter.

    None when the server asks for more than `MAX_RETRY_WAIT`.

    >>> retry_wait(3, {"retry-after": "1.5"}, backoff=1.0)
    1.5
    """
    asked = _seconds(headers.get("retry-after"))
    if asked is not None:
        return asked if asked <= MAX_RETRY_WAIT else None
    # The jitter is deliberately not seeded: clients that failed together should not come back together.
    return min(backoff * 2.0 ** (tries - 1), MAX_RETRY_WAIT) * random.uniform(0.5, 1.0)


def _seconds(retry_after: str | None) -> float | None:
    """A Retry-After header, which holds seconds or a date; None when absent or neither."""
    if retry_after is None:
        return None
    if re.fullmatch(r"\d+(\.\d+)?", retry_after.strip()):
        return float(retry_after)
    try:
        date = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
