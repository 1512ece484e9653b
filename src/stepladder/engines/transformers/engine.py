"""In-process generation with transformers: exact token ids and log-probs, batched, on CPU and CUDA.

In: `Generate` requests. Out: `Generation`s. It adds to `model.generate` what a step-level search needs:

- every request of a batch has its own seed, temperature, top-p, stop strings and token limit;
- token ids are preserved: a segment is tokenized once, when it is first read;
- continuous batching: finished rows leave the batch and others join (`open_session`);
- sampling depends on the request's seed and position alone; batching changes logits by rounding only;
- a prefix cache and no padding: packed attention on a CPU (`prefix_cache.py`, `packed_attention.py`), a paged KV cache
  on a GPU (`paged/kv_cache.py`).

Log-probs are those of the model at temperature 1 without top-p; of a request with a grammar, renormalized over the
tokens that the grammar allows (`constrained.py`). A batch that does not fit into GPU memory raises; the
driver then retries with half the batch.
"""

import math
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from stepladder.core.errors import BackendDown, BackendError, StepladderError
from stepladder.core.memory import out_of_memory, release_caches
from stepladder.core.requests import Finish, Generate, Generation
from stepladder.engines.base import EngineOptions, EngineOutOfMemory, Replies, Session
from stepladder.engines.paged.cuda_graphs import GraphRunner
from stepladder.engines.paged.fused_norms import fuse_norms
from stepladder.engines.paged.kv_cache import PagedKVCache, make_paged_kv_cache
from stepladder.engines.paged.paged_decoding import PagedDecoding
from stepladder.engines.transformers.decoding import PackedDecoding, decode_padded
from stepladder.engines.transformers.in_process import InProcessEngine
from stepladder.engines.transformers.packed_attention import (
    PackingUnsupported,
    supports_packing,
    unwrap_model,
    use_packed_attention,
)
from stepladder.engines.transformers.prefix_cache import PrefixCache, weight_versions, weights_fingerprint
from stepladder.engines.transformers.token_sampler import Row
from stepladder.models.devices import pick_device, pick_dtype
from stepladder.models.loading import context_limit_of, end_tokens, load_model

#: On a GPU, waiting rows are admitted in groups of at least one per this many running rows.
_ADMIT_RATIO = 8
#: The model's attention implementation is replaced during generation, so engines in several threads take turns.
_MODEL_LOCKS: WeakKeyDictionary[nn.Module, threading.Lock] = WeakKeyDictionary()


