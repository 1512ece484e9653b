"""The memory of all caches in this process: one limit, and what happens when memory runs out.

In: a limit from the user (`set_cache_limit`), or else a share of the memory that the machine, the cgroup and the limits
of the process allow. Out: the bytes of each cache (`cache_bytes`). Caches that hold much register (`SizedCache`): they
evict entries while memory is short, and `release_caches` halves them after a failed allocation.
"""

import os
from abc import ABC, abstractmethod
from functools import cache
from pathlib import Path
from weakref import WeakSet

from pydantic import ByteSize, TypeAdapter, ValidationError

from stepladder.core.errors import StepladderError

#: Default limit of all caches: a share of the memory, and at most this many bytes.
CACHE_SHARE, MAX_CACHE_BYTES = 1 / 8, 4 * 2**30
#: How the limit is shared among caches.
_SHARES = {"prefixes": 3 / 4, "searches": 1 / 8, "generations": 1 / 8}
#: Memory is short when less than this many bytes are left: caches then shrink.
RESERVE = 128 * 2**20

_limit: int | None = None
_UNLIMITED = 2**62


def set_cache_limit(limit: int | None) -> None:
    """Set the limit of all caches that are created from now on; None is the default."""
    global _limit
    _limit = limit


def cache_bytes(name: str) -> int:
    """The maximum bytes of a cache: `prefixes`, `searches` or `generations`."""
    limit = min(MAX_CACHE_BYTES, int(room() * CACHE_SHARE)) if _limit is None else _limit
    return int(limit * _SHARES[name])


class SizedCache(ABC):
    """A cache with a limit in bytes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.bytes = 0
        _caches.add(self)

    @abstractmethod
    def clear(self) -> None:
        """Evict everything."""

    def overfull(self) -> bool:
        """Whether an entry has to be evicted: the cache is over its capacity, or memory is short."""
        return self.bytes > self.capacity or (self.bytes > 0 and room_of_limits() < RESERVE)


_caches: WeakSet[SizedCache] = WeakSet()


def release_caches() -> None:
    """After a failed allocation: empty all caches, and let them grow to half of what they held at most."""
    for each in list(_caches):
        if each.bytes:
            each.capacity = min(each.capacity, each.bytes) // 2
        each.clear()


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that main memory could not be allocated, by Python or by torch."""
    texts = ("can't allocate memory", "not enough memory", "Cannot allocate memory", "bad_alloc")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in texts)
    )


# --- how much there is ------------------------------------------------------------------------------------------


def room() -> int:
    """Bytes that this process can still allocate: free memory, or less if a limit is lower."""
    import psutil  # type: ignore[import-untyped]  # slow to import

    return min(int(psutil.virtual_memory().available), room_of_limits())


def room_of_limits() -> int:
    """Bytes up to the limits of the process (`ulimit -v`) and of its cgroup; quick enough to ask often."""
    return max(min([_process_room(), *(_cgroup_room(*each) for each in _cgroups())]), 0)


def _process_room() -> int:
    try:
        import resource  # not on Windows
    except ImportError:
        return _UNLIMITED
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit in (resource.RLIM_INFINITY, -1):
        return _UNLIMITED
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return limit - pages * os.sysconf("SC_PAGE_SIZE")


_OWN_CGROUPS = Path("/proc/self/cgroup")
#: Files with the limit and the use of memory, and the name of cached files in memory.stat, by version of cgroups.
_CGROUP_FILES = {
    "0::": ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "),
    ":memory:": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
}


@cache
def _cgroups() -> tuple[tuple[Path, Path, Path, str], ...]:
    """The files of this process's cgroups that have a memory limit, its own and those above it."""
    try:
        lines = _OWN_CGROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ()
    found = []
    for mark, (top, limit, used, cached) in _CGROUP_FILES.items():
        for own in (line.partition(mark)[2] for line in lines if mark in line):
            folder = Path(top) / own.lstrip("/")
            for each in (folder, *folder.parents):
                if each.is_relative_to(top) and (_number(each / limit) or _UNLIMITED) < _UNLIMITED:
                    found.append((each / limit, each / used, each / "memory.stat", cached))
    return tuple(found)


def _cgroup_room(limit: Path, used: Path, stat: Path, cached: str) -> int:
    most, now = _number(limit), _number(used)
    if most is None or now is None:
        return _UNLIMITED
    # Cached files count as used, and are given up before anything fails.
    lines = stat.read_text(encoding="utf-8").splitlines()
    return most - now + sum(int(line.split()[1]) for line in lines if line.startswith(cached))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no such file, or "max"
        return None


# --- amounts ----------------------------------------------------------------------------------------------------


def parse_bytes(text: str) -> int:
    """Parse an amount of memory.

    >>> parse_bytes("4GB"), parse_bytes("500 M")
    (4000000000, 500000000)
    """
    try:
        found = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        found = 0
    if not found:
        raise StepladderError(f"'{text}' is not an amount of memory; write it as 500MB or 4GB")
    return found


def format_bytes(count: float) -> str:
    """Format an amount of memory.

    >>> format_bytes(3_500_000_000)
    '3.5 GB'
    """
    return ByteSize(count).human_readable(decimal=True, separator=" ")
