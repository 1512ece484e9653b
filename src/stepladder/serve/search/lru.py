"""An LRU cache, limited by entries and bytes."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """A cache that evicts the least recently used entries.

    >>> cache = LRUCache[str, str](entries=2, capacity=100)
    >>> for key in "abc":
    ...     cache.put(key, key.upper(), size=10)
    >>> cache.get("a"), cache.get("c"), cache.size
    (None, 'C', 20)
    """

    def __init__(self, entries: int, capacity: int) -> None:
        """`entries` and `capacity` (in bytes) are the limits. 0 of either disables the cache."""
        self._entries, self._capacity = entries, capacity
        #: Most recently used last, each with its size.
        self._items: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        #: Total size in bytes.
        self.size = 0

    def get(self, key: Key) -> Value | None:
        """The value, which becomes the most recently used; None if it is not cached."""
        found = self._items.get(key)
        if found is None:
            return None
        self._items.move_to_end(key)
        return found[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Cache a value of `size` bytes, unless it exceeds the capacity on its own."""
        _, before = self._items.pop(key, (None, 0))
        self.size -= before
        if size > self._capacity:
            return
        self._items[key] = value, size
        self.size += size
        while len(self._items) > self._entries or self.size > self._capacity:
            _, (_, freed) = self._items.popitem(last=False)
            self.size -= freed
