"""Rows whose keys and values are in pages, by passes that are recorded: the same words as in the ordinary way."""

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from stepladder.core.errors import BackendDown, BackendError
from stepladder.core.grammars.grammar import Grammar, Text
from stepladder.core.requests import Algorithm, Finish, Generate, Generation, Sampling
from stepladder.core.trace import Author, Segment
from stepladder.driver import Driver
from stepladder.engines.base import EngineOutOfMemory, Session
from stepladder.engines.paged import cuda_graphs as passes, paged_attention as decode_kernel, paged_decoding as pool
from stepladder.engines.paged.kv_cache import PAGE_SIZE, PagedKVCache, kv_bytes_per_token
from stepladder.engines.paged.paged_attention import tiles_of
from stepladder.engines.paged.triton_launch import INTERPRETED
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.engines.transformers.packed_attention import use_packed_attention
from tests.support.paged_requests import TEXTS, replies, requests, same


class Replayed:
    """In place of a CUDA graph: what it would do, done by the pass itself."""

    def __init__(self, shape: tuple[int, int], run: Any, logits_BV: torch.Tensor) -> None:
        self.shape, self.run, self.logits_BV, self.times = shape, run, logits_BV, 0

    def replay(self) -> None:
        found_BV = self.run()
        self.logits_BV[: len(found_BV)] = found_BV
        self.times += 1


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Replayed]:
    """Passes are recorded on a CPU too, and these are they."""
    made: list[Replayed] = []

    def record(self: Any, model: Any, logits_BV: torch.Tensor, _: Any) -> None:
        self.graph = Replayed((self.rows, self.columns), lambda: self.run(model), logits_BV)
        made.append(self.graph)

    class Recording(pool.GraphRunner):
        def _clear(self) -> None:
            super()._clear()
            self.capture_enabled = True

    monkeypatch.setattr(passes._DecodePass, "capture", record)
    monkeypatch.setattr("stepladder.engines.paged.paged_decoding.GraphRunner", Recording)
    return made


def engine_with(pools: bool, *, tokens: int = 40_000, prefix_bytes: int | None = None) -> TransformersEngine:
    """On a CPU; with pools, of pages for so many tokens."""
    engine = TransformersEngine("tiny", device="cpu", prefix_bytes=prefix_bytes)
    if pools:
        a_token = kv_bytes_per_token(engine.config, engine.dtype)
        engine.prefix_cache = PagedKVCache(engine.device, a_token, tokens * a_token, prefix_bytes)
    return engine


def joined(engine: TransformersEngine, asked: list[Generate]) -> dict[int, Generation]:
    """The requests, of which a few join whenever others have ended."""
    session = engine.open_session()
    assert session is not None
    waiting, found = dict(enumerate(asked)), dict[int, Generation]()
    while len(found) < len(asked):
        some = {number: waiting.pop(number) for number in list(waiting)[:2]}
        if some:
            session.add(some)
        found |= session.step()  # type: ignore[arg-type]
    return found


def test_a_pool_writes_what_is_written_without_one(recorded: list[Replayed]) -> None:
    ours, theirs = (replies(engine_with(pools), requests()) for pools in (True, False))
    assert all(same(a, b) for a, b in zip(ours, theirs))
    assert {each.finish for each in ours} >= {Finish.LENGTH}
    assert sum(each.times for each in recorded) > len(recorded) > 1  # most passes are replayed, each of several shapes


@pytest.mark.parametrize("prefix_bytes", [None, 0])
def test_rows_join_and_leave_a_pool_one_by_one(recorded: list[Replayed], prefix_bytes: int | None) -> None:
    asked = requests(TEXTS * 3)
    ours = joined(engine_with(True, prefix_bytes=prefix_bytes), asked)
    theirs = replies(engine_with(False), asked)
    assert all(same(ours[number], each) for number, each in enumerate(theirs))


