"""Measures what one stage of a recipe does: seconds by part, tokens, episodes, memory. Used by `stage_process.py`.

In: calls of the product's functions, which `install` wraps. Out: `Probe.plain`, which can be stored as JSON:

parts        by path, such as "train/dev/driver/generate/prefill": [calls, seconds], with what is inside
generation   by phase (main, dev, rollouts, compare): requests, tokens written and prefilled, decoding steps and rows
episodes     by phase: number, steps, searches, tokens written and read, the longest context, how they ended
training     microbatches with a backward pass: rows, tokens, tokens with padding; and `curves`, one row per update
scoring      of the reward model: batches, rows, tokens, tokens with padding
memory       the peak of the GPU or of the process, by part; peaks of torch's allocator; vLLM's share

Functions of the product are wrapped from outside; on a GPU the ends of parts are synchronized.
"""

import functools
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch

from stepladder.core.trace import Trajectory, Tree
from stepladder.pipeline import runner

#: Seconds between two looks at the memory.
INTERVAL = 0.02
#: On a CPU with one thread the processor's time: other programs do not count.
ALONE = not torch.cuda.is_available() and torch.get_num_threads() == 1
clock = time.process_time if ALONE else time.monotonic
#: Parts that give what happens inside their name.
PHASES = ("dev", "rollouts", "compare")


