"""Several algorithms as one, run concurrently.

In: algorithms. Out (as the generator's return value): for each its return value, or the exception that ended it. They
advance together, and their requests are yielded together. Algorithms that need only retrieval are served before any
text is generated, so that the engine gets one full batch instead of two.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Generic

from stepladder.core.requests import Algorithm, AnyRequest, BestEffort, Generate, Result, requests_in, send_replies


def gather(algorithms: Iterable[Algorithm[Result]]) -> Algorithm[list[Result | Exception]]:
    """Run algorithms concurrently. A failure of one does not affect the others."""
    members = [_Member(algorithm) for algorithm in algorithms]
    while waiting := [member for member in members if member.request is not None]:
        retrieving = [member for member in waiting if not member.generates]
        served = retrieving or waiting
        replies = iter((yield BestEffort([request for member in served for request in member.requests])))
        for member in served:
            own = [next(replies) for _ in member.requests]
            member.advance(partial(send_replies, member.algorithm, member.request, own))  # type: ignore[arg-type]
    return [member.result for member in members]


class _Member(Generic[Result]):
    """One of the algorithms: its current requests, or its result."""

    def __init__(self, algorithm: Algorithm[Result]) -> None:
        self.algorithm = algorithm
        self.request: AnyRequest | None = None
        self.result: Result | Exception
        self.advance(partial(next, algorithm))

    def advance(self, resume: Callable[[], AnyRequest]) -> None:
        self.request = None
        try:
            self.request = resume()
        except StopIteration as end:
            self.result = end.value
        except Exception as error:  # noqa: BLE001 - this is the result of the member
            self.result = error
        self.requests = [] if self.request is None else requests_in(self.request)
        self.generates = any(isinstance(request, Generate) for request in self.requests)
