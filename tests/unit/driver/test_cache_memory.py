"""The driver's caches are limited in bytes, and given up when memory runs out."""

from collections.abc import Sequence

import pytest

from stepladder.core import memory
from stepladder.core.requests import Algorithm, Retrieve
from stepladder.core.trace import Passage
from stepladder.driver import Driver
from stepladder.retrieval.base import Retriever


class LongPassages(Retriever):
    """Finds one passage of 260 kB for every query; every `fail_every`-th call cannot allocate its memory."""

    def __init__(self, fail_every: int = 0) -> None:
        self.calls, self.fail_every = 0, fail_every

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        self.calls += 1
        if self.fail_every and self.calls % self.fail_every == 0:
            raise MemoryError
        return [(Passage(query, "", query.ljust(260_000)),) for query in queries]


def search(query: str) -> Algorithm[str]:
    (passage,) = yield Retrieve(query, 1)
    return str(passage.id)


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_limit", 32_000_000)  # 4 MB for searches


def test_searches_over_long_passages_stay_within_their_share() -> None:
    driver = Driver(retriever=LongPassages())
    for number in range(100):
        driver.run([lambda number=number: search(str(number))])
    cache = driver.caches[Retrieve]
    assert 3_500_000 < cache.bytes <= 4_000_000
    assert sum(len(reply[0].text) for reply, _ in cache.replies.values()) <= 4_000_000
    driver.run([lambda: search("99")])
    assert driver.counts.answered_by_cache == 1


def test_a_reply_that_is_larger_than_the_cache_is_not_kept() -> None:
    memory.set_cache_limit(800_000)
    driver = Driver(retriever=LongPassages())
    assert driver.run([lambda: search("a")])[0].value == "a"
    assert (len(driver.caches[Retrieve].replies), driver.caches[Retrieve].bytes) == (0, 0)


def test_without_memory_caches_are_emptied_and_the_search_is_repeated() -> None:
    driver = Driver(retriever=LongPassages(fail_every=11))
    values = [driver.run([lambda number=number: search(str(number))])[0].value for number in range(30)]
    assert values == [str(number) for number in range(30)]
    assert driver.caches[Retrieve].capacity < 2_000_000
