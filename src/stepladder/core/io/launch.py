"""The launch that this process belongs to: torchrun and `accelerate launch` start several, each with its rank.

In: the environment variables of the launchers. Out: the rank and the number of processes, and how weights are sharded.
Without a launcher there is one process, of rank 0. The process of rank 0 is the main process: it owns the run folder
and prints; the others take part in training.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from stepladder.core.errors import StepladderError


class LostProcess(StepladderError):
    """Another process of the launch has ended."""

    def __init__(self, reason: str = "another process of this launch was killed") -> None:
        super().__init__(f"{reason}, so process {rank()} of {world_size()} ends too. The same command resumes")


class MainProcessFailed(StepladderError):
    """The main process reported an error, and has printed it."""


#: Adds 1 to the counter of this name, which all processes share; None until they are connected.
Counter = Callable[[str], int]
_counter: Counter | None = None


def share_counter(counter: Counter) -> None:
    """Connect this process, so that an error of several processes is printed once."""
    global _counter
    _counter = counter


def prints(error: Exception) -> bool:
    """Whether this process prints an error. Of several processes with the same error the first one does; that a process
    was lost is printed once, and only if no error was.
    """
    if world_size() == 1:
        return True
    if _counter is None:  # all processes of a machine have the same error
        return local_rank() == 0
    try:
        if isinstance(error, LostProcess):
            return _counter("failed") == 1
        _counter("failed")
        return _counter(str(error)) == 1
    except (OSError, RuntimeError):  # the process that keeps the counters is gone
        return True


@contextmanager
def ended_by_launcher() -> Iterator[None]:
    """Within, SIGTERM, by which a launcher ends the other processes after one has failed, is a `LostProcess`."""
    own = world_size() > 1 and threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _lost) if own else None
    try:
        yield
    finally:
        if own:
            signal.signal(signal.SIGTERM, before)


def _lost(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise LostProcess("another process of this launch was killed, or the launch itself")


def rank() -> int:
    """The number of this process, from 0."""
    return _number("RANK", 0)


def world_size() -> int:
    """How many processes were launched."""
    return _number("WORLD_SIZE", 1)


def local_rank() -> int:
    """The number of this process among those on this machine, from 0."""
    return _number("LOCAL_RANK", rank())


def local_world_size() -> int:
    """How many of them are on this machine."""
    return _number("LOCAL_WORLD_SIZE", world_size())


def is_main() -> bool:
    """Whether this is the main process."""
    return rank() == 0


def sharding() -> str | None:
    """What shards the weights over the processes: FSDP or DeepSpeed; None if every process has all of them."""
    if "RANK" not in os.environ:
        return None
    for name in ("FSDP", "DeepSpeed"):
        if os.environ.get(f"ACCELERATE_USE_{name.upper()}", "false").lower() in ("true", "1"):
            return name
    return None


def _number(variable: str, default: int) -> int:
    value = os.environ.get(variable, str(default))
    if not value.strip().isdecimal():
        raise StepladderError(f"the environment variable {variable} is '{value}'; expected a number, as torchrun sets")
    return int(value)
