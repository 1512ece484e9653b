"""Errors that end an HTTP request. The API formats them for its clients."""

import math
from collections.abc import Mapping

from starlette.exceptions import HTTPException

#: Upper limit of Retry-After, in seconds.
_MAX_RETRY_AFTER = 60


class HTTPError(HTTPException):
    """Ends a request with a status and a reason."""

    def __init__(
        self,
        status: int,
        detail: str,
        headers: Mapping[str, str] | None = None,
        *,
        code: str | None = None,
        fields: Mapping[str, object] | None = None,
    ) -> None:
        """`code`: a name of the error, for formats that have one. `fields`: further fields of the JSON response."""
        super().__init__(status, detail, headers)
        self.code, self.fields = code, fields or {}


class QueueFull(HTTPError):
    """The queue is full; Retry-After estimates in how many seconds there will be room."""

    def __init__(self, what: str, waiting: int, seconds: float) -> None:
        """`what`: the plural of what waits. `seconds`: the time to process all that waits."""
        retry_after = min(max(1, math.ceil(seconds)), _MAX_RETRY_AFTER)
        detail = f"the queue is full, {waiting:,} {what} are waiting: try again in {retry_after} s"
        super().__init__(429, detail, {"retry-after": str(retry_after)})


def shutting_down() -> HTTPError:
    """The error for requests that arrive, or are unfinished, during shutdown."""
    headers = {"retry-after": "1", "connection": "close"}
    detail = "the server is shutting down: try another one, or later"
    return HTTPError(503, detail, headers, fields={"status": "draining"})


def crashed() -> HTTPError:
    """The error for requests that failed by a bug."""
    return HTTPError(500, "internal server error; see the server's log")
