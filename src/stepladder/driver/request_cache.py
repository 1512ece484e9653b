"""An LRU cache of replies, keyed by the content of requests.

In: requests and their replies. Out: the reply to an equal request. Two requests are equal if they would be answered
alike: same tokens, sampling and seed, whatever the log-probs that came with the tokens.
"""

import marshal
import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import astuple, replace
from hashlib import blake2b
from typing import Any

from stepladder.core.memory import SizedCache
from stepladder.core.requests import Generate, Generation, Rank, Request, Retrieve
from stepladder.core.trace import Passage, Segment

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
        if request.grammar is not None:
            add(request.grammar)
    else:
        for trajectory in request.trajectories if isinstance(request, Rank) else (request.trajectory,):
            add(astuple(trajectory.question), trajectory.agent, trajectory.stop, trajectory.given)
            for step in trajectory.steps:
                add(step.action, step.passages, step.restarts)
                add_segments((*step.read, step.written))
    return digest.digest()


class RequestCache(SizedCache):
    """The most recently used replies, at most `size` of them, and at most `capacity` bytes."""

    def __init__(self, size: int, capacity: int) -> None:
        super().__init__(capacity)
        self.size = size
        #: Replies with their sizes.
        self.replies: OrderedDict[Key, tuple[Any, int]] = OrderedDict()

    def get(self, key: Key, request: Request) -> Any | None:
        """The cached reply to a request, or None."""
        if key not in self.replies:
            return None
        self.replies.move_to_end(key)
        return restore_context(self.replies[key][0], request)

    def put(self, key: Key, request: Request, reply: Any) -> None:
        """Store the reply to a request and evict the oldest ones while the cache is full."""
        if self.size:
            kept = drop_context(reply, request)
            size = _size_of(kept)
            self.bytes += size - self.replies.get(key, (None, 0))[1]
            self.replies[key] = kept, size
        while len(self.replies) > self.size or self.overfull():
            self.bytes -= self.replies.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Evict everything."""
        self.replies.clear()
        self.bytes = 0


#: Python's memory overhead of an entry, of a passage, and of a token with its log-prob, in bytes.
_ENTRY_BYTES, _PASSAGE_BYTES, _TOKEN_BYTES = 500, 150, 72


def _size_of(reply: Any) -> int:
    """The approximate memory of a reply, in bytes."""
    if isinstance(reply, Generation):
        segments = (*reply.context, reply.written)
        return _ENTRY_BYTES + sum(sys.getsizeof(each.text) + _TOKEN_BYTES * len(each.tokens) for each in segments)
    passages: Sequence[Passage] = reply if isinstance(reply, tuple) else ()
    return _ENTRY_BYTES + sum(_PASSAGE_BYTES + sys.getsizeof(each.text) for each in passages)


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
