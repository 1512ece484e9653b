"""Generation in process with transformers: exact token ids and log-probs, batched, on CPU and CUDA.

In: `Generate` requests. Out: `Generation`s. What `model.generate` cannot do, and a search over steps needs:

- every request of a batch has its own seed, temperature, top-p, stop strings and token limit;
- token ids go in and come out untouched: a segment is encoded once, when it is first read;
- rows that have ended leave the batch, and cost nothing more;
- a draw depends on the request's seed and position alone. Batching changes logits by rounding only.

Log-probs are those of the model itself, at temperature 1 and without top-p. A batch that does not fit into GPU memory
raises; the driver then makes the call in halves.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from transformers import DynamicCache, PreTrainedTokenizerBase
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from stepladder.engines.base import Engine, EngineError, cut_at_stop
from stepladder.engines.loading import context_limit_of, end_tokens, fingerprint, load_model, pick_device, pick_dtype
from stepladder.errors import StepladderError
from stepladder.request import Finish, Generate, Generation, Sampling, nothing_written
from stepladder.trace import Author, Segment, Usage

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

#: Models that come with the package.
BUILT_IN = ("tiny",)
#: Below this temperature the likeliest token is taken.
GREEDY_BELOW = 1e-6
#: Stands for the message while the chat template is taken apart.
_MESSAGE = "STEPLADDER-MESSAGE"


@dataclass(slots=True)
class _Row:
    """A request under way."""

    number: int
    context: tuple[Segment, ...]
    tokens_in: list[int]
    stops: tuple[str, ...]
    sampling: Sampling
    #: One number in [0, 1) a position; empty for greedy rows.
    draws: np.ndarray[Any, np.dtype[np.float64]]
    limit: int
    tokens: list[int]
    logprobs: list[float]
    finish: Finish | None = None


class TransformersEngine(Engine):
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
        chat_options: Mapping[str, Any] | None = None,
        context_limit: int | None = None,
    ) -> None:
        """`model`: a folder, a hub name, a built-in name; or a model object with its tokenizer, used where it is.

        `device`: auto, cpu, cuda, cuda:1 ... `dtype`: fp32, bf16 or auto (bf16 on CUDA, else fp32). `chat`: put prompts
        into the tokenizer's chat template; by default when it has one. `chat_options` are variables of that template,
        such as `{"enable_thinking": False}`. `context_limit`: tokens of the window, where the model does not say.
        """
        if isinstance(model, str | Path):
            where = pick_device(device)
            loaded, self.tokenizer = load_model(model, tokenizer, pick_dtype(dtype, where))
            self.model = cast(Any, loaded.to(where).eval())
        elif tokenizer is None:
            raise StepladderError("a model object needs its tokenizer: TransformersEngine(model, tokenizer)")
        elif (device, dtype) != ("auto", "auto"):
            raise StepladderError("a model object is used as it is: leave out device and dtype, and move it yourself")
        else:
            self.model, self.tokenizer = cast(Any, model), tokenizer
        weights = next(self.model.parameters())
        self.device, self.dtype = weights.device, weights.dtype
        self.max_batch = max_batch
        self.config = self.model.config.get_text_config()
        self.context_limit = context_limit or context_limit_of(self.config)
        self.end_tokens = end_tokens(self.model, self.tokenizer)
        self.vocabulary = fingerprint(self.tokenizer)
        self._adds_space = self._decode(list(self._encode_text("x"))) != "x" or self._first_piece("x").startswith("▁")
        in_chat = self.tokenizer.chat_template is not None if chat is None else chat
        self._chat_frame = self._take_template_apart(chat_options or {}) if in_chat else None
        self._closing_tokens: dict[tuple[str, ...], np.ndarray[Any, np.dtype[np.bool_]]] = {}
        self._pieces: list[str] = []

    def _first_piece(self, text: str) -> str:
        return str(self.tokenizer.convert_ids_to_tokens(list(self._encode_text(text)))[0])

    def _take_template_apart(self, options: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens that the chat template puts before and behind a user's message."""
        turn = [{"role": "user", "content": _MESSAGE}]
        try:
            whole = self.tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False, **options)
        except Exception as error:  # templates are programs of others, and fail in their own ways
            raise StepladderError(
                f"the tokenizer's chat template cannot be used: {error}. Set its variables (chat_options) or chat=False"
            ) from error
        before, *behind = str(whole).split(_MESSAGE)
        if len(behind) != 1:
            raise StepladderError(
                f"the tokenizer's chat template shows a message {len(behind)} times, not once; use chat=False"
            )
        return self._encode_text(before), self._encode_text(behind[0], inside=True)

    # --- text to tokens and back ---------------------------------------------------------------------------

    def encode(self, segment: Segment) -> Segment:
        """The segment with token ids; one that has them is returned as it is.

        A question or a document may spell a control token, such as the end of a turn: it stays plain text.
        """
        if segment.tokens and segment.vocabulary != self.vocabulary:
            raise EngineError(
                f"a segment has token ids of another vocabulary ({segment.vocabulary or 'unnamed'}, this model's is "
                f"{self.vocabulary}): its transcript was made with another tokenizer"
            )
        if segment.tokens or not segment.text:
            return segment
        begins = segment.author is Author.PROMPT and self._chat_frame is None
        tokens = self._encode_text(segment.text, inside=not begins, split_special_tokens=True)
        if begins:
            tokens = self._with_beginning(tokens)
        elif segment.author is Author.PROMPT and self._chat_frame is not None:
            before, behind = self._chat_frame
            tokens = before + tokens + behind
        return replace(segment, tokens=tokens, vocabulary=self.vocabulary)

    def _with_beginning(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Tokens behind the one that begins a text, for tokenizers that add it by themselves."""
        begins = self.tokenizer("")["input_ids"][:1]
        return (*begins, *tokens) if begins and begins[0] == self.tokenizer.bos_token_id else tokens

    def _encode_text(self, text: str, *, inside: bool = False, **options: bool) -> tuple[int, ...]:
        """Token ids of a text; `inside`: it follows another, so no space is put before it."""

        def encode(text: str) -> tuple[int, ...]:
            return tuple(self.tokenizer(text, add_special_tokens=False, **options)["input_ids"])

        if not inside or not self._adds_space:
            return encode(text)
        anchor, anchored = encode("\n"), encode("\n" + text)
        return anchored[len(anchor) :] if anchored[: len(anchor)] == anchor else encode(text)

    def decode(self, tokens: Sequence[int], after: Sequence[int] = ()) -> str:
        """The text of tokens that follow others (some tokenizers drop the first space of a text)."""
        before = list(after[-8:])
        head = self._decode(before) if before else ""
        return self._decode([*before, *tokens])[len(head) :]

    def _decode(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    # --- generation ----------------------------------------------------------------------------------------

    def generate(self, requests: Sequence[Generate]) -> list[Generation | EngineError]:
        """Answer every request, in order."""
        replies: list[Generation | EngineError | None] = [None] * len(requests)
        rows: list[_Row] = []
        for number, request in enumerate(requests):
            try:
                context = tuple(self.encode(segment) for segment in request.context)
            except EngineError as error:
                replies[number] = error
                continue
            tokens_in = [token for segment in context for token in segment.tokens]
            room = self.context_limit - len(tokens_in)
            if not tokens_in:
                replies[number] = EngineError("the context is empty: there is nothing to continue")
            elif room < 1:
                replies[number] = nothing_written(context)
            else:
                rows.append(_row(number, request, context, tokens_in, room))
        rows.sort(key=lambda row: len(row.tokens_in))  # like lengths together: less padding
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            for start in range(0, len(rows), self.max_batch):
                self._decode_batch(rows[start : start + self.max_batch])
        finally:
            for module in training:  # each by itself: parts of a model may be frozen
                module.training = True
        for row in rows:
            replies[row.number] = self._reply(row)
        return [reply for reply in replies if reply is not None]

    @torch.inference_mode()
    def _decode_batch(self, rows: list[_Row]) -> None:
        """Write on from every row, a token at a time, until the last one has ended."""
        width = max(len(row.tokens_in) for row in rows)
        # Left-padded, so that the newest token of every row is in the last column. The pad token is masked out.
        ids_BT = torch.zeros(len(rows), width, dtype=torch.long)
        mask_BT = torch.zeros(len(rows), width, dtype=torch.long)
        for index, row in enumerate(rows):
            ids_BT[index, width - len(row.tokens_in) :] = torch.tensor(row.tokens_in)
            mask_BT[index, width - len(row.tokens_in) :] = 1
        ids_BT, mask_BT = ids_BT.to(self.device), mask_BT.to(self.device)
        positions_BT = (mask_BT.cumsum(1) - 1).clamp(min=0)
        cache = DynamicCache(config=self.config)
        alive = list(rows)
        while True:
            logits_BV = self.model(
                input_ids=ids_BT,
                attention_mask=mask_BT,
                position_ids=positions_BT,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            if not any(map(_is_filled, cache.layers)):
                raise EngineError(f"{type(self.model).__name__} does not keep its memory in transformers' cache")
            tokens_B, logprobs_B = draw_tokens(logits_BV.float(), alive)
            for row, token, logprob in zip(alive, tokens_B.tolist(), logprobs_B.tolist()):
                if row.finish is None:
                    self._append(row, token, logprob)
            staying = [index for index, row in enumerate(alive) if row.finish is None]
            if not staying:
                return
            positions_BT = positions_BT[:, -1:] + 1
            ids_BT = tokens_B[:, None]
            # Recurrent layers cannot give up rows: with them, rows that have ended stay in the batch, unread.
            if len(staying) < len(alive) and not any(map(_is_recurrent, cache.layers)):
                kept = torch.tensor(staying, device=self.device)
                cache.batch_select_indices(kept)
                ids_BT, mask_BT, positions_BT = ids_BT[kept], mask_BT[kept], positions_BT[kept]
                alive = [alive[index] for index in staying]
            mask_BT = torch.cat([mask_BT, mask_BT.new_ones(len(alive), 1)], dim=1)

    def _append(self, row: _Row, token: int, logprob: float) -> None:
        """Add a token to a row and see whether the row has ended with it."""
        row.tokens.append(token)
        row.logprobs.append(logprob)
        if token in self.end_tokens:
            row.finish = Finish.END
        elif row.stops and self._may_close(row.stops)[token] and cut_at_stop(self._text(row), row.stops)[1]:
            row.finish = Finish.STOP
        elif len(row.tokens) >= row.limit:
            row.finish = Finish.LENGTH if row.limit == row.sampling.max_tokens else Finish.NO_ROOM

    def _may_close(self, stops: tuple[str, ...]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """By token id: whether the token can hold the end of a stop string. Spares decoding after every token."""
        if stops not in self._closing_tokens:
            if not self._pieces:
                size = self.config.vocab_size
                self._pieces = [self._decode([token]) if token < len(self.tokenizer) else "" for token in range(size)]
            # An incomplete character shows as U+FFFD, and may be the end of anything.
            ends = {stop[-1] for stop in stops} | {"\ufffd"}
            self._closing_tokens[stops] = np.array([any(end in piece for end in ends) for piece in self._pieces])
        return self._closing_tokens[stops]

    def _text(self, row: _Row) -> str:
        """What the row has written, without the token that ends a turn."""
        spoken = row.tokens[:-1] if row.tokens and row.tokens[-1] in self.end_tokens else row.tokens
        return self.decode(spoken, after=row.tokens_in)

    def _reply(self, row: _Row) -> Generation:
        assert row.finish is not None
        whole = self._text(row)
        text, _ = cut_at_stop(whole, row.stops)
        written = Segment(Author.POLICY, whole, tuple(row.tokens), tuple(row.logprobs), self.vocabulary)
        usage = Usage(read=len(row.tokens_in), written=len(row.tokens))
        return Generation(row.context, written, text, row.finish, usage)


def _is_recurrent(layer: Any) -> bool:
    return isinstance(layer, LinearAttentionCacheLayerMixin)


def _is_filled(layer: Any) -> bool:
    """Whether a forward pass left anything in a layer of the cache."""
    marks = [value for name, value in vars(layer).items() if name.endswith("initialized")]
    return any(any(mark.values()) if isinstance(mark, dict) else mark for mark in marks)  # several states, or one


def _row(number: int, request: Generate, context: tuple[Segment, ...], tokens_in: list[int], room: int) -> _Row:
    sampling = request.sampling
    limit = min(sampling.max_tokens, room)
    hot = sampling.temperature >= GREEDY_BELOW
    draws = np.random.default_rng(request.seed % 2**63).random(limit) if hot else np.empty(0)
    return _Row(number, context, tokens_in, request.stop, sampling, draws, limit, [], [])


def draw_tokens(logits_BV: torch.Tensor, rows: Sequence[_Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """The next token of every row and its log-prob under the model, each row by its own sampling and draw."""
    logprobs_BV = torch.log_softmax(logits_BV, dim=-1)
    tokens_B = logits_BV.argmax(dim=-1)
    hot = [index for index, row in enumerate(rows) if len(row.draws) and row.finish is None]
    if hot:
        chosen = torch.tensor(hot, device=logits_BV.device)

        def column(values: Iterator[float]) -> torch.Tensor:
            return torch.tensor(list(values), dtype=torch.float64, device=logits_BV.device)[:, None]

        temperature_H1 = column(rows[index].sampling.temperature for index in hot)
        top_p_H1 = column(rows[index].sampling.top_p for index in hot)
        draw_H1 = column(float(rows[index].draws[len(rows[index].tokens)]) for index in hot)
        probs_HV = torch.softmax(logits_BV[chosen].double() / temperature_H1, dim=-1)
        if bool((top_p_H1 < 1).any()):
            probs_HV = keep_top_p(probs_HV, top_p_H1)
        # Inverse of the cumulative distribution: the first token whose cumulative mass exceeds the draw.
        mass_HV = probs_HV.cumsum(dim=-1)
        drawn_H = torch.searchsorted(mass_HV, draw_H1 * mass_HV[:, -1:], right=True)[:, 0]
        tokens_B = tokens_B.index_copy(0, chosen, drawn_H.clamp(max=logits_BV.shape[-1] - 1))
    return tokens_B, logprobs_BV.gather(1, tokens_B[:, None])[:, 0]


def keep_top_p(probs_HV: torch.Tensor, top_p_H1: torch.Tensor) -> torch.Tensor:
    """Probabilities with everything outside the smallest set of mass top-p set to zero (not renormalised).

    >>> keep_top_p(torch.tensor([[0.5, 0.2, 0.3]]), torch.tensor([[0.7]])).tolist()[0][1]
    0.0
    """
    sorted_HV, order_HV = probs_HV.sort(dim=-1, descending=True)
    before_HV = sorted_HV.cumsum(dim=-1) - sorted_HV
    return torch.zeros_like(probs_HV).scatter(1, order_HV, sorted_HV.masked_fill(before_HV >= top_p_H1, 0.0))
