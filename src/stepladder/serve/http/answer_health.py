"""Whether a server's answers fail: `/health` is not ok while they all do."""

from time import monotonic

from stepladder.serve.http.http_errors import HTTPError

#: Failures in a row: one question that cannot be answered does not make a server unhealthy.
MAX_FAILURES = 5
#: Without requests nothing is known: this many seconds after the last failure, clients may try again.
_STALE_SECONDS = 60.0


class AnswerHealth:
    """The answers of a server since the last one that succeeded."""

    def __init__(self) -> None:
        self._failures, self._last_failure = 0, 0.0

    def count(self, *, failed: bool) -> None:
        """Count an answer, or a failure of the server to give one."""
        self._failures = self._failures + 1 if failed else 0
        self._last_failure = monotonic()

    def check(self) -> None:
        """Raise `HTTPError` while all answers fail."""
        if self._failures >= MAX_FAILURES and monotonic() - self._last_failure < _STALE_SECONDS:
            detail = f"the last {self._failures:,} answers failed; see the server's log"
            raise HTTPError(503, detail, fields={"status": "failing"})
