"""What was read before is not read again, and nothing but speed depends on it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from peft import LoraConfig, get_peft_model
from peft.helpers import rescale_adapter_scale
from transformers import GPT2Config, GPT2LMHeadModel, Qwen3Config, Qwen3ForCausalLM

from stepladder.core.requests import Generate, Generation, Sampling
from stepladder.core.trace import Author, Segment
from stepladder.engines.base import check_engine
from stepladder.engines.transformers import decoding, packed_attention as blocks
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.engines.transformers.packed_attention import DenseKVCache
from stepladder.engines.transformers.prefix_cache import STRIDE, PrefixCache, weights_fingerprint
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from tests.support.prompts import FOUND, QUESTIONS, assert_alike, exact, generate, sliding, tokens_read


def play(engine: TransformersEngine, steps: int = 4, **settings: Any) -> list[Generation]:
    """Transcripts of several steps, with something to read between them; every reply of every step."""
    contexts: list[tuple[Segment, ...]] = [(Segment(Author.PROMPT, question),) for question in QUESTIONS]
    replies: list[Generation] = []
    for step in range(steps):
        now = generate(engine, *[Generate(context, seed=step, **settings) for context in contexts])
        contexts = [
            (*reply.context, reply.written, Segment(Author.ENVIRONMENT, FOUND[(step + number) % 3]))
            for number, reply in enumerate(now)
        ]
        replies += now
    return replies


def qwen3() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen3Config(vocab_size=257, head_dim=8, num_key_value_heads=2, initializer_range=0.3, **sizes)
    return Qwen3ForCausalLM(config).eval()


def gpt2() -> Any:
    """Learnt absolute positions: wrong position ids, which rotary models forgive, show here."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=257, n_positions=512, n_embd=32, n_layer=2, n_head=2, initializer_range=0.4)
    return GPT2LMHeadModel(config).eval()


# --- the same results --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [tiny_model, qwen3, gpt2])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_transcripts_are_the_same_with_and_without_reuse(make: Any, temperature: float) -> None:
    sampling = Sampling(temperature, max_tokens=20)
    with_reuse = TransformersEngine(make(), tiny_tokenizer())
    without = TransformersEngine(make(), tiny_tokenizer(), prefix_bytes=0)
    assert_alike(play(with_reuse, sampling=sampling), play(without, sampling=sampling))
    assert len(with_reuse.prefix_cache) > 0
    assert len(without.prefix_cache) == 0


#: With room for a few blocks.
ENGINES = {name: exact(name, room) for name, room in (("tiny", 4_000_000), ("nano", 32_000_000))}


def one_pass(engine: TransformersEngine, reply: Generation) -> list[float]:
    """Log-probs of what was written by a plain pass over the whole text."""
    read, written = [token for each in reply.context for token in each.tokens], list(reply.written.tokens)
    with torch.no_grad():
        logits_TV = engine.model(torch.tensor([read + written])).logits[0, len(read) - 1 : -1]
    return torch.log_softmax(logits_TV, -1)[range(len(written)), written].tolist()


@settings(max_examples=6)
@given(st.sampled_from(["tiny", "nano"]), st.randoms(use_true_random=False))
def test_whatever_was_read_before_a_reply_is_that_of_a_plain_pass(name: str, rng: Random) -> None:
    """Random steps on from random earlier ones, in batches of any size and order, while older ones are dropped."""
    engine = ENGINES[name]
    alone = TransformersEngine(engine.model, engine.tokenizer, prefix_bytes=0)
    states: list[tuple[Segment, ...]] = [(Segment(Author.PROMPT, text),) for text in QUESTIONS]
    for _ in range(3):
        requests = [
            Generate(
                rng.choice(states),
                stop=rng.choice([(), ("e",), ("</subquery>", "th")]),
                sampling=Sampling(rng.choice([0.0, 1.0]), rng.choice([1.0, 0.9]), rng.choice([1, 2, 20])),
                seed=rng.randrange(3),
            )
            for _ in range(rng.randint(1, 7))
        ]
        engine.max_batch = rng.choice([2, 64])
        replies = generate(engine, *requests)
        assert 0 < engine.prefix_cache.bytes <= engine.prefix_cache.capacity
        assert_alike(replies, [generate(alone, request)[0] for request in requests])
        for reply in replies:
            assert reply.written.logprobs == pytest.approx(one_pass(engine, reply), abs=1e-4)
            states.append((*reply.context, reply.written, Segment(Author.ENVIRONMENT, rng.choice(FOUND))))


