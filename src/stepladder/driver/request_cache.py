"""An LRU cache of replies, keyed by the content of requests.

In: requests and their replies. Out: the reply to an equal request. Two requests are equal if they would be answered
alike: same tokens, sampling and seed, whatever the log-probs that came with the tokens.
"""

import marshal
import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import astuple
from hashlib import blake2b
from typing import Any

from stepladder.core.memory import SizedCache
from stepladder.core.requests import Generate, Generation, Rank, Request, Retrieve
from stepladder.core.trace import Passage, Segment

#: A digest, because transcripts are long and keys are kept; of a `Generate` followed by its seed.
Key = bytes

_DIGEST_SIZE = 16
_CHECK_BYTES = 1 << 20


def keys_of(requests: Sequence[Request]) -> list[Key]:
    """The cache keys of requests. Samples of one state share their context, which is hashed once.

    Log-probs are ignored: they differ by rounding between batches. The question is included, because engines that
    follow rules may answer two questions with the same text differently.
    """
    keys: list[Key] = []
    digests: dict[Any, bytes] = {}
    for request in requests:
        if not isinstance(request, Generate):
            keys.append(_digest(request))
            continue
        shared = id(request.context), request.stop, request.sampling, id(request.grammar), id(request.trajectory)
        if shared not in digests:
            digests[shared] = _digest(request)
        keys.append(b"%b%d" % (digests[shared], request.seed))
    return keys


def group_of(key: Key) -> Key:
    """The key of a `Generate` without its seed: equal for samples of one state."""
    return key[:_DIGEST_SIZE]


def _digest(request: Request) -> bytes:
    """A digest of everything but the seed."""
    digest = blake2b(type(request).__name__.encode(), digest_size=_DIGEST_SIZE)

    def add(*parts: object) -> None:
        digest.update(repr(parts).encode("utf-8", "surrogatepass"))

    def add_segments(segments: Sequence[Segment]) -> None:
        # Format 2 has no back references, which would encode whether equal values are the same object.
        parts = [(each.author.value, each.text, each.tokens, each.vocabulary) for each in segments]
        digest.update(marshal.dumps(parts, 2))

    if isinstance(request, Retrieve):
        add(request.query, request.k)
    elif isinstance(request, Generate):
        add(request.stop, request.sampling, request.trajectory and request.trajectory.question.id)
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
        #: Bytes stored since memory was last found not to be short.
        self._unchecked = 0

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
            self._unchecked += size
        while len(self.replies) > self.size or self.bytes > self.capacity or self._memory_is_short():
            self.bytes -= self.replies.popitem(last=False)[1][1]

    def _memory_is_short(self) -> bool:
        """Asked once per `_CHECK_BYTES` of new replies: the answer is in files of the system."""
        short = self._unchecked >= _CHECK_BYTES and self.overfull()
        if not short:
            self._unchecked %= _CHECK_BYTES
        return short

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
    """The reply without what every equal request holds itself: its whole context if the engine has added no tokens to
    it, else the tokenized part."""
    if not (isinstance(reply, Generation) and isinstance(request, Generate)):
        return reply
    asked = request.context
    unchanged = reply.context is asked
    new = () if unchanged else tuple(now for was, now in zip(asked, reply.context, strict=True) if not was.tokens)
    return Generation(new, reply.written, reply.text, reply.finish, reply.usage)


def restore_context(reply: Any, request: Request) -> Any:
    """The inverse of `drop_context`, with the context of this request and its own log-probs."""
    if not (isinstance(reply, Generation) and isinstance(request, Generate)):
        return reply
    new, asked = iter(reply.context), request.context
    context = tuple(each if each.tokens else next(new) for each in asked) if reply.context else asked
    return Generation(context, reply.written, reply.text, reply.finish, reply.usage)
