"""Generation in process with transformers: exact token ids and log-probs, batched, on CPU and CUDA.

In: `Generate` requests. Out: `Generation`s. What `model.generate` cannot do, and a search over steps needs:

- every request of a batch has its own seed, temperature, top-p, stop strings and token limit;
- token ids go in and come out untouched: a segment is encoded once, when it is first read;
- rows that have ended leave the batch, and cost nothing more; others may take their place (`open`);
- a draw depends on the request's seed and position alone. Batching changes logits by rounding only;
- what was read in earlier steps of a transcript is not read again, and nothing is padded (`prefixes.py`, `blocks.py`,
  on a GPU `pages.py`).

Log-probs are those of the model itself, at temperature 1 and without top-p. A batch that does not fit into GPU memory
raises; the driver then makes the call in halves.
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
from stepladder.core.requests import Generate, Generation
from stepladder.engines.base import EngineOutOfMemory, Session
from stepladder.engines.paged.cuda_graphs import GraphRunner
from stepladder.engines.paged.fused_decode import prepare_for_decoding
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
from stepladder.engines.transformers.prefix_cache import (
    PrefixCache,
    default_capacity,
    weight_versions,
    weights_fingerprint,
)
from stepladder.engines.transformers.sampling import Row
from stepladder.models.loading import context_limit_of, end_tokens, load_model, pick_device, pick_dtype

#: On a GPU new rows wait until there is one for every so many that write.
_ADMIT_RATIO = 8
#: A model attends in another way while an engine writes with it, so engines in different threads take turns.
_MODEL_LOCKS: WeakKeyDictionary[nn.Module, threading.Lock] = WeakKeyDictionary()


def _lock_of(model: nn.Module) -> threading.Lock:
    return _MODEL_LOCKS.setdefault(unwrap_model(model) or model, threading.Lock())


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
        """`model`: a folder, a hub name, a built-in name; or a model object with its tokenizer, used where it is.

        `device`: auto, cpu, cuda, cuda:1 ... `dtype`: fp32, bf16 or auto (bf16 on CUDA, else fp32). `chat`: put prompts
        into the tokenizer's chat template; by default when it has one. `chat_template_kwargs` are variables of that template,
        such as `{"enable_thinking": False}`. `context_limit`: tokens of the window, where the model does not say.
        `prefix_bytes`: memory for what is kept of earlier transcripts; 0 is off. By default an eighth of the machine's,
        and on a GPU all that rows under way leave of three eighths.
        """
        if isinstance(model, str | Path):
            target_device = pick_device(device)
            loaded, tokenizer_used = load_model(model, tokenizer, pick_dtype(dtype, target_device))
            self.model = cast(Any, loaded.to(target_device).eval())
            if target_device.type == "cuda":
                prepare_for_decoding(self.model)
        elif tokenizer is None:
            raise StepladderError("a model object needs its tokenizer: TransformersEngine(model, tokenizer)")
        elif (device, dtype) != ("auto", "auto"):
            raise StepladderError("a model object is used as it is: leave out device and dtype, and move it yourself")
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
        #: What is kept of earlier transcripts: of rows in blocks, or in pages.
        self.prefix_cache: PrefixCache | PagedKVCache
        if self._can_pack and self.device.type == "cuda":
            self.prefix_cache = make_paged_kv_cache(self.device, self.config, self.dtype, prefix_bytes)
        else:
            self.prefix_cache = PrefixCache(default_capacity() if prefix_bytes is None else prefix_bytes)
        self._idle_runners: list[GraphRunner] = []
        self._last_weights: tuple[Any, ...] = ()
        self._closing_tokens: dict[tuple[str, ...], frozenset[int]] = {}
        self._token_texts: list[str] = []

    # --- generation ----------------------------------------------------------------------------------------

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        """Answer every request, in order."""
        rows, replies = self.prepare(dict(enumerate(requests)))
        rows.sort(key=lambda row: len(row.prompt_tokens))  # like lengths together
        with self._exclusive():
            self._reset_if_weights_changed()
            for start in range(0, len(rows), self.max_batch):
                self._decode_batch(rows[start : start + self.max_batch])
        replies.update((row.key, self.reply_of(row)) for row in rows)
        return [replies[number] for number in range(len(requests))]

    def prepare(
        self, requests: Mapping[Hashable, Generate]
    ) -> tuple[list[Row], dict[Hashable, Generation | BackendError]]:
        """The rows to be written, and the replies to requests that need none or cannot be written."""
        rows, replies = super().prepare(requests)
        if isinstance(self.prefix_cache, PagedKVCache) and rows:
            max_tokens = self.prefix_cache.tokens
            for row in [row for row in rows if len(row.prompt_tokens) >= max_tokens]:
                replies[row.key] = BackendError(
                    f"a context of {len(row.prompt_tokens)} tokens does not fit: there is memory for {max_tokens}"
                )
            rows = [row for row in rows if row.key not in replies]
        return rows, replies

    def open_session(self) -> "Session | None":
        """Room for requests that come and go one by one, where the model allows it."""
        return _Session(self) if self._can_pack else None

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Within, nobody else writes with the model, and it is in evaluation mode. Afterwards it is as it was."""
        with _lock_of(self.model):
            training = [module for module in self.model.modules() if module.training]
            if training:
                self.model.eval()
            try:
                yield
            finally:
                for module in training:  # each by itself: parts of a model may be frozen
                    module.training = True

    def _reset_if_weights_changed(self) -> bool:
        """Whether the weights have changed since this was last asked. What was kept is of no use then."""
        if not (self.prefix_cache.capacity and self._can_pack):
            return False
        before, self._last_weights = self._last_weights, weights_fingerprint(self.model)
        if before != self._last_weights:
            self.prefix_cache.reset_prefix_cache()
        return before != self._last_weights

    def _weight_versions_changed(self) -> bool:
        """The same, without looking at the weights themselves, which takes as long as to write a token."""
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
            except PackingUnsupported:  # seen at the first layer of the first pass: nothing was written yet
                self._can_pack = False
            except torch.OutOfMemoryError:
                decoding.close()
                self.shrink_cache()  # the smaller batches that follow need the room more
                raise
            finally:
                decoding.close()
        decode_padded(self.model, self.config, rows, self._append_token)

    @property
    def paged(self) -> bool:
        """Whether keys and values are in pages: a GPU saves by that, and a CPU by rows that lie together."""
        return isinstance(self.prefix_cache, PagedKVCache)

    def _new_decoding(self) -> "PackedDecoding | PagedDecoding":
        if isinstance(self.prefix_cache, PagedKVCache):
            return PagedDecoding(self.model, self.prefix_cache, self._append_token, self._idle_runners)
        return PackedDecoding(self.model, self.prefix_cache, self._append_token)

    def _num_to_admit(self, decoding: "PackedDecoding | PagedDecoding", waiting: Sequence[Row]) -> int:
        """How many of those that wait should begin. A GPU reads many contexts in the time it takes to read one."""
        if not decoding.rows:
            return max(decoding.num_admissible(waiting), 1) if waiting else 0
        if not waiting or (self.paged and len(waiting) * _ADMIT_RATIO < decoding.rows):
            return 0
        count = decoding.num_admissible(waiting)
        return count if not self.paged or count * _ADMIT_RATIO >= decoding.rows else 0

    def on_idle(self) -> None:
        """Drop what was kept of earlier transcripts; passes that were recorded stay."""
        self.prefix_cache.reset_prefix_cache()

    def shrink_cache(self) -> None:
        """Memory has run out: drop all that was kept, and keep less from now on."""
        if isinstance(self.prefix_cache, PagedKVCache):
            self.prefix_cache.shrink()
        self.reset_prefix_cache()

    def reset_prefix_cache(self) -> None:
        """Drop the keys and values of earlier transcripts. Changes of weights are noticed without this."""
        self.prefix_cache.close()
        self._idle_runners.clear()

    def close(self) -> None:
        """Free what was kept of earlier transcripts."""
        self.reset_prefix_cache()

    def _append_token(self, row: Row, token: int, logprob: float) -> None:
        """Add a token to a row and see whether the row has ended with it."""
        if math.isnan(logprob):
            raise BackendError(
                f"the model's output is not a number: its weights are damaged, or {self.dtype} is too narrow for it"
            )
        row.tokens.append(token)
        row.logprobs.append(logprob)
        row.finish = self.finish_of(row, may_stop=not row.stops or token in self._closing_tokens_of(row.stops))

    def _closing_tokens_of(self, stops: tuple[str, ...]) -> frozenset[int]:
        """The tokens that can hold the end of a stop string. Spares decoding after every token."""
        if stops not in self._closing_tokens:
            if not self._token_texts:
                size = self.config.vocab_size
                self._token_texts = [
                    self.decode((token,)) if token < len(self.tokenizer) else "" for token in range(size)
                ]
            # An incomplete character shows as U+FFFD, and may be the end of anything.
            ends = {stop[-1] for stop in stops} | {"\ufffd"}
            closing = (token for token, piece in enumerate(self._token_texts) if not ends.isdisjoint(piece))
            self._closing_tokens[stops] = frozenset(closing)
        return self._closing_tokens[stops]