def test_only_what_is_new_is_read() -> None:
    engine = TransformersEngine("tiny", device="cpu")
    with tokens_read(engine) as sizes:
        (first,) = generate(engine, Generate((Segment(Author.PROMPT, "x" * 50),), sampling=Sampling(max_tokens=5)))
        assert sizes == [50, 1, 1, 1, 1]
        sizes.clear()
        more = (*first.context, first.written, Segment(Author.ENVIRONMENT, "y" * 9))
        generate(engine, Generate(more, sampling=Sampling(max_tokens=2)))
    assert sizes == [1 + 9, 1], "the last token that was written had not been read yet"


def test_equal_contexts_are_read_once() -> None:
    """As for several samples of one question. Each goes its own way from there."""
    engine = TransformersEngine("tiny", device="cpu")
    start = (Segment(Author.PROMPT, "Where is the tower of Velm?"),)
    requests = [Generate(start, sampling=Sampling(1.0, max_tokens=8), seed=seed) for seed in range(4)]
    other = Generate((Segment(Author.PROMPT, "Who?"),), sampling=Sampling(max_tokens=8))
    with tokens_read(engine) as sizes:
        together = generate(engine, *requests[:3], other, requests[3])
    assert sizes[0] == 27 + 4
    alone = TransformersEngine("tiny", device="cpu", prefix_bytes=0)
    assert_alike(together, [generate(alone, each)[0] for each in (*requests[:3], other, requests[3])])


def test_siblings_share_what_their_parent_read() -> None:
    engine = TransformersEngine("tiny", device="cpu")
    (parent,) = generate(engine, Generate((Segment(Author.PROMPT, "p" * 40),), sampling=Sampling(max_tokens=4)))
    children = [(*parent.context, Segment(Author.ENVIRONMENT, text)) for text in ("abc", "abd", "xyz")]
    with tokens_read(engine) as sizes:
        generate(engine, *[Generate(child, sampling=Sampling(max_tokens=1)) for child in children])
    assert sizes == [3 * 3]


def test_replies_longer_than_was_reserved_for() -> None:
    engine = TransformersEngine("tiny", device="cpu")
    engine.end_tokens = frozenset()
    (reply,) = generate(engine, Generate((Segment(Author.PROMPT, "Who?"),), sampling=Sampling(max_tokens=200)))
    ids = engine.tokenizer("Who?", return_tensors="pt")["input_ids"]
    theirs = engine.model.generate(ids, max_new_tokens=200, min_new_tokens=200, do_sample=False)[0, 4:]
    assert list(reply.written.tokens) == theirs.tolist()


def test_rows_that_end_at_different_times_in_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(decoding.GROUP_ROWS, "cpu", 4)
    engine = TransformersEngine("tiny", device="cpu")
    lengths = [3, 17, 2, 9, 9, 30, 1, 12, 5, 22, 14]
    requests = [
        Generate((Segment(Author.PROMPT, "ab" * length),), sampling=Sampling(length % 2, max_tokens=31 - length))
        for length in lengths
    ]
    alone = TransformersEngine("tiny", device="cpu", prefix_bytes=0)
    expected = [generate(alone, request)[0] for request in requests]
    assert_alike(generate(engine, *requests), expected)
    # Rows changed places while they were written; what was kept of each is still its own.
    further = [
        Generate((*reply.context, reply.written, Segment(Author.ENVIRONMENT, "So?")), sampling=Sampling(max_tokens=6))
        for reply in expected
    ]
    assert_alike(generate(engine, *further), [generate(alone, request)[0] for request in further])


def test_contexts_too_long_for_one_pass_are_read_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [
        Generate((Segment(Author.PROMPT, "abc" * length),), sampling=Sampling(max_tokens=4)) for length in (9, 2, 3, 40)
    ]
    at_once = generate(TransformersEngine("tiny", device="cpu"), *requests)
    monkeypatch.setitem(decoding.PREFILL_TOKENS, "cpu", 20)
    engine = TransformersEngine("tiny", device="cpu")
    with tokens_read(engine) as sizes:
        assert_alike(generate(engine, *requests), at_once)
    assert sizes[:-3] == [6 + 9, 20, 7, 20, 20, 20, 20, 20, 20]


# --- changed weights ---------------------------------------------------------------------------------------


def one_step(model: Any) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model(input_ids=torch.arange(20)[None], labels=torch.arange(20)[None]).loss.backward()
    optimizer.step()


def load_others(model: Any) -> None:
    model.load_state_dict(tiny_model(seed=5).state_dict())


def behind_the_counters(model: Any) -> None:
    for weights in model.parameters():
        weights.data.mul_(1.5)


def flip_signs(model: Any) -> None:
    """Leaves every norm as it was."""
    model.model.layers[0].mlp.down_proj.weight.data.neg_()


