"""Several algorithms as one, run concurrently.

In: algorithms. Out (as the generator's return value): for each its return value, or the exception that ended it. They
advance together, and their requests are yielded together. Algorithms that need only retrieval are served before any
text is generated, so that the engine gets one full batch instead of two.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from stepladder.core.requests import Algorithm, AnyRequest, BestEffort, Generate, Result, requests_in, send_replies


def gather(algorithms: Iterable[Algorithm[Result]]) -> Algorithm[list[Result | Exception]]:
    """Run algorithms concurrently. A failure of one does not affect the others."""
    members = list(algorithms)
    results: dict[int, Result | Exception] = {}
    waiting: dict[int, AnyRequest] = {}

    def advance(index: int, resume: Callable[[], AnyRequest]) -> None:
        try:
            waiting[index] = resume()
        except StopIteration as end:
            results[index] = end.value
        except Exception as error:  # noqa: BLE001 - this is the result of the member
            results[index] = error

    for index, algorithm in enumerate(members):
        advance(index, partial(next, algorithm))
    while waiting:
        requests = {index: requests_in(waiting[index]) for index in sorted(waiting)}
        retrieving = [index for index, own in requests.items() if not any(isinstance(each, Generate) for each in own)]
        served = {index: waiting.pop(index) for index in retrieving or list(requests)}
        replies = iter((yield BestEffort([request for index in served for request in requests[index]])))
        for index, request in served.items():
            own = [next(replies) for _ in requests[index]]
            advance(index, partial(send_replies, members[index], request, own))
    return [results[index] for index in range(len(members))]


def successes(results: Sequence[Result | Exception]) -> list[Result]:
    """The results without the errors; raises the first error if nothing else is left."""
    found = [each for each in results if not isinstance(each, Exception)]
    if not found:
        raise next(each for each in results if isinstance(each, Exception))
    return found
