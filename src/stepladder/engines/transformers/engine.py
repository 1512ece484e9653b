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
from stepladder.engines.paged.cuda_graphs import Pool
from stepladder.engines.paged.fused_decode import prepare_for_decoding
from stepladder.engines.paged.kv_cache import PagedKVCache, make_paged_kv_cache
from stepladder.engines.paged.paged_decoding import PooledDecoding
from stepladder.engines.transformers.decoding import PackedDecoding, decode_padded
from stepladder.engines.transformers.in_process import InProcessEngine
from stepladder.engines.transformers.packed_attention import CannotPack, can_pack, unwrap_model, packing
from stepladder.engines.transformers.prefix_cache import PrefixCache, default_capacity, versions_mark, weights_mark
from stepladder.engines.transformers.sampling import Row
from stepladder.models.loading import context_limit_of, end_tokens, load_model, pick_device, pick_dtype

#: On a GPU new rows wait until there is one for every so many that write.
_WAIT_FOR = 8
#: A model attends in another way while an engine writes with it, so engines in different threads take turns.
_TURNS: WeakKeyDictionary[nn.Module, threading.Lock] = WeakKeyDictionary()


def _turn_of(model: nn.Module) -> threading.Lock:
    return _TURNS.setdefault(unwrap_model(model) or model, threading.Lock())


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
            where = pick_device(device)
            loaded, words = load_model(model, tokenizer, pick_dtype(dtype, where))
            self.model = cast(Any, loaded.to(where).eval())
            if where.type == "cuda":
                prepare_for_decoding(self.model)
        elif tokenizer is None:
            raise StepladderError("a model object needs its tokenizer: TransformersEngine(model, tokenizer)")
        elif (device, dtype) != ("auto", "auto"):
            raise StepladderError("a model object is used as it is: leave out device and dtype, and move it yourself")
        else:
            self.model, words = cast(Any, model), tokenizer
        weights = next(self.model.parameters())
        self.device, self.dtype = weights.device, weights.dtype
        self.max_batch = max_batch
        self.config = self.model.config.get_text_config()
        self.context_limit = context_limit or context_limit_of(self.config)
        self.end_tokens = end_tokens(self.model.generation_config, words)
        self.set_tokenizer(words, chat, chat_template_kwargs)
        self._packs = can_pack(self.model)
        #: What is kept of earlier transcripts: of rows in blocks, or in pages.
        self.prefixes: PrefixCache | PagedKVCache
        if self._packs and self.device.type == "cuda":
            self.prefixes = make_paged_kv_cache(self.device, self.config, self.dtype, prefix_bytes)
        else:
            self.prefixes = PrefixCache(default_capacity() if prefix_bytes is None else prefix_bytes)
        self._idle: list[Pool] = []
        self._weights: tuple[Any, ...] = ()
        self._closing_tokens: dict[tuple[str, ...], frozenset[int]] = {}
        self._pieces: list[str] = []

    # --- generation ----------------------------------------------------------------------------------------

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        """Answer every request, in order."""
        rows, replies = self.begin(dict(enumerate(requests)))
        rows.sort(key=lambda row: len(row.tokens_in))  # like lengths together
        with self._at_work():
            self._notice_new_weights()
            for start in range(0, len(rows), self.max_batch):
                self._decode_batch(rows[start : start + self.max_batch])
        replies.update((row.key, self.reply_of(row)) for row in rows)
        return [replies[number] for number in range(len(requests))]

    def begin(
        self, requests: Mapping[Hashable, Generate]
    ) -> tuple[list[Row], dict[Hashable, Generation | BackendError]]:
        """The rows to be written, and the replies to requests that need none or cannot be written."""
        rows, replies = super().begin(requests)
        if isinstance(self.prefixes, PagedKVCache) and rows:
            most = self.prefixes.tokens
            for row in [row for row in rows if len(row.tokens_in) >= most]:
                replies[row.key] = BackendError(
                    f"a context of {len(row.tokens_in)} tokens does not fit: there is memory for {most}"
                )
            rows = [row for row in rows if row.key not in replies]
        return rows, replies

    def open(self) -> "Session | None":
        """Room for requests that come and go one by one, where the model allows it."""
        return _Session(self) if self._packs else None

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Within, nobody else writes with the model, and it is in evaluation mode. Afterwards it is as it was."""
        with _turn_of(self.model):
            training = [module for module in self.model.modules() if module.training]
            if training:
                self.model.eval()
            try:
                yield
            finally:
                for module in training:  # each by itself: parts of a model may be frozen
                    module.training = True

    def _notice_new_weights(self) -> bool:
        """Whether the weights have changed since this was last asked. What was kept is of no use then."""
        if not (self.prefixes.capacity and self._packs):
            return False
        before, self._weights = self._weights, weights_mark(self.model)
        if before != self._weights:
            self.prefixes.forget()
        return before != self._weights

    def _weights_moved(self) -> bool:
        """The same, without looking at the weights themselves, which takes as long as to write a token."""
        return bool(self._weights) and versions_mark(self.model) != self._weights[:-1]

    def _decode_batch(self, rows: list[Row]) -> None:
        if self._packs:
            decoding, waiting = self._decoding(), rows
            try:
                with packing(self.model):
                    while waiting or decoding.rows:
                        if count := self._joining(decoding, waiting):
                            decoding.add(waiting[:count])
                            waiting = waiting[count:]
                        decoding.step()
                return
            except CannotPack:  # seen at the first layer of the first pass: nothing was written yet
                self._packs = False
            except torch.OutOfMemoryError:
                decoding.close()
                self.give_way()  # the smaller batches that follow need the room more
                raise
            finally:
                decoding.close()
        decode_padded(self.model, self.config, rows, self._append)

    @property
    def pools(self) -> bool:
        """Whether keys and values are in pages: a GPU saves by that, and a CPU by rows that lie together."""
        return isinstance(self.prefixes, PagedKVCache)

    def _decoding(self) -> "PackedDecoding | PooledDecoding":
        if isinstance(self.prefixes, PagedKVCache):
            return PooledDecoding(self.model, self.prefixes, self._append, self._idle)
        return PackedDecoding(self.model, self.prefixes, self._append)

    def _joining(self, decoding: "PackedDecoding | PooledDecoding", waiting: Sequence[Row]) -> int:
        """How many of those that wait should begin. A GPU reads many contexts in the time it takes to read one."""
        if not decoding.rows:
            return max(decoding.fitting(waiting), 1) if waiting else 0
        if not waiting or (self.pools and len(waiting) * _WAIT_FOR < decoding.rows):
            return 0
        count = decoding.fitting(waiting)
        return count if not self.pools or count * _WAIT_FOR >= decoding.rows else 0

    def rest(self) -> None:
        """Drop what was kept of earlier transcripts; passes that were recorded stay."""
        self.prefixes.forget()

    def give_way(self) -> None:
        """Memory has run out: drop all that was kept, and keep less from now on."""
        if isinstance(self.prefixes, PagedKVCache):
            self.prefixes.shrink()
        self.forget()

    def forget(self) -> None:
        """Drop the keys and values of earlier transcripts. Changes of weights are noticed without this."""
        self.prefixes.close()
        self._idle.clear()

    def close(self) -> None:
        """Free what was kept of earlier transcripts."""
        self.forget()

    def _append(self, row: Row, token: int, logprob: float) -> None:
        """Add a token to a row and see whether the row has ended with it."""
        if math.isnan(logprob):
            raise BackendError(
                f"the model's output is not a number: its weights are damaged, or {self.dtype} is too narrow for it"
            )
        row.tokens.append(token)
        row.logprobs.append(logprob)
        row.finish = self.end_of(row, may_close=not row.stops or token in self._may_close(row.stops))

    def _may_close(self, stops: tuple[str, ...]) -> frozenset[int]:
        """The tokens that can hold the end of a stop string. Spares decoding after every token."""
        if stops not in self._closing_tokens:
            if not self._pieces:
                size = self.config.vocab_size
                self._pieces = [self.decode((token,)) if token < len(self.tokenizer) else "" for token in range(size)]
            # An incomplete character shows as U+FFFD, and may be the end of anything.
            ends = {stop[-1] for stop in stops} | {"\ufffd"}
            closing = (token for token, piece in enumerate(self._pieces) if not ends.isdisjoint(piece))
            self._closing_tokens[stops] = frozenset(closing)
        return self._closing_tokens[stops]


class _Session(Session):
    """Rows that join and leave one by one."""

    def __init__(self, engine: TransformersEngine) -> None:
        self.engine = engine
        self.decoding = engine._decoding()
        #: Rows that have not begun.
        self.waiting: list[Row] = []
        #: Replies that cost no work.
        self.ready: dict[Hashable, Generation | BackendError] = {}

    def add(self, requests: Mapping[Hashable, Generate]) -> None:
        """Take requests in. The weights must be those that the others under way began with."""
        rows, replies = self.engine.begin(requests)
        self.ready |= replies
        self.waiting += rows

    def work(self) -> dict[Hashable, Generation | BackendError]:
        """Go on until at least one row has ended."""
        replies, self.ready = self.ready, {}
        if not replies:
            with self.engine._at_work(), packing(self.engine.model), self._room():
                ended: list[Row] = []
                while not ended and (self.decoding.rows or self.waiting):
                    if count := self.engine._joining(self.decoding, self.waiting):
                        self._begin(count)
                    ended = self.decoding.step()
            replies = {row.key: self.engine.reply_of(row) for row in ended}
        return replies

    def _begin(self, count: int) -> None:
        if not self.decoding.rows:
            self.engine._notice_new_weights()
        elif self.engine._weights_moved():
            raise BackendDown("the model's weights were changed while it was writing")
        rows, self.waiting = self.waiting[:count], self.waiting[count:]
        self.decoding.add(rows)

    @contextmanager
    def _room(self) -> Iterator[None]:
        """Where memory runs out, what was kept is given up: whoever tries again needs the room more."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            self.decoding.close()
            self.engine.give_way()
            raise EngineOutOfMemory(str(error)) from None
        except BaseException:
            self.decoding.close()
            raise