@pytest.mark.parametrize("change", [one_step, load_others, behind_the_counters, flip_signs])
def test_weights_changed_in_place_are_noticed(change: Any) -> None:
    model = tiny_model()
    engine = TransformersEngine(model, tiny_tokenizer())
    request = Generate((Segment(Author.PROMPT, QUESTIONS[1]),), sampling=Sampling(max_tokens=12))
    (before,) = generate(engine, request)
    change(model)
    (after,) = generate(engine, request)
    (fresh,) = generate(TransformersEngine(model, tiny_tokenizer(), prefix_bytes=0), request)
    assert_alike([after], [fresh])
    assert before.written.logprobs != pytest.approx(after.written.logprobs, abs=1e-4)


def test_an_adapter_that_is_switched_off_is_noticed() -> None:
    model = get_peft_model(tiny_model(), LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    engine = TransformersEngine(model, tiny_tokenizer())
    request = Generate((Segment(Author.PROMPT, QUESTIONS[1]),), sampling=Sampling(max_tokens=12))
    (adapted,) = generate(engine, request)
    with model.disable_adapter():
        (plain,) = generate(engine, request)
    assert_alike([plain], generate(TransformersEngine("tiny", device="cpu"), request))
    assert adapted.written.logprobs != pytest.approx(plain.written.logprobs, abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_smallest_change_of_one_weight_is_noticed(dtype: torch.dtype) -> None:
    model = tiny_model().to(dtype)
    before = weights_fingerprint(model)
    assert weights_fingerprint(model) == before
    bias = model.model.norm.weight.data
    bias[3] = bias[3] + torch.finfo(dtype).eps
    assert weights_fingerprint(model) != before


def test_a_scaled_adapter_is_noticed() -> None:
    model = get_peft_model(tiny_model(), LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    before = weights_fingerprint(model)
    with rescale_adapter_scale(model, 0.5):
        assert weights_fingerprint(model) != before
    assert weights_fingerprint(model) == before


def test_a_change_of_precision_is_noticed() -> None:
    engine = TransformersEngine("tiny", device="cpu")
    request = Generate((Segment(Author.PROMPT, QUESTIONS[1]),), sampling=Sampling(max_tokens=4))
    with torch.autocast("cpu", torch.bfloat16):
        generate(engine, request)
    (plain,) = generate(engine, request)
    assert_alike([plain], generate(TransformersEngine("tiny", device="cpu"), request))


# --- threads -----------------------------------------------------------------------------------------------


def test_engines_of_one_model_in_several_threads_take_turns() -> None:
    model = tiny_model().train()
    alone = play(TransformersEngine(tiny_model(), tiny_tokenizer()), sampling=Sampling(1.0, max_tokens=8))
    engines = [TransformersEngine(model, tiny_tokenizer()) for _ in range(2)]
    with ThreadPoolExecutor(4) as pool:
        played = list(pool.map(lambda n: play(engines[n % 2], sampling=Sampling(1.0, max_tokens=8)), range(4)))
    for replies in played:
        assert_alike(replies, alone)
    assert model.config._attn_implementation == "sdpa"
    assert all(module.training for module in model.modules())


# --- memory ------------------------------------------------------------------------------------------------


def test_memory_stays_within_its_bound_and_the_oldest_goes_first() -> None:
    engine = TransformersEngine("tiny", device="cpu", prefix_bytes=200_000)

    def read(letter: str) -> int:
        request = Generate((Segment(Author.PROMPT, letter * 64),), sampling=Sampling(max_tokens=1))
        with tokens_read(engine) as sizes:
            generate(engine, request)
        assert engine.prefix_cache.bytes <= 200_000
        return sizes[0]

    assert read("a") == 64
    assert read("a") == 1
    for letter in "bcdefgh":
        read(letter)
    assert read("h") == 1
    assert read("a") == 64, "what was not used for longest is gone"
    engine.reset_prefix_cache()
    assert (read("h"), len(engine.prefix_cache)) == (64, 1)
    engine.close()
    assert engine.prefix_cache.bytes == 0


NO_MEMORY = (torch.OutOfMemoryError, partial(RuntimeError, "DefaultCPUAllocator: can't allocate memory"), MemoryError)


@pytest.mark.parametrize("error", NO_MEMORY)
def test_a_batch_that_does_not_fit_makes_room_and_raises(error: Any) -> None:
    engine = TransformersEngine("tiny", device="cpu")
    forward, full = engine.model.forward, False

    def limited(*args: Any, **inputs: Any) -> Any:
        if full:
            raise error()
        return forward(*args, **inputs)

    engine.model.forward = limited
    generate(engine, Generate((Segment(Author.PROMPT, QUESTIONS[1]),), sampling=Sampling(max_tokens=2)))
    held, full = engine.prefix_cache.bytes, True
    assert held > 0
    with pytest.raises((RuntimeError, MemoryError)):
        engine.generate([Generate((Segment(Author.PROMPT, "Who?"),))])
    assert engine.prefix_cache.bytes == 0, "the driver tries halves of the batch next"
    assert 0 < engine.prefix_cache.capacity < held, "and it does not grow to the same size again"
    assert engine.model.config._attn_implementation == "sdpa"


def block_of(sequences: list[list[int]]) -> DenseKVCache:
    block = DenseKVCache(len(sequences), 64)
    block.layer(0, torch.zeros(1, 1, 4), torch.zeros(1, 1, 4))
    return block


token_lists = st.lists(st.lists(st.integers(0, 1), max_size=50), min_size=1, max_size=4)


@settings(max_examples=60)
@given(st.lists(token_lists, max_size=4), st.lists(st.integers(0, 1), max_size=60))
def test_what_is_found_is_a_beginning_that_is_there(stored: list[list[list[int]]], tokens: list[int]) -> None:
    one = block_of([[]]).bytes
    store = PrefixCache(5 * one)
    for sequences in stored:
        store.add(block_of(sequences), dict(enumerate(sequences)))
        assert store.bytes == sum(block.bytes for block in store._caches) <= store.capacity
    found = store.find(tokens)
    shared = [sum(1 for _ in iter_common(held, tokens)) for rows in store._caches.values() for held in rows.values()]
    if found is None:
        assert max(shared, default=0) < STRIDE
    else:
        assert store._caches[found.kv_cache][found.row][: found.length] == tokens[: found.length]
        assert found.length > max(shared) - STRIDE


def iter_common(a: list[int], b: list[int]) -> Iterator[int]:
    for left, right in zip(a, b):
        if left != right:
            return
        yield left


# --- blocks ------------------------------------------------------------------------------------------------


def test_layers_may_differ_in_size_and_rows_are_copied_and_swapped_in_all_of_them() -> None:
    block = DenseKVCache(3, 20)
    states = {number: torch.ones(1, 1 + number // 2, 4) for number in range(3)}  # the last has more heads
    for number, each in states.items():
        keys, values = block.layer(number, each, each[..., :2])
        keys += 10 * number + torch.arange(3)[:, None, None, None]
        values += 100 * number + torch.arange(3)[:, None, None, None]
    assert [tuple(keys.shape) for keys, _ in block.layers.values()] == [(3, 1, 32, 4), (3, 1, 32, 4), (3, 2, 32, 4)]
    other = DenseKVCache(2, 40)
    other.copy(block, [1], [2], 16)
    block.reserve(40)
    block.swap([0], [2])
    for number, each in states.items():
        (keys, values), (theirs, _) = (some.layer(number, each, each[..., :2]) for some in (block, other))
        assert keys[:, 0, 0, 0].tolist() == [10 * number + row for row in (2, 1, 0)]
        assert values[:, 0, 31, 0].tolist() == [100 * number + row for row in (2, 1, 0)]
        assert not keys[:, :, 32:].any()
        assert theirs[1, 0, :16].unique().tolist() == [10 * number + 2]
        assert not theirs[1, 0, 16:].any()
        assert not theirs[0].any()


# --- other architectures -----------------------------------------------------------------------------------


def test_models_with_a_sliding_window_go_without_reuse() -> None:
    engine = TransformersEngine(sliding(), tiny_tokenizer())
    check_engine(engine)
    play(engine, sampling=Sampling(max_tokens=20))
    assert len(engine.prefix_cache) == 0


def test_attention_that_asks_for_more_is_left_to_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model may look plain and turn out otherwise when it calls attention."""
    monkeypatch.setattr("stepladder.engines.transformers.engine.supports_packing", lambda model: True)
    fooled = TransformersEngine(sliding(), tiny_tokenizer())
    monkeypatch.undo()
    sampling = Sampling(max_tokens=20)
    assert_alike(
        play(fooled, sampling=sampling), play(TransformersEngine(sliding(), tiny_tokenizer()), sampling=sampling)
    )
    assert fooled.model.config._attn_implementation == "sdpa"


def test_the_model_attends_as_before_outside_of_generation() -> None:
    model = tiny_model()
    ids = torch.arange(30)[None]
    before = model(ids).logits
    play(TransformersEngine(model, tiny_tokenizer()), steps=1, sampling=Sampling(max_tokens=3))
    assert model.config._attn_implementation == "sdpa" != blocks.PACKED
    assert torch.equal(model(ids).logits, before)


def test_bf16_keeps_its_results_too() -> None:
    sampling = Sampling(max_tokens=10)
    engines = [TransformersEngine("tiny", device="cpu", dtype="bf16", prefix_bytes=size) for size in (None, 0)]
    with_reuse, without = (play(engine, sampling=replace(sampling)) for engine in engines)
    for ours, theirs in zip(with_reuse[:3], without[:3]):
        assert ours.written.logprobs == pytest.approx(theirs.written.logprobs, abs=0.2)
