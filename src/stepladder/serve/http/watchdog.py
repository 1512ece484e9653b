"""Deadlines for many requests at once."""

import asyncio
from collections.abc import Callable
from time import perf_counter

#: Seconds between two checks.
_TICK = 0.1


class Watchdog:
    """Calls actions when their time has come, unless they are cleared before.

    Nearly all are cleared, so one timer for all of them checks what is due: setting a deadline is an entry in a
    dictionary, a tenth of the cost of a timer of its own.
    """

    def __init__(self) -> None:
        self._due: dict[object, tuple[float, Callable[[], object]]] = {}
        self._ticking = False

    def set(self, key: object, seconds: float, action: Callable[[], object]) -> None:
        """Call `action` in so many seconds, on the running event loop."""
        self._due[key] = perf_counter() + seconds, action
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(_TICK, self._tick)

    def clear(self, key: object) -> bool:
        """Whether the action was still to come; now it is not called any more."""
        return self._due.pop(key, None) is not None

    def _tick(self) -> None:
        now = perf_counter()
        for key, (due, action) in list(self._due.items()):
            if due <= now:
                del self._due[key]
                action()
        self._ticking = bool(self._due)
        if self._ticking:
            asyncio.get_running_loop().call_later(_TICK, self._tick)
