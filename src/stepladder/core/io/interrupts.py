"""Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever the main thread is at that moment. In a finalizer or a callback of the garbage
collector it is printed and dropped, and some libraries have an `except:` that drops it (`datasets`, while it hashes).
`remembered_interrupts` therefore also remembers the signal, and long loops call `check_interrupt` between two steps.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_pending = False


@contextmanager
def remembered_interrupts() -> Iterator[None]:
    """In place of Python's handler of SIGINT. Other handlers stay: a background job ignores the signal."""
    global _pending
    own = threading.current_thread() is threading.main_thread()
    own = own and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if own:
        signal.signal(signal.SIGINT, _remember)
    try:
        yield
    finally:
        if own:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _pending = False


def check_interrupt() -> None:
    """Raise a KeyboardInterrupt that was dropped on its way; in the main thread only, as Python does."""
    global _pending
    if _pending and threading.current_thread() is threading.main_thread():
        _pending = False
        raise KeyboardInterrupt


def _remember(number: int, frame: FrameType | None) -> None:
    global _pending
    _pending = True
    signal.default_int_handler(number, frame)
