"""A limit on what a server sends back: a reply without end must not fill the memory.

In: a response of httpx, as a hook gets it before its body is read. Out: the same response, whose body ends with an
error at the limit. Clients ask for replies without compression (`PLAIN`), whose size is known.
"""

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from stepladder.core.memory import format_bytes

#: Request headers.
PLAIN = {"accept-encoding": "identity"}


class LongReply(Exception):
    """A reply that is too long, takes too long, or is compressed although it should not be."""


def too_long(limit: int) -> LongReply:
    """The error for a reply of more bytes than the limit."""
    return LongReply(f"the reply is too long; expected at most {format_bytes(limit)}")


def check_plain(headers: Mapping[str, str]) -> None:
    """Raise `LongReply` for a compressed reply."""
    if (encoding := headers.get("content-encoding", "identity")) != "identity":
        raise LongReply(f"the reply is compressed ({encoding[:20]}); expected identity")


def limit_reply(response: Any, limit: int, seconds: float) -> None:
    """Limit the bytes of a reply, and the seconds until its end."""
    left, deadline, stream = limit, time.monotonic() + seconds, response.stream

    def check(count: int) -> None:
        nonlocal left
        left -= count
        if left < 0:
            raise too_long(limit)
        if time.monotonic() > deadline:
            raise LongReply(f"the reply has not ended after {seconds:g} s")

    def parts(_: object) -> Iterator[bytes]:
        for part in stream:
            check(len(part))
            yield part

    async def async_parts(_: object) -> AsyncIterator[bytes]:
        async for part in stream:
            check(len(part))
            yield part

    check_plain(response.headers)
    if (announced := response.headers.get("content-length", "")).isdecimal() and int(announced[:20]) > limit:
        check(limit + 1)
    # The client checks the class of a stream, which is not the same in all versions of the library.
    kind = next(each for each in type(stream).__mro__ if each.__name__ in ("SyncByteStream", "AsyncByteStream"))
    methods = {"__iter__": parts, "__aiter__": async_parts, "close": lambda _: stream.close()}
    response.stream = type("LimitedStream", (kind,), methods | {"aclose": lambda _: stream.aclose()})()