def test_rows_with_a_grammar_join_and_leave_a_pool_beside_others(recorded: list[Replayed]) -> None:
    grammar = Grammar((("<a>", Text(), "</a>"), ("<b>", Text(), "</b>")))
    asked = [replace(each, grammar=grammar if number % 3 else None) for number, each in enumerate(requests(TEXTS * 2))]
    ours = joined(engine_with(True), asked)
    assert all(same(ours[number], each) for number, each in enumerate(replies(engine_with(False), asked)))
    assert all(ours[number].text[0] == "<" for number, each in enumerate(asked) if each.grammar)


def test_rows_get_more_pages_as_they_write(recorded: list[Replayed], monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than there was room for, and more pages than their list had."""
    monkeypatch.setattr(passes, "_INITIAL_ROWS", 2)
    monkeypatch.setattr(passes, "_INITIAL_PAGES", 3)
    asked = [
        Generate((Segment(Author.PROMPT, "abc " * length),), sampling=Sampling(1.0, 1.0, 90), seed=length)
        for length in (2, 30, 3, 31, 5, 32, 6)
    ]
    ours = joined(engine_with(True), asked)
    assert all(same(ours[number], each) for number, each in enumerate(replies(engine_with(False), asked)))


def test_a_context_is_read_in_passes_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where rows share what others read in an earlier pass, in the same one, or over several."""
    monkeypatch.setattr(pool, "PREFILL_TOKENS", {"cpu": 50, "cuda": 50})
    monkeypatch.setattr(pool, "_MAX_COLUMNS", 400)
    same_beginning = "who founded the harbour of the grey island? " * 4
    texts = [*TEXTS, *TEXTS[:3], same_beginning, same_beginning + "And when?", same_beginning + "And why?"]
    asked = requests(texts)
    ours, theirs = (replies(engine_with(pools), asked) for pools in (True, False))
    assert all(same(a, b) for a, b in zip(ours, theirs))


def test_what_begins_alike_is_read_once_and_lies_in_the_same_pages() -> None:
    engine = engine_with(True)
    read: list[int] = []
    engine.model.register_forward_pre_hook(
        lambda _module, _args, options: read.append(options["input_ids"].shape[1]), with_kwargs=True
    )
    (one,) = requests(["who founded the harbour of the grey island? " * 5])
    length = len(engine.prepare({0: one})[0][0].prompt_tokens)
    decoding = engine._new_decoding()
    asked = {seed: replace(one, seed=seed, sampling=Sampling(1.0, 1.0, 5)) for seed in range(8)}
    with use_packed_attention(engine.model):
        decoding.add(engine.prepare(asked)[0])
        first, *others = decoding.pages  # type: ignore[union-attr]
        full = (length - 1) // PAGE_SIZE
        assert sum(read) == length + 7 * (length - full * PAGE_SIZE)
        assert all(pages[:full] == first[:full] for pages in others)
        assert len({page for pages in others for page in pages[full:]}) == sum(len(pages) - full for pages in others)
        while decoding.rows:
            decoding.step()
    assert not any(engine.prefix_cache._ref_counts)  # type: ignore[union-attr]


def test_pages_of_what_is_cut_off_are_free_again() -> None:
    engine = engine_with(True, prefix_bytes=0)
    session = engine.open_session()
    assert session is not None
    session.add(dict(enumerate(requests())))
    session.step()
    store = engine.prefix_cache
    assert isinstance(store, PagedKVCache)
    assert any(store._ref_counts)
    del session
    gc.collect()
    assert not any(store._ref_counts)
    assert len(store._free) == store.num_pages - 1  # all but the one that nobody reads


def test_rows_wait_until_there_are_pages_for_them() -> None:
    asked = [
        Generate((Segment(Author.PROMPT, f"{letter}bc " * 40),), sampling=Sampling(1.0, 1.0, 30), seed=number)
        for number, letter in enumerate("pqrstuvwxyz")
    ]
    theirs = replies(engine_with(False), asked)
    engine = engine_with(True, tokens=700)  # for three of them
    assert all(same(a, b) for a, b in zip(replies(engine, asked), theirs))
    ours = joined(engine, asked)
    assert all(same(ours[number], each) for number, each in enumerate(theirs))


@pytest.mark.parametrize("tokens", [1_500, 20_000])
def test_transcripts_that_go_on_and_branch_are_written_as_ever(tokens: int) -> None:
    """Steps of several transcripts, each read on from where others ended, with few pages and with many."""

    def transcript(number: int) -> Algorithm[list[Generation]]:
        found: list[Generation] = []
        context: tuple[Segment, ...] = (Segment(Author.PROMPT, TEXTS[number % 4]),)
        for step in range(4):
            sampling = Sampling(1.0, 1.0, 3 + 7 * ((number + step) % 5))
            asked = [Generate(context, stop=("e ",), sampling=sampling, seed=10 * number + way) for way in range(3)]
            found += yield asked
            context = (*found[-1 - number % 3].context, found[-1 - number % 3].written)
            context += (Segment(Author.ENVIRONMENT, f" they say {TEXTS[(number + step) % 9]} "),)
        return found

    def played(engine: TransformersEngine) -> list[Generation]:
        engine.max_batch = 7
        outcomes = Driver(engine).run([lambda number=number: transcript(number) for number in range(8)])
        assert all(outcome.failure is None for outcome in outcomes), outcomes
        return [each for outcome in outcomes for each in outcome.value or ()]

    engine = engine_with(True, tokens=tokens)
    ours, theirs = played(engine), played(engine_with(False))
    assert len(ours) == 96
    assert all(same(a, b) for a, b in zip(ours, theirs))
    assert engine.max_batch == 7, "nobody ran out of pages"
    assert not any(engine.prefix_cache._ref_counts)  # type: ignore[union-attr]


@pytest.mark.parametrize("limit", [30, 64, 100, 200, 256])
def test_rows_that_may_write_much_wait_as_well(limit: int) -> None:
    engine = engine_with(True, tokens=1_600)
    engine.max_batch = 16
    asked = [
        Generate((Segment(Author.PROMPT, f"{letter}bc"),), sampling=Sampling(1.0, 1.0, limit), seed=number)
        for number, letter in enumerate("abcdefghijklmnop")
    ]
    outcomes = Driver(engine).run([lambda request=request: say(request) for request in asked])
    assert all(outcome.failure is None for outcome in outcomes)
    assert engine.max_batch == 16, "nobody ran out of pages"


def say(request: Generate) -> Algorithm[Generation]:
    return (yield request)


def test_a_context_that_can_never_fit_fails_alone() -> None:
    engine = engine_with(True, tokens=112)
    long, short = requests(["abc " * 40, "abc"])
    outcomes = Driver(engine).run([lambda request=request: say(request) for request in (long, short)])
    assert outcomes[0].failure is not None
    assert "a context of 160 tokens does not fit: the KV cache has room for 96" in outcomes[0].failure.reason
    assert outcomes[1].failure is None
    assert engine.max_batch == 64


def test_a_row_that_needs_more_pages_than_there_are_says_so() -> None:
    engine = engine_with(True, tokens=112)
    session = engine.open_session()
    assert session is not None
    session.add({0: Generate((Segment(Author.PROMPT, "abc " * 23),), sampling=Sampling(1.0, 1.0, 90))})
    with pytest.raises(EngineOutOfMemory, match="10 pages requested, 6 of 7 are free"):
        session.step()  # until it has ended, which it cannot
    assert not any(engine.prefix_cache._ref_counts)  # type: ignore[union-attr]


def test_what_is_no_number_is_not_left_to_others() -> None:
    engine = engine_with(True, tokens=1_000)
    embeddings = engine.model.get_input_embeddings()
    asked, bad = requests(TEXTS[:4]), requests(["zzz" * 9])
    theirs = replies(engine_with(False), asked)
    token = engine.prepare({0: bad[0]})[0][0].prompt_tokens[-1]
    before = embeddings.weight[token].detach().clone()
    for _ in range(3):
        with torch.no_grad():
            embeddings.weight[token] = float("nan")
        with pytest.raises(BackendError, match="logits are NaN"):
            engine.generate(bad)
        with torch.no_grad():
            embeddings.weight[token] = before
        assert all(same(a, b) for a, b in zip(replies(engine, asked), theirs))


def work_on(session: Session, more: list[Generate]) -> None:
    """Until something fails; others join on the way."""
    while True:
        session.step()
        session.add(dict(enumerate(more, start=100)))


def test_whatever_fails_no_page_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a device may raise: while rows join, get more pages, or leave."""
    for name, after in (("set_rows", 1), ("add_pages", 0), ("compact", 0), ("decode", 3)):
        for prefix_bytes in (None, 0):
            engine = engine_with(True, prefix_bytes=prefix_bytes)
            with monkeypatch.context() as patch:
                real, calls = getattr(pool.GraphRunner, name), list[int]()

                def fail(*given: Any, real: Any = real, calls: Any = calls, after: int = after) -> Any:
                    calls.append(1)
                    if len(calls) > after:
                        raise KeyboardInterrupt
                    return real(*given)

                patch.setattr(pool.GraphRunner, name, fail)
                session = engine.open_session()
                assert session is not None
                asked = [replace(each, sampling=Sampling(1.0, 1.0, 70)) for each in requests(TEXTS * 2)]
                asked[1] = replace(asked[1], sampling=Sampling(1.0, 1.0, 2))
                session.add(dict(enumerate(asked[:9])))
                with pytest.raises(KeyboardInterrupt):
                    work_on(session, asked[9:])
                assert calls, name
            store = engine.prefix_cache
            assert isinstance(store, PagedKVCache)
            assert not any(store._ref_counts), name
            assert sorted([*store._free, *store._evictable]) == list(range(1, store.num_pages)), name
            short = requests()
            assert all(same(a, b) for a, b in zip(replies(engine, short), replies(engine_with(False), short)))


def test_a_session_goes_on_after_rows_that_could_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, asked = engine_with(True), requests([f"{TEXTS[4]} {number}" for number in range(9)])  # pages are shared
    decoding = engine._new_decoding()
    rows = engine.prepare(dict(enumerate(asked)))[0]
    with use_packed_attention(engine.model):
        decoding.add(rows[:3])
        with monkeypatch.context() as patch:
            patch.setattr(pool, "forward_packed", lambda *_: (_ for _ in ()).throw(RuntimeError("no")))
            with pytest.raises(RuntimeError):
                decoding.add(rows[3:])
        while decoding.rows:
            decoding.step()
    assert not any(engine.prefix_cache._ref_counts)  # type: ignore[union-attr]
    theirs = replies(engine_with(False), asked[:3])
    assert [row.tokens for row in rows[:3]] == [list(each.written.tokens) for each in theirs]


def test_what_was_read_with_other_weights_is_not_taught() -> None:
    engine = engine_with(True)
    first, second = engine.open_session(), engine.open_session()
    assert first is not None
    assert second is not None
    (asked,) = requests(["who founded the harbour of the grey island? " * 3])
    long = replace(asked, sampling=Sampling(0.0, 1.0, 40))
    first.add({0: long, 1: replace(long, sampling=Sampling(0.0, 1.0, 2))})
    first.step()
    with torch.no_grad():
        for weights in engine.model.parameters():
            weights.mul_(1.5)
    second.add({0: asked})
    second.step()
    first.step()  # the long one ends, and what it has read is of the weights before
    other = TransformersEngine(engine.model, engine.tokenizer)
    follow = replace(long, context=(*long.context, Segment(Author.ENVIRONMENT, " And then?")))
    assert all(same(a, b) for a, b in zip(replies(engine, [follow, long]), replies(other, [follow, long])))


def test_another_precision_while_rows_write_is_noticed() -> None:
    engine = engine_with(True)
    first, second = engine.open_session(), engine.open_session()
    assert first is not None
    assert second is not None
    (asked,) = requests(["abc"])
    first.add({0: replace(asked, sampling=Sampling(0.0, 1.0, 9)), 1: replace(asked, sampling=Sampling(0.0, 1.0, 1))})
    first.step()
    second.add({0: asked})
    with torch.autocast("cpu", torch.bfloat16):
        second.step()
    with pytest.raises(BackendDown, match="precision"):
        first.step()


def test_rows_that_nobody_asked_for_are_all_alike(recorded: list[Replayed]) -> None:
    """Who of them is the last to write to the page that nobody reads is not known: it must not matter."""
    engine = engine_with(True)
    asked = [
        Generate((Segment(Author.PROMPT, text),), sampling=Sampling(1.0, 1.0, 3 if number % 3 else 9), seed=number)
        for number, text in enumerate(TEXTS * 3)
    ]
    replies(engine, asked)
    (held,) = engine._idle_runners
    assert held.tokens_B[1:].eq(0).all()
    assert held.positions_B.eq(0).all()
    assert held.table_BP[:, 0].eq(0).all()


def test_more_pages_for_a_row_do_not_cost_what_was_recorded() -> None:
    held = pool.GraphRunner(engine_with(True).prefix_cache)  # type: ignore[arg-type]
    for rows in (100, 116):
        held.set_rows(0, [[1]] * rows, [3] * rows)
    size = len(held.positions_B)
    assert passes.graph_batch_size(size) == size
    held.add_pages([0], [1], [2])
    assert len(held.positions_B) == size


def test_contexts_that_were_not_read_to_their_end_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, asked = engine_with(True), requests(TEXTS[:4])
    forward = engine.model.forward
    monkeypatch.setattr(engine.model, "forward", lambda **_: (_ for _ in ()).throw(RuntimeError("cut off")))
    with pytest.raises(RuntimeError, match="cut off"):
        engine.generate(asked)
    monkeypatch.setattr(engine.model, "forward", forward)
    gc.collect()
    assert all(same(a, b) for a, b in zip(replies(engine, asked), replies(engine_with(False), asked)))


def by_torch(
    query_MHD: torch.Tensor,
    keys_NKTD: torch.Tensor,
    values_NKTD: torch.Tensor,
    table_RP: torch.Tensor,
    rows_M: torch.Tensor,
    positions_M: torch.Tensor,
    scale: float | None,
    _tiles_3X: torch.Tensor | None = None,
) -> torch.Tensor:
    """In place of the kernel, which looks at each row as far as it goes."""
    tokens, heads, size = query_MHD.shape
    keys_MKTD, values_MKTD = (each[table_RP[rows_M]].transpose(1, 2).flatten(2, 3) for each in (keys_NKTD, values_NKTD))
    query = query_MHD.reshape(tokens, keys_MKTD.shape[1], -1, size)
    seen = torch.arange(keys_MKTD.shape[2]) <= positions_M[:, None]
    found = scaled_dot_product_attention(query, keys_MKTD, values_MKTD, seen[:, None, None], scale=scale)
    return found.reshape(tokens, heads, -1)


def test_with_attention_of_any_length_a_prefill_is_one_batch(
    recorded: list[Replayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the second pass on, when the cache knows its layers; before, rows of similar length come together."""
    asked, sizes = requests(TEXTS * 3), list[list[int]]()

    def noting(sizes_R: list[int], groups: int, device: torch.device) -> torch.Tensor:
        sizes.append(sizes_R)
        return tiles_of(sizes_R, groups, device)

    theirs = replies(engine_with(False), asked)
    monkeypatch.setattr("stepladder.engines.paged.kv_cache.paged_attention", by_torch)
    monkeypatch.setattr("stepladder.engines.paged.kv_cache.is_supported", lambda *_: True)
    monkeypatch.setattr("stepladder.engines.paged.kv_cache.tiles_of", noting)
    ours = joined(engine_with(True), asked)
    assert all(same(ours[number], each) for number, each in enumerate(theirs))
    assert any(max(each) > 2 * max(min(each), 64) for each in sizes), "rows of different lengths"


def test_with_attention_by_length_there_is_one_pass_for_each_number_of_rows(
    recorded: list[Replayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [
        Generate((Segment(Author.PROMPT, "abc " * 20),), sampling=Sampling(1.0, 1.0, 400), seed=seed)
        for seed in range(2)
    ]
    theirs = replies(engine_with(True), asked)
    assert {columns for _, columns in (each.shape for each in recorded)} >= {128, 256, 384, 512}
    recorded.clear()
    monkeypatch.setattr("stepladder.engines.paged.kv_cache.paged_attention", by_torch)
    assert all(same(a, b) for a, b in zip(replies(engine_with(True), asked), theirs))
    numbers = [each.shape[0] for each in recorded]
    assert len(numbers) == len(set(numbers))


@pytest.mark.skipif(not INTERPRETED, reason="Triton does not run on the CPU (TRITON_INTERPRET=1)")
def test_with_the_kernel_acted_out_the_words_are_the_same(recorded: list[Replayed]) -> None:
    asked = requests(limit=7)
    assert all(same(a, b) for a, b in zip(replies(engine_with(True), asked), replies(engine_with(False), asked)))
    assert decode_kernel.LAUNCHER.checked
    assert not decode_kernel.LAUNCHER.broken


def test_passes_over_longer_lists_are_recorded_in_memory_of_their_own(
    recorded: list[Replayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch records nothing more in memory whose recordings are all gone."""
    used: list[tuple[int, object]] = []
    record = passes._DecodePass.capture

    def noting(self: Any, model: Any, logits_BV: torch.Tensor, memory: object) -> None:
        used.append((self.table_BP.shape[1], memory))
        record(self, model, logits_BV, memory)

    monkeypatch.setattr(passes._DecodePass, "capture", noting)
    monkeypatch.setattr(passes, "_GraphMemory", lambda _: object())
    monkeypatch.setattr(passes, "_INITIAL_PAGES", 8)
    engine = engine_with(True)
    engine._idle_runners.append(held := pool.GraphRunner(engine.prefix_cache))  # type: ignore[arg-type]
    held._can_capture = True
    for length in (20, 300):
        replies(engine, [Generate((Segment(Author.PROMPT, "abc " * length),), sampling=Sampling(1.0, 1.0, 9))])
    assert len({width for width, _ in used}) == 2
    assert len({id(memory) for _, memory in used}) == 2


def test_a_model_that_cannot_be_recorded_is_told(
    recorded: list[Replayed], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def record(*_: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(passes._DecodePass, "capture", record)
    ours, theirs = (replies(engine_with(pools), requests()) for pools in (True, False))
    assert all(same(a, b) for a, b in zip(ours, theirs))
    assert [each.message for each in caplog.records] == [
        "CUDA graphs are disabled, generation is several times slower: "
        "operation not permitted when stream is capturing",
    ]


def test_memory_that_runs_out_while_recording_is_tried_again(
    recorded: list[Replayed], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Elsewhere: where a first recording has failed, torch records nothing more."""
    record, used = passes._DecodePass.capture, list[object]()

    def full_at_first(self: Any, model: Any, logits_BV: torch.Tensor, memory: object) -> None:
        used.append(memory)
        if len(used) == 1:
            raise torch.OutOfMemoryError
        record(self, model, logits_BV, memory)

    monkeypatch.setattr(passes._DecodePass, "capture", full_at_first)
    monkeypatch.setattr(passes, "_GraphMemory", lambda _: object())
    engine = engine_with(True)
    engine._idle_runners.append(held := pool.GraphRunner(engine.prefix_cache))  # type: ignore[arg-type]
    held._can_capture = True
    asked = [Generate((Segment(Author.PROMPT, "abc"),), sampling=Sampling(1.0, 1.0, 9))]
    assert same(*replies(engine, asked), *replies(engine_with(False), asked))
    assert len(recorded) == 1
    assert used[0] is not used[1]
    assert not caplog.records


def test_passes_are_kept_from_call_to_call_and_new_values_of_weights_are_seen(
    recorded: list[Replayed],
) -> None:
    engine, asked = engine_with(True), requests()
    before = replies(engine, asked)
    with torch.no_grad():
        for weights in engine.model.parameters():
            weights.mul_(1.5)
    after = replies(engine, asked)
    shapes = [each.shape for each in recorded]
    assert len(set(shapes)) == len(shapes)  # nothing had to be recorded again
    other = TransformersEngine(engine.model, engine.tokenizer)
    assert all(same(a, b) for a, b in zip(after, replies(other, asked)))
    assert not all(same(a, b) for a, b in zip(after, before))


def test_passes_of_weights_at_another_place_are_recorded_anew(recorded: list[Replayed]) -> None:
    engine, asked = engine_with(True), requests()
    replies(engine, asked)
    largest = recorded[0].shape
    engine.model.lm_head.weight = torch.nn.Parameter(engine.model.lm_head.weight.detach() * 2)
    after = replies(engine, asked)
    assert [each.shape for each in recorded].count(largest) == 2
    assert all(same(a, b) for a, b in zip(after, replies(TransformersEngine(engine.model, engine.tokenizer), asked)))


def test_a_model_that_cannot_be_recorded_writes_in_the_ordinary_way(
    recorded: list[Replayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def refuse(self: Any, model: Any, logits_BV: torch.Tensor, memory: Any) -> None:
        tried.append(self.rows)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(passes._DecodePass, "capture", refuse)
    ours, theirs = (replies(engine_with(pools), requests()) for pools in (True, False))
    assert all(same(a, b) for a, b in zip(ours, theirs))
    assert len(tried) == 1
    assert not recorded


def test_what_rows_have_read_is_known_to_those_that_follow() -> None:
    engine = engine_with(True)
    engine_reads: list[int] = []
    engine.model.register_forward_pre_hook(
        lambda _module, _args, options: engine_reads.append(options["input_ids"].shape[1]), with_kwargs=True
    )
    first = replies(engine, requests())
    engine_reads.clear()
    follow = [
        Generate((*each.context, each.written, Segment(Author.ENVIRONMENT, " next ")), sampling=Sampling(0.0, 1.0, 1))
        for each in first
    ]
    replies(engine, follow)
    assert max(engine_reads) < sum(len(each.context[0].tokens) for each in first) / 2


def test_other_precision_other_logits(recorded: list[Replayed]) -> None:
    engine = engine_with(True)
    with torch.autocast("cpu", torch.bfloat16):
        replies(engine, requests())
    ours, theirs = replies(engine, requests()), replies(engine_with(False), requests())
    assert all(same(a, b) for a, b in zip(ours, theirs))


def test_a_model_that_is_changed_while_it_writes_is_noticed(recorded: list[Replayed]) -> None:
    engine = engine_with(True, prefix_bytes=0)
    session = engine.open_session()
    assert session is not None
    first, second = requests(limit=9)[8], requests()[0]
    short = replace(first, sampling=Sampling(max_tokens=1))
    session.add({0: first, "short": short})
    assert list(session.step()) == ["short"]
    engine.model.lm_head.weight = torch.nn.Parameter(engine.model.lm_head.weight.detach() * 2)
    session.add({1: second})
    with pytest.raises(BackendDown, match="changed during generation"):
        session.step()


def test_new_rows_wait_until_it_is_worth_it() -> None:
    engine = engine_with(True)
    session = engine.open_session()
    assert session is not None
    groups: list[int] = []
    add = session.decoding.add  # type: ignore[attr-defined]
    session.decoding.add = lambda rows: (groups.append(len(rows)), add(rows))  # type: ignore[attr-defined]
    asked = replace(requests()[0], sampling=Sampling(max_tokens=3))
    session.add({place: replace(asked, sampling=Sampling(max_tokens=place + 1)) for place in range(20)})
    done = session.step()
    for late in range(100, 104):  # one for each that has ended; there are 19 to 16 left
        session.add({late: asked})
        done |= session.step()
    assert groups == [20, 3]
    while len(done) < 24:
        done |= session.step()
    assert groups == [20, 3, 1]
    assert set(done) == {*range(20), *range(100, 104)}


def test_rest_frees_what_was_read_and_keeps_what_was_recorded(recorded: list[Replayed]) -> None:
    engine = engine_with(True)
    replies(engine, requests())
    engine.on_idle()
    assert not engine.prefix_cache.bytes
    replies(engine, requests())
    shapes = [each.shape for each in recorded]
    assert len(set(shapes)) == len(shapes)


def test_memory_that_is_asked_back_is_given_back() -> None:
    engine = engine_with(True)
    replies(engine, requests())
    assert engine._idle_runners
    assert engine.prefix_cache.bytes
    engine.reset_prefix_cache()
    assert not engine._idle_runners
    assert not engine.prefix_cache.bytes
