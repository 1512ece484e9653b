"""The most recently used values, as many as fit: bounded by their number and by their bytes."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """A cache that lets go of what was not used for longest.

    >>> recent = LRUCache[str, str](entries=2, capacity=100)
    >>> for key in "abc":
    ...     recent.put(key, key.upper(), size=10)
    >>> recent.get("a"), recent.get("c"), recent.size
    (None, 'C', 20)
    """

    def __init__(self, entries: int, capacity: int) -> None:
        """Keep so many values at most, of so many bytes together. 0 of either keeps none."""
        self._entries, self._capacity = entries, capacity
        #: The most recently used last, each with its size.
        self._kept: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        #: Bytes of what is kept.
        self.size = 0

    def get(self, key: Key) -> Value | None:
        """The value, which is now the most recently used; None when it is not kept."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Keep a value of so many bytes; one that alone is larger than the capacity is not kept."""
        _, before = self._kept.pop(key, (None, 0))
        self.size -= before
        if size > self._capacity:
            return
        self._kept[key] = value, size
        self.size += size
        while len(self._kept) > self._entries or self.size > self._capacity:
            _, (_, freed) = self._kept.popitem(last=False)
            self.size -= freed
