"""An LRU cache of replies, keyed by the content of requests.

In: requests and their replies. Out: the reply to an equal request. Two requests are equal if they would be answered
alike: same tokens, sampling and seed, whatever the log-probs that came with the tokens.
"""

import marshal
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import astuple, replace
from hashlib import blake2b
from typing import Any

from stepladder.core.requests import Generate, Generation, Request, Retrieve
from stepladder.core.trace import Segment

#: A digest, because transcripts are long and keys are kept.
Key = bytes


def key_of(request: Request) -> Key:
    """The cache key of a request.

    Log-probs are ignored: they differ by rounding between batches. The question is included, because engines that
    follow rules may answer two questions with the same text differently.
    """
    digest = blake2b(type(request).__name__.encode(), digest_size=16)

    def add(*parts: object) -> None:
        digest.update(repr(parts).encode("utf-8", "surrogatepass"))

    def add_segments(segments: Sequence[Segment]) -> None:
        # Format 2 has no back references, which would encode whether equal values are the same object.
        parts = [(each.author.value, each.text, each.tokens, each.vocabulary) for each in segments]
        digest.update(marshal.dumps(parts, 2))

    if isinstance(request, Retrieve):
        add(request.query, request.k)
    elif isinstance(request, Generate):
        add(request.stop, request.sampling, request.seed, request.trajectory and request.trajectory.question.id)
        add_segments(request.context)
    else:
        trajectory = request.trajectory
        add(astuple(trajectory.question), trajectory.agent, trajectory.stop, trajectory.given)
        for step in trajectory.steps:
            add(step.action, step.passages, step.restarts)
            add_segments((*step.read, step.written))
    return digest.digest()


class RequestCache:
    """The most recently used replies, at most `size` of them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.replies: OrderedDict[Key, Any] = OrderedDict()

    def get(self, key: Key, request: Request) -> Any | None:
        """The cached reply to a request, or None."""
        if key not in self.replies:
            return None
        self.replies.move_to_end(key)
        return restore_context(self.replies[key], request)

    def put(self, key: Key, request: Request, reply: Any) -> None:
        """Store the reply to a request and evict the oldest one if the cache is full."""
        if self.size:
            self.replies[key] = drop_context(reply, request)
        if len(self.replies) > self.size:
            self.replies.popitem(last=False)


def drop_context(reply: Any, request: Request) -> Any:
    """The reply without the tokenized part of its context, which every equal request holds itself."""
    if not (isinstance(reply, Generation) and isinstance(request, Generate)):
        return reply
    new = (now for asked, now in zip(request.context, reply.context, strict=True) if not asked.tokens)
    return replace(reply, context=tuple(new))


def restore_context(reply: Any, request: Request) -> Any:
    """The inverse of `drop_context`, with the context of this request and its own log-probs."""
    if not (isinstance(reply, Generation) and isinstance(request, Generate)):
        return reply
    new = iter(reply.context)
    return replace(reply, context=tuple(each if each.tokens else next(new) for each in request.context))