class _Session(Session):
    """Rows that join and leave one by one."""

    def __init__(self, engine: TransformersEngine) -> None:
        self.engine = engine
        self.decoding = engine._new_decoding()
        #: Rows that have not begun.
        self.waiting: list[Row] = []
        #: Replies that cost no work.
        self.ready: dict[Hashable, Generation | BackendError] = {}

    def add(self, requests: Mapping[Hashable, Generate]) -> None:
        """Take requests in. The weights must be those that the others under way began with."""
        rows, replies = self.engine.prepare(requests)
        self.ready |= replies
        self.waiting += rows

    def step(self) -> dict[Hashable, Generation | BackendError]:
        """Go on until at least one row has ended."""
        replies, self.ready = self.ready, {}
        if not replies:
            with self.engine._exclusive(), use_packed_attention(self.engine.model), self._release_on_error():
                ended: list[Row] = []
                while not ended and (self.decoding.rows or self.waiting):
                    if count := self.engine._num_to_admit(self.decoding, self.waiting):
                        self._admit(count)
                    ended = self.decoding.step()
            replies = {row.key: self.engine.reply_of(row) for row in ended}
        return replies

    def _admit(self, count: int) -> None:
        if not self.decoding.rows:
            self.engine._reset_if_weights_changed()
        elif self.engine._weight_versions_changed():
            raise BackendDown("the model's weights were changed while it was writing")
        rows, self.waiting = self.waiting[:count], self.waiting[count:]
        self.decoding.add(rows)

    @contextmanager
    def _release_on_error(self) -> Iterator[None]:
        """Where memory runs out, what was kept is given up: whoever tries again needs the room more."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            self.decoding.close()
            self.engine.shrink_cache()
            raise EngineOutOfMemory(str(error)) from None
        except BaseException:
            self.decoding.close()
            raise