class Probe:
    """Collects the measurements of one stage."""

    def __init__(self) -> None:
        self.path: list[str] = []
        self.thread = threading.get_ident()
        self.parts: dict[str, list[float]] = {}
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self.requests: list[tuple[int, int]] = []
        self.notes: dict[str, Any] = {}
        self.memory: dict[str, int] = {}
        #: Requests that run in vLLM.
        self.vllm_rows = 0
        self.baseline = 0

    @property
    def phase(self) -> str:
        """What the stage does at the moment."""
        return next((each for each in PHASES if each in self.path), "main")

    def count(self, kind: str, **numbers: float) -> None:
        """Add to the counts of this phase."""
        self.counts[f"{kind}:{self.phase}"].update({name: value for name, value in numbers.items() if value})

    def most(self, kind: str, name: str, value: int) -> None:
        """Keep the largest value."""
        found = self.counts[f"{kind}:{self.phase}"]
        found[name] = max(found[name], value)

    @contextmanager
    def part(self, name: str, *, synchronize: bool = False) -> Iterator[None]:
        """Measures what happens within."""
        if threading.get_ident() != self.thread:  # beside the main thread: counted, and not part of its time
            started = clock()
            yield
            self._add(f"threads/{name}", clock() - started)
            return
        self.path.append(name)
        key, started = "/".join(self.path), clock()
        try:
            yield
        finally:
            if synchronize and torch.cuda.is_initialized():
                torch.cuda.synchronize()
            self._add(key, clock() - started)
            self.path.pop()

    def _add(self, key: str, seconds: float) -> None:
        entry = self.parts.setdefault(key, [0, 0.0])
        entry[0] += 1
        entry[1] += seconds

    def look(self) -> None:
        """Take in the memory in use."""
        if torch.cuda.is_available():
            if not torch.cuda.is_initialized():
                return
            free, total = torch.cuda.mem_get_info()
            used = total - free
        else:
            used = int(psutil.Process().memory_info().rss)
        name = "/".join(self.path[:2]) or "other"
        self.memory[name] = max(self.memory.get(name, 0), used)

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        found: dict[str, Any] = {"parts": {key: [int(n), round(s, 4)] for key, (n, s) in sorted(self.parts.items())}}
        for key, numbers in self.counts.items():
            kind, phase = key.split(":")
            found.setdefault(kind, {})[phase] = dict(numbers)
        found["memory"] = {"by_part": self.memory, "peak": max(self.memory.values(), default=0)}
        found["memory"]["process_start"] = self.baseline
        if torch.cuda.is_initialized():
            found["memory"] |= {
                "allocated": torch.cuda.max_memory_allocated(),
                "reserved": torch.cuda.max_memory_reserved(),
                "total": torch.cuda.mem_get_info()[1],
            }
        found["requests"] = self.requests[:: max(len(self.requests) // 2000, 1)]
        return found | self.notes


def wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method or a function of a module; one that does not exist is left out."""
    if (found := vars(owner).get(name)) is not None:
        if isinstance(found, classmethod | staticmethod):
            setattr(owner, name, type(found)(make(found.__func__)))
        else:
            setattr(owner, name, functools.wraps(found)(make(found)))


def timed(probe: Probe, part: str, *, synchronize: bool = False) -> Callable[[Any], Any]:
    """A wrapper that measures every call."""

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            with probe.part(part, synchronize=synchronize):
                return function(*arguments, **options)

        return run

    return make


def install(probe: Probe, *, vllm: bool) -> None:
    """Wrap the functions of the product."""
    import stepladder.engines.paged.cuda_graphs as graphs
    import stepladder.engines.paged.paged_decoding as paged
    import stepladder.engines.transformers.decoding as decoding
    import stepladder.engines.transformers.engine as transformers_engine
    import stepladder.models.loading as loading
    from stepladder.driver.session import DriverSession
    from stepladder.engines.transformers.in_process import InProcessEngine
    from stepladder.judges.prm.reward_model import ProcessRewardModel
    from stepladder.retrieval.hybrid import HybridRetriever
    from stepladder.retrieval.index.bm25 import BM25Index
    from stepladder.train.grpo import rollouts
    from stepladder.train.loop import base_trainer, policy_session, rollout_engine, training_loop

    wrap(loading, "load_pretrained", timed(probe, "load"))
    wrap(ProcessRewardModel, "load", timed(probe, "load reward model"))
    wrap(transformers_engine.TransformersEngine, "__init__", timed(probe, "engine start", synchronize=True))
    wrap(transformers_engine.TransformersEngine, "_decode_batch", timed(probe, "generate", synchronize=True))
    wrap(transformers_engine._Session, "step", timed(probe, "generate"))
    for owner in (decoding.PackedDecoding, paged.PagedDecoding):
        wrap(owner, "add", timed(probe, "prefill", synchronize=True))
        wrap(owner, "step", _counted_steps(probe))
    wrap(graphs.GraphRunner, "_capture", timed(probe, "capture", synchronize=True))
    for module in (decoding, paged):
        wrap(module, "forward_packed", _counted_tokens(probe))
    wrap(InProcessEngine, "reply_of", _counted_replies(probe))
    for retriever in (BM25Index, HybridRetriever):
        wrap(retriever, "search", timed(probe, "search"))
    wrap(DriverSession, "outcomes", _counted_outcomes(probe))
    wrap(ProcessRewardModel, "score_batch", _counted_scores(probe))
    wrap(rollouts.Rollouts, "generate", timed(probe, "rollouts", synchronize=True))
    wrap(rollout_engine, "copy_weights", timed(probe, "copy weights", synchronize=True))
    wrap(policy_session, "write_policy", timed(probe, "write policy"))
    wrap(policy_session, "load_policy", timed(probe, "load policy", synchronize=True))
    wrap(policy_session, "make_rollout_engine", timed(probe, "rollout engine", synchronize=True))
    trainer = base_trainer.BaseTrainer
    wrap(trainer, "evaluate", timed(probe, "dev", synchronize=True))
    wrap(trainer, "_save_checkpoint", timed(probe, "checkpoint"))
    wrap(trainer, "accumulate", _counted_batches(probe))
    wrap(training_loop, "run_training", timed(probe, "train", synchronize=True))
    _wrap_trainers(probe)
    wrap(runner, "score_policies", timed(probe, "compare", synchronize=True))
    if vllm:
        import stepladder.engines.vllm.engine as vllm_engine

        wrap(vllm_engine.VLLMEngine, "__init__", timed(probe, "engine start", synchronize=True))
        wrap(vllm_engine.VLLMEngine, "load_weights", timed(probe, "copy weights", synchronize=True))
        wrap(vllm_engine._Session, "step", _counted_vllm(probe))
        wrap(vllm_engine.VLLMEngine, "step", _counted_vllm_steps(probe))


def _wrap_trainers(probe: Probe) -> None:
    """Modules that imported `run_training` and `load_pretrained` by name, and the steps of trainers."""
    from transformers import Trainer

    wrap(Trainer, "training_step", timed(probe, "training step", synchronize=True))
    for name, module in list(sys.modules.items()):
        if not name.startswith("stepladder."):
            continue
        for attribute in ("run_training", "load_pretrained", "load_model", "load_reward_model"):
            found = vars(module).get(attribute)
            if callable(found) and not hasattr(found, "__wrapped__"):
                part = "train" if attribute == "run_training" else "load"
                wrap(module, attribute, timed(probe, part))


def _counted_steps(probe: Probe) -> Callable[[Any], Any]:
    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any) -> Any:
            probe.count("generation", decoding_steps=1, decoding_rows=self.rows)
            probe.most("generation", "most_rows", self.rows)
            with probe.part("decode"):
                return function(self)

        return step

    return make


def _counted_tokens(probe: Probe) -> Callable[[Any], Any]:
    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        def forward(model: Any, ids: Any, *arguments: Any, **options: Any) -> Any:
            if "prefill" in probe.path:
                probe.count("generation", prefilled=int(ids.numel()), prefill_passes=1)
            return function(model, ids, *arguments, **options)

        return forward

    return make


def _counted_replies(probe: Probe) -> Callable[[Any], Any]:
    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        def reply_of(self: Any, row: Any) -> Any:
            reply = function(self, row)
            written, prompt = len(row.tokens), len(row.prompt_tokens)
            probe.count("generation", requests=1, written=written, prompts=prompt, **{f"ended_{reply.finish.value}": 1})
            probe.most("generation", "longest", written + prompt)
            probe.requests.append((prompt, written))
            return reply

        return reply_of

    return make


def _counted_vllm(probe: Probe) -> Callable[[Any], Any]:
    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any) -> Any:
            probe.most("generation", "most_rows", len(self.rows))
            probe.vllm_rows = len(self.rows)
            with probe.part("generate"):
                return function(self)

        return step

    return make


def _counted_vllm_steps(probe: Probe) -> Callable[[Any], Any]:
    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any) -> Any:
            probe.count("generation", decoding_steps=1, decoding_rows=probe.vllm_rows)
            return function(self)

        return step

    return make


def _counted_outcomes(probe: Probe) -> Callable[[Any], Any]:
    """Time and results of the driver."""

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        def outcomes(self: Any) -> Any:
            iterator = iter(function(self))
            while True:
                with probe.part("driver"):
                    outcome = next(iterator, None)
                if outcome is None:
                    return
                _count_result(probe, outcome.value)
                yield outcome

        return outcomes

    return make


def _count_result(probe: Probe, value: Any) -> None:
    if isinstance(value, Tree):
        probe.count("trees", trees=1, nodes=len(value.nodes))
        written = sum(len(node.step.written.tokens) for node in value.nodes if node.step is not None)
        probe.count("trees", node_written=written)
        return
    trajectories = [value] if isinstance(value, Trajectory) else list(value) if isinstance(value, list | tuple) else []
    for each in trajectories:
        if not isinstance(each, Trajectory):
            continue
        written = sum(len(step.written.tokens) for step in each.steps)
        read = sum(len(segment.tokens) for step in each.steps for segment in step.read)
        searches = len(each.queries)
        contexts = 1 + sum(step.restarts for number, step in enumerate(each.steps) if number)
        probe.count(
            "episodes", episodes=1, steps=len(each.steps), searches=searches, written=written, read=read,
            contexts=contexts, malformed=each.slips, **{f"ended_{each.stop.value if each.stop else 'not'}": 1},
        )  # fmt: skip
        probe.most("episodes", "longest", written + read)


def _counted_scores(probe: Probe) -> Callable[[Any], Any]:
    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        def score_batch(self: Any, inputs: Any) -> Any:
            lengths = [len(each.tokens) for each in inputs]
            probe.count(
                "scoring", batches=1, rows=len(lengths), tokens=sum(lengths), padded=len(lengths) * max(lengths)
            )
            with probe.part("score", synchronize=True):
                return function(self, inputs)

        return score_batch

    return make


def _counted_batches(probe: Probe) -> Callable[[Any], Any]:
    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        def accumulate(self: Any, batch: Any, loss_of: Any) -> Any:
            def counted(part: Any) -> Any:
                if torch.is_grad_enabled():
                    _count_batch(probe, part)
                with probe.part("forward"):
                    return loss_of(part)

            with probe.part("passes", synchronize=True):
                found = function(self, batch, counted)
            probe.notes["max_tokens"] = self.max_tokens
            return found

        return accumulate

    return make


def _count_batch(probe: Probe, part: Any) -> None:
    if "completion_ids" in part:
        mask = part["completion_mask"]
        rows, width, own = len(mask), mask.shape[1] + 1, int(mask.sum()) + len(mask)
        predicted = int((mask * part.get("tool_mask", mask)).sum())
    elif "attention_mask" in part:
        mask = part["attention_mask"]
        rows, width, own = len(mask), mask.shape[1], int(mask.sum())
        predicted = int((part["weights"] > 0).sum()) if "weights" in part else 0
    else:
        return
    probe.count("training", microbatches=1, rows=rows, tokens=own, padded=rows * width, predicted=predicted)
    probe.most("training", "most_tokens", rows * width)
    probe.most("training", "longest", width)
