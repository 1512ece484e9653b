"""One limit for the memory of all caches; they shrink when memory is short."""

from pathlib import Path

import pytest

from stepladder.core import memory
from stepladder.core.memory import SizedCache, cache_bytes, out_of_memory, release_caches, set_cache_limit


class Entries(SizedCache):
    def clear(self) -> None:
        self.bytes = 0


@pytest.fixture(autouse=True)
def default_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_limit", None)


def test_the_shares_add_up_to_the_limit() -> None:
    set_cache_limit(1000)
    assert [cache_bytes(name) for name in ("prefixes", "searches", "generations")] == [750, 125, 125]


def test_without_a_limit_caches_take_an_eighth_of_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "room", lambda: 800)
    assert cache_bytes("prefixes") == 75
    monkeypatch.setattr(memory, "room", lambda: 2**40)
    assert cache_bytes("prefixes") == 3 * 2**30


def test_a_cache_shrinks_while_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = Entries(100)
    entries.bytes = 50
    assert not entries.overfull()
    monkeypatch.setattr(memory, "room_of_limits", lambda: memory.RESERVE - 1)
    assert entries.overfull()
    entries.bytes = 0
    assert not entries.overfull()


def test_a_failed_allocation_halves_what_caches_hold() -> None:
    full, empty = Entries(100), Entries(100)
    full.bytes = 60
    release_caches()
    assert (full.capacity, full.bytes) == (30, 0)
    assert empty.capacity == 100


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
            True,
        ),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),  # main memory is not short
        (RuntimeError("shapes do not match"), False),
        (ValueError("can't allocate memory"), False),
    ],
)
def test_errors_of_allocation(error: BaseException, expected: bool) -> None:
    assert out_of_memory(error) is expected


def test_the_limit_of_the_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**44, 2**44))
    assert 2**44 - 2**42 < memory.room_of_limits() < 2**44


@pytest.mark.parametrize(
    ("line", "limit", "used", "cached"),
    [
        ("0::/job", "memory.max", "memory.current", "inactive_file"),
        ("4:memory:/job", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_the_limit_of_the_cgroup_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, limit: str, used: str, cached: str
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (tmp_path / limit).write_text("max\n" if "::" in line else f"{2**63 - 4096}\n")
    (folder / limit).write_text("1000000\n")
    (folder / used).write_text("700000\n")
    (folder / "memory.stat").write_text(f"anon 5\n{cached} 50000\n")
    mark = "0::" if "::" in line else ":memory:"
    files = {mark: (str(tmp_path), *memory._CGROUP_FILES[mark][1:])}
    monkeypatch.setattr(memory, "_CGROUP_FILES", files)
    processes = tmp_path / "cgroup"
    processes.write_text(f"{line}\n")
    monkeypatch.setattr(memory, "_OWN_CGROUPS", processes)
    memory._cgroups.cache_clear()
    try:
        assert memory.room_of_limits() == 350_000
    finally:
        memory._cgroups.cache_clear()
