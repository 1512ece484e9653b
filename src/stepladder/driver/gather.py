"""Several algorithms as one, side by side.

In: algorithms. Out (as the generator's return value): for each what it returned, or the exception that ended it.
They advance together: what all of them ask for is asked at once. Those that need only a search are served before any
text is written, so that the others need not write without them, and a model gets one full batch instead of two.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Generic

from stepladder.core.requests import Algorithm, AnyRequest, BestEffort, Generate, Result, requests_in, send_replies


def together(algorithms: Iterable[Algorithm[Result]]) -> Algorithm[list[Result | Exception]]:
    """Run algorithms side by side. One that fails does not disturb the others."""
    members = [_Member(algorithm) for algorithm in algorithms]
    while waiting := [member for member in members if member.asking is not None]:
        searching = [member for member in waiting if not member.writes]
        served = searching or waiting
        replies = iter((yield BestEffort([request for member in served for request in member.requests])))
        for member in served:
            member.advance(
                partial(send_replies, member.algorithm, member.asking, [next(replies) for _ in member.requests])  # type: ignore[arg-type]
            )
    return [member.result for member in members]


class _Member(Generic[Result]):
    """One of the algorithms: what it asks for now, or what became of it."""

    def __init__(self, algorithm: Algorithm[Result]) -> None:
        self.algorithm = algorithm
        self.asking: AnyRequest | None = None
        self.result: Result | Exception
        self.advance(partial(next, algorithm))

    def advance(self, go_on: Callable[[], AnyRequest]) -> None:
        self.asking = None
        try:
            self.asking = go_on()
        except StopIteration as end:
            self.result = end.value
        except Exception as error:  # noqa: BLE001 - the result of this one
            self.result = error
        self.requests = [] if self.asking is None else requests_in(self.asking)
        self.writes = any(isinstance(request, Generate) for request in self.requests)