class TransformersEngine(InProcessEngine):
    """A causal language model of transformers."""

    name = "transformers"

    def __init__(
        self,
        model: str | Path | nn.Module,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        max_batch: int = 64,
        chat: bool | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        context_limit: int | None = None,
        prefix_bytes: int | None = None,
    ) -> None:
        """`model`: a folder, a hub name, a built-in name; or a model object (with `tokenizer`), which stays on its
        device.

        `device`: auto, cpu, cuda, cuda:1 ... `dtype`: fp32, bf16 or auto (bf16 on CUDA, else fp32). `chat`: apply the
        tokenizer's chat template to prompts (default: if it has one). `chat_template_kwargs`: variables of that
        template, such as `{"enable_thinking": False}`. `context_limit`: the context length, if the model's config has
        none. `prefix_bytes`: memory for cached prefixes; 0 disables the cache. Default: its share of the memory for
        caches (core/memory.py); on a GPU, what running rows leave of 3/8 of its memory.
        """
        if isinstance(model, str | Path):
            target_device = pick_device(device)
            loaded, tokenizer_used = load_model(model, tokenizer, pick_dtype(dtype, target_device))
            self.model = cast(Any, loaded.to(target_device).eval())
            if target_device.type == "cuda":
                fuse_norms(self.model)
        elif tokenizer is None:
            raise StepladderError("a model object needs its tokenizer: TransformersEngine(model, tokenizer)")
        elif (device, dtype) != ("auto", "auto"):
            raise StepladderError("a model object keeps its device and dtype: leave out device and dtype")
        else:
            self.model, tokenizer_used = cast(Any, model), tokenizer
        weights = next(self.model.parameters())
        self.device, self.dtype = weights.device, weights.dtype
        self.max_batch = max_batch
        self.config = self.model.config.get_text_config()
        self.context_limit = context_limit or context_limit_of(self.config)
        self.end_tokens = end_tokens(self.model.generation_config, tokenizer_used)
        self.set_tokenizer(tokenizer_used, chat, chat_template_kwargs)
        self._can_pack = supports_packing(self.model)
        #: Cached prefixes: dense buffers, or pages on a GPU.
        self.prefix_cache: PrefixCache | PagedKVCache
        if self._can_pack and self.device.type == "cuda":
            self.prefix_cache = make_paged_kv_cache(self.device, self.config, self.dtype, prefix_bytes)
        else:
            self.prefix_cache = PrefixCache(prefix_bytes)
        self._idle_runners: list[GraphRunner] = []
        self._last_weights: tuple[Any, ...] = ()

    # --- generation ----------------------------------------------------------------------------------------

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        """Generate a reply to every request, in order."""
        rows, replies = self.prepare(dict(enumerate(requests)))
        rows.sort(key=lambda row: len(row.prompt_tokens))  # similar lengths together
        with self._exclusive():
            self._reset_if_weights_changed()
            for start in range(0, len(rows), self.max_batch):
                self._decode_batch(rows[start : start + self.max_batch])
        replies.update((row.key, self.reply_of(row)) for row in rows)
        return [replies[number] for number in range(len(requests))]

    def prepare(self, requests: Mapping[Hashable, Generate]) -> tuple[list[Row], Replies]:
        """The rows to generate, and the replies to requests that need no generation or cannot run."""
        rows, replies = super().prepare(requests)
        if isinstance(self.prefix_cache, PagedKVCache) and rows:
            max_tokens = self.prefix_cache.max_tokens
            for row in [row for row in rows if len(row.prompt_tokens) >= max_tokens]:
                replies[row.key] = BackendError(
                    f"a context of {len(row.prompt_tokens)} tokens does not fit: the KV cache has room for {max_tokens}"
                )
            rows = [row for row in rows if row.key not in replies]
        return rows, replies

    def open_session(self) -> "Session | None":
        """A session for continuous batching, if the model supports packed attention."""
        return _Session(self) if self._can_pack else None

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Locks the model and sets it to eval mode; restores its training mode afterwards."""
        with _MODEL_LOCKS.setdefault(unwrap_model(self.model) or self.model, threading.Lock()):
            training = [module for module in self.model.modules() if module.training]
            if training:
                self.model.eval()
            try:
                yield
            finally:
                for module in training:  # one by one: parts of a model may be frozen
                    module.training = True

    def _reset_if_weights_changed(self) -> bool:
        """Whether the weights have changed since the last call; if so, the prefix cache is cleared."""
        if not (self.prefix_cache.capacity and self._can_pack):
            return False
        before, self._last_weights = self._last_weights, weights_fingerprint(self.model)
        if before != self._last_weights:
            self.prefix_cache.clear()
        return before != self._last_weights

    def _weight_versions_changed(self) -> bool:
        """The same without a checksum of the weights, which takes as long as generating a token."""
        return bool(self._last_weights) and weight_versions(self.model) != self._last_weights[:-1]

    def _decode_batch(self, rows: list[Row]) -> None:
        if self._can_pack:
            decoding, waiting = self._new_decoding(), rows
            try:
                with use_packed_attention(self.model):
                    while waiting or decoding.rows:
                        if count := self._num_to_admit(decoding, waiting):
                            decoding.add(waiting[:count])
                            waiting = waiting[count:]
                        decoding.step()
                return
            except PackingUnsupported:  # raised by the first layer of the first pass: nothing was generated yet
                self._can_pack = False
            except (RuntimeError, MemoryError) as error:
                if _is_out_of_memory(error):
                    decoding.close()
                    self.shrink_cache()  # the smaller batches that follow need the memory
                raise
            finally:
                decoding.close()
        decode_padded(self.model, self.config, rows, self._append_token)

    @property
    def paged(self) -> bool:
        """Whether the KV cache is paged (on a GPU) or dense (on a CPU)."""
        return isinstance(self.prefix_cache, PagedKVCache)

    def _new_decoding(self) -> "PackedDecoding | PagedDecoding":
        if isinstance(self.prefix_cache, PagedKVCache):
            return PagedDecoding(self.model, self.prefix_cache, self._append_token, self._idle_runners)
        return PackedDecoding(self.model, self.prefix_cache, self._append_token)

    def _num_to_admit(self, decoding: "PackedDecoding | PagedDecoding", waiting: Sequence[Row]) -> int:
        """How many waiting rows to admit now. On a GPU, prefilling many prompts takes as long as prefilling one."""
        if not decoding.rows:
            return max(decoding.num_admissible(waiting), 1) if waiting else 0
        if not waiting or (self.paged and len(waiting) * _ADMIT_RATIO < decoding.rows):
            return 0
        count = decoding.num_admissible(waiting)
        return count if not self.paged or count * _ADMIT_RATIO >= decoding.rows else 0

    def on_idle(self) -> None:
        """Drop cached prefixes; CUDA graphs are kept."""
        self.prefix_cache.clear()

    def shrink_cache(self) -> None:
        """Out of memory: drop cached prefixes and allocate a smaller cache from now on."""
        if isinstance(self.prefix_cache, PagedKVCache):
            self.prefix_cache.shrink()
        else:
            release_caches()
        self.reset_prefix_cache()

    def reset_prefix_cache(self) -> None:
        """Drop cached prefixes and CUDA graphs. Changed weights are detected without this."""
        self.prefix_cache.close()
        self._idle_runners.clear()

    def close(self) -> None:
        """Free the KV cache."""
        self.reset_prefix_cache()

    def _append_token(self, row: Row, token: int, logprob: float) -> None:
        """Append a token to a row and set `row.finish` if it ends the row."""
        if math.isnan(logprob):
            raise BackendError(
                f"the model's logits are NaN: its weights are corrupt, or {self.dtype} is too narrow for it"
            )
        if row.watched is None:
            row.watched = self.ending_tokens_of(row.stops)
        row.tokens.append(token)
        row.logprobs.append(logprob)
        if token in row.watched or len(row.tokens) >= row.max_new_tokens:
            row.finish = self.finish_of(row)
        if row.constraint is not None and row.finish is None:
            row.constraint.accept(token)
            row.finish = Finish.END if row.constraint.complete else None


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or out_of_memory(error)


def build(options: EngineOptions) -> TransformersEngine:
    """The engine for the options; the model `nano` by default."""
    model = options.model or "nano"
    return TransformersEngine(
        model,
        device=options.device,
        dtype=options.dtype,
        max_batch=options.max_batch,
        chat_template_kwargs=options.chat_options,
    )


class _Session(Session):
    """Continuous batching: rows join and leave one by one."""

    def __init__(self, engine: TransformersEngine) -> None:
        self.engine = engine
        self.decoding = engine._new_decoding()
        #: Rows that are not admitted yet.
        self.waiting: list[Row] = []
        #: Replies that need no generation.
        self.ready: Replies = {}

    def add(self, requests: Mapping[Hashable, Generate]) -> None:
        """Queue requests. The weights must not have changed since the running requests started."""
        rows, replies = self.engine.prepare(requests)
        self.ready |= replies
        self.waiting += rows

    def step(self) -> Replies:
        """Generate until at least one row finishes."""
        replies, self.ready = self.ready, {}
        if not replies:
            with self.engine._exclusive(), use_packed_attention(self.engine.model), self._release_on_error():
                finished: list[Row] = []
                while not finished and (self.decoding.rows or self.waiting):
                    if count := self.engine._num_to_admit(self.decoding, self.waiting):
                        self._admit(count)
                    finished = self.decoding.step()
            replies = {row.key: self.engine.reply_of(row) for row in finished}
        return replies

    def _admit(self, count: int) -> None:
        if not self.decoding.rows:
            self.engine._reset_if_weights_changed()
        elif self.engine._weight_versions_changed():
            raise BackendDown("the model's weights changed during generation")
        rows, self.waiting = self.waiting[:count], self.waiting[count:]
        self.decoding.add(rows)

    @contextmanager
    def _release_on_error(self) -> Iterator[None]:
        """On an error, release the rows; when out of memory, the prefix cache too: a retry needs the memory."""
        try:
            yield
        except BaseException as error:
            self.decoding.close()
            if not _is_out_of_memory(error):
                raise
            self.engine.shrink_cache()
            raise EngineOutOfMemory(str(error)) from None
