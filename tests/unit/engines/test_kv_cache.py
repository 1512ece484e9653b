"""Pages of keys and values: who has them, what they hold, and which are given up first."""

import random

import pytest
import torch

from stepladder.engines.base import EngineOutOfMemory
from stepladder.engines.paged import kv_cache as module
from stepladder.engines.paged.kv_cache import NULL_PAGE, PAGE_SIZE, PagedAttentionBatch, PagedKVCache

A_TOKEN = 8


def store_of(pages: int, *, capacity: int | None = None) -> PagedKVCache:
    """With so many pages that can be taken."""
    size = (pages + 1) * PAGE_SIZE * A_TOKEN
    return PagedKVCache(
        torch.device("cpu"), A_TOKEN, size, None if capacity is None else capacity * PAGE_SIZE * A_TOKEN
    )


def text(*parts: int) -> list[int]:
    """Tokens of some pages, each told by a number; 0 is the beginning of one."""
    return [token for part in parts for token in ([part] * PAGE_SIZE if part else [9] * 3)]


def played(store: PagedKVCache, tokens: list[int]) -> list[int]:
    """A row that reads this and ends; the pages that it had."""
    pages = store.find(tokens)
    pages += store.allocate(-(-len(tokens) // PAGE_SIZE) - len(pages))
    store.insert(tokens, pages)
    store.release(pages)
    return pages


def test_what_begins_alike_has_the_same_pages() -> None:
    store = store_of(9)
    first = played(store, text(1, 2, 3, 0))
    assert store.find(text(1, 2, 4)) == first[:2]
    assert store.find(text(1, 2, 3, 0)) == first[:3], "only what is full is known"
    assert store.find(text(2, 2)) == []
    assert store.find(text(1)[:-1]) == []
    assert NULL_PAGE not in first


def test_a_page_is_known_by_all_that_comes_before_it() -> None:
    store = store_of(9)
    first, second = played(store, text(1, 2)), played(store, text(3, 2))
    assert first[1] != second[1]
    assert store.find(text(3, 2)) == second


def test_pages_that_rows_have_are_not_given_up_and_others_last_used_last() -> None:
    store = store_of(6)
    kept, held = played(store, text(1, 2)), played(store, text(3, 4))
    assert store.find(text(3, 4)) == held
    old = played(store, text(5, 6))
    assert store.find(text(1, 2)) == kept
    store.release(kept)  # used after the others
    assert len(store) == 4
    taken = store.allocate(2)
    assert set(taken) == set(old)
    assert store.find(text(5, 6)) == []
    assert store.find(text(1, 2)) == kept


def test_the_end_of_a_transcript_goes_first() -> None:
    store = store_of(4)
    pages = played(store, text(1, 2, 3, 4))
    (taken,) = store.allocate(1)
    assert taken == pages[3]
    assert store.find(text(1, 2, 3, 4)) == pages[:3]


def test_what_comes_behind_a_page_that_is_given_up_is_not_found_by_another() -> None:
    """A page that is used again has the number of one that others came behind."""
    store = store_of(3)
    first = played(store, text(1, 2))
    store._evict(first[0])
    assert not store._key_by_page
    again = [played(store, text(number)) for number in (7, 8, 9)]
    assert store.find(text(7, 2)) == again[0]


def test_what_two_rows_have_read_at_once_is_kept_once() -> None:
    store = store_of(8)
    rows = [store.allocate(2) for _ in range(2)]
    for pages in rows:
        store.insert(text(1, 2), pages)
    store.insert(text(1, 2, 3), [*rows[1], *store.allocate(1)])
    for pages in rows:
        store.release(pages)
    assert len(store) == 2
    assert store.find(text(1, 2)) == rows[0]
    assert len(store._free) == 8 - 2 - 1


def test_without_capacity_nothing_is_kept_and_with_little_the_last() -> None:
    store = store_of(6, capacity=0)
    played(store, text(1, 2))
    assert store.find(text(1, 2)) == []
    assert len(store._free) == 6
    store = store_of(6, capacity=3)
    for number in (1, 3, 5):
        played(store, text(number, number + 1))
        assert store.bytes <= store.capacity
    assert len(store.find(text(5, 6))) == 2
    assert store.find(text(1, 2)) == []


def test_more_than_there_is_cannot_be_had() -> None:
    store = store_of(3)
    played(store, text(1))
    pages = store.allocate(3)
    with pytest.raises(EngineOutOfMemory, match="1 pages requested, 0 of 4 are free"):
        store.allocate(1)
    store.release(pages)
    assert len(store.allocate(3)) == 3


def states(pages: int, value: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    key_MKD = torch.full((pages, 2, 4), value)
    return key_MKD, -key_MKD, torch.arange(1, pages + 1), torch.zeros(pages, dtype=torch.long)


def write(
    store: PagedKVCache, key_MKD: torch.Tensor, value_MKD: torch.Tensor, pages: torch.Tensor, offsets: torch.Tensor
) -> None:
    """Write the states of one token per page to the first layer."""
    count = len(pages)
    batch = PagedAttentionBatch(count, torch.arange(count), offsets, 1, 1, store, pages[:, None])
    batch.write(0, key_MKD, value_MKD)


def test_keys_and_values_are_written_to_their_places() -> None:
    store = store_of(3)
    store.allocate(2)
    write(store, *states(2))
    key, value = store.layers[0]
    assert key.shape == (4, 2, PAGE_SIZE, 4)
    assert key[1:3, :, 0].eq(1).all()
    assert key.sum() == 16
    assert torch.equal(value, -key)


def test_what_is_recorded_of_memory_that_is_given_up_is_told_by_the_epoch() -> None:
    store = store_of(3)
    pages = store.allocate(1)
    write(store, *states(1))
    store.close()
    assert store.epoch == 0, "a row is under way"
    key, value, *where = states(1)
    write(store, key.half(), value.half(), *where)
    assert store.epoch == 1
    store.release(pages)
    store.close()
    assert store.epoch == 2
    assert not store.layers
    assert len(store.allocate(3)) == 3, "and it begins anew"


def test_with_too_little_memory_there_are_half_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MIN_PAGES", 3)
    store = store_of(7)
    store.shrink()
    assert store.max_tokens == 7 * PAGE_SIZE, "nobody knows yet how many there are"
    pages = store.allocate(2)
    store.shrink()
    assert store.available == 5, "as long as rows are under way nothing changes"
    store.release(pages)
    assert store.available == 3
    for _ in range(3):
        store.shrink()
        assert store.available == 2, "and never fewer than some"


def test_what_is_discarded_is_not_known_and_holds_nothing() -> None:
    store = store_of(5)
    kept, bad = played(store, text(1)), store.allocate(2)
    store.insert(text(2, 3), bad)
    write(store, *states(3, float("nan")))
    rows = [bad]
    store.discard(rows)
    assert rows == []
    assert not store.find(text(2, 3))
    assert not store.find(text(1)), "nor is anything else: who knows who has read what"
    assert store.layers[0][0][bad].eq(0).all()
    assert store.layers[0][0][kept].isnan().any()
    before = store.clear_count
    store.discard([])
    assert store.clear_count == before, "without rows nothing has failed"


def test_what_another_row_has_is_not_discarded() -> None:
    store = store_of(5)
    held = store.allocate(1)
    store.insert(text(1), held)
    both = store.find(text(1))
    assert both == held
    write(store, *states(5))
    store.discard([both])
    assert store.layers[0][0][held, :, 0].eq(1).all()
    assert held[0] not in store._free


def test_whatever_rows_do_no_page_is_lost_and_none_holds_anything_else() -> None:
    rng = random.Random(0)
    store = store_of(40)
    holds: dict[int, tuple[int, ...]] = {}
    under_way: list[tuple[list[int], list[int]]] = []
    for _ in range(3000):
        if under_way and (len(under_way) > 6 or rng.random() < 0.5):
            tokens, pages = under_way.pop(rng.randrange(len(under_way)))
            store.insert(tokens, pages)
            store.release(pages)
        else:
            tokens = text(*(rng.randint(1, 3) for _ in range(rng.randint(1, 5)))) + [9] * rng.randint(0, PAGE_SIZE - 1)
            pages = store.find(tokens)
            for place, page in enumerate(pages):
                assert holds[page] == tuple(tokens[: (place + 1) * PAGE_SIZE]), (
                    "what it holds comes behind all before it"
                )
            known = len(pages)
            pages += store.allocate(-(-len(tokens) // PAGE_SIZE) - known)
            for place, page in enumerate(pages[known:], start=known):
                holds[page] = tuple(tokens[: (place + 1) * PAGE_SIZE])
            if rng.random() < 0.5:
                store.insert(tokens, pages)
            under_way.append((tokens, pages))
        if rng.random() < 0.01:
            store.clear()
        have = [page for _, pages in under_way for page in pages]
        assert all(store._ref_counts[page] == have.count(page) for page in set(have))
        assert sorted({*have, *store._free, *store._evictable}) == list(range(1, 41))
        assert len(store._free) + len(store._evictable) + len(set(have)) == 40
        assert store._key_by_page.keys() == set(store._page_by_key.values())
