"""Shared by in-process engines: tokenization, context limit, and the conversion of requests to rows and rows to
replies.

In: requests. Out: a `Row` for each request to generate, and the replies of finished rows. Token ids are preserved: a
segment is tokenized once, when it is first read.
"""

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from stepladder.core.errors import BackendError
from stepladder.core.grammars.grammar import Constraint, Grammar
from stepladder.core.requests import Finish, Generate, Generation, empty_generation
from stepladder.core.trace import Author, Segment, Usage
from stepladder.engines.base import Engine, Replies, cut_at_stop
from stepladder.engines.transformers.constrained import GrammarMasks
from stepladder.engines.transformers.token_sampler import Row
from stepladder.engines.transformers.tokenization import Encoding


class InProcessEngine(Engine):
    """An engine with its own tokenizer."""

    tokenizer: PreTrainedTokenizerBase
    #: Context length in tokens, including generated ones.
    context_limit: int
    #: Token ids that end a turn.
    end_tokens: frozenset[int]

    def set_tokenizer(
        self, tokenizer: PreTrainedTokenizerBase, chat: bool | None, chat_template_kwargs: Mapping[str, Any] | None
    ) -> None:
        """Use this tokenizer; the other arguments are those of `Encoding`."""
        self.tokenizer = tokenizer
        self.encoding = Encoding(tokenizer, chat=chat, chat_template_kwargs=chat_template_kwargs)
        self._closing_tokens: dict[tuple[str, ...], frozenset[int]] = {}
        self._ending_tokens: dict[tuple[str, ...], frozenset[int]] = {}
        self._visible_stops: dict[tuple[str, ...], tuple[str, ...] | None] = {}
        for name in ("_token_texts", "_visible_texts"):
            self.__dict__.pop(name, None)

    def encode(self, segment: Segment) -> Segment:
        """The segment with token ids; unchanged if it has them."""
        return self.encoding.encode(segment)

    def decode(self, tokens: Sequence[int], after: Sequence[int] = ()) -> str:
        """The text of tokens that follow the tokens `after`."""
        return self.encoding.decode(tokens, after)

    def reset_prefix_cache(self) -> None:
        """Drop cached prefixes."""

    def prepare(self, requests: Mapping[Hashable, Generate]) -> tuple[list[Row], Replies]:
        """The rows to generate, and the replies to requests that need no generation."""
        rows: list[Row] = []
        replies: Replies = {}
        for key, request in requests.items():
            try:
                context = self._encode_context(request.context)
            except BackendError as error:
                replies[key] = error
                continue
            prompt_tokens = [token for segment in context for token in segment.tokens]
            room = self.context_limit - len(prompt_tokens)
            if not prompt_tokens:
                replies[key] = BackendError("the context is empty: there is nothing to continue")
            elif room < 1:
                replies[key] = empty_generation(context)
            else:
                limit = min(request.sampling.max_tokens, room)
                row = Row(key, context, prompt_tokens, request.stop, request.sampling, request.seed, limit)
                if request.grammar is not None:
                    self.constrain(row, request.grammar)
                rows.append(row)
        return rows, replies

    @cached_property
    def grammar_masks(self) -> GrammarMasks:
        """The tokens that grammars allow."""
        return GrammarMasks(self.encoding, self.end_tokens)

    def constrain(self, row: Row, grammar: Grammar) -> None:
        """Allow a row only what a grammar allows."""
        constraint = Constraint(grammar, row.max_new_tokens)
        row.grammar, row.constraint = constraint.dumps(), self.grammar_masks.start(constraint)

    def _encode_context(self, context: Sequence[Segment]) -> tuple[Segment, ...]:
        encoded: list[Segment] = []
        for segment in context:
            turn = self.encoding.encode_user_turn(segment, encoded[-1], self.end_tokens) if encoded else None
            encoded.append(self.encode(segment) if turn is None else turn)
        return tuple(encoded)

    def finish_of(self, row: Row) -> Finish | None:
        """The finish reason of a row after its last token, or None."""
        if row.tokens[-1] in self.end_tokens:
            return Finish.END
        if row.stops and self._may_contain_stop(row) and cut_at_stop(self.text_of(row), row.stops)[1]:
            return Finish.STOP
        if len(row.tokens) >= row.max_new_tokens:
            return Finish.LENGTH if row.max_new_tokens == row.sampling.max_tokens else Finish.CONTEXT_FULL
        return None

    def closing_tokens_of(self, stops: tuple[str, ...]) -> frozenset[int]:
        """The tokens that can contain the end of a stop string: only after these is the text decoded and checked."""
        if stops not in self._closing_tokens:
            ends = {stop[-1] for stop in stops}
            if not all(end.isascii() for end in ends):
                ends.add("\ufffd")  # a part of a character, which other tokens complete
            closing = (token for token, piece in enumerate(self._token_texts) if not ends.isdisjoint(piece))
            self._closing_tokens[stops] = frozenset(closing)
        return self._closing_tokens[stops]

    def ending_tokens_of(self, stops: tuple[str, ...]) -> frozenset[int]:
        """The tokens after which a row with these stop strings may end, but for its length."""
        if stops not in self._ending_tokens:
            self._ending_tokens[stops] = self.end_tokens | (self.closing_tokens_of(stops) if stops else frozenset())
        return self._ending_tokens[stops]

    def _may_contain_stop(self, row: Row) -> bool:
        """Whether a stop string may end in the last token: a fast test with the texts of the last tokens.

        Decoding the text takes far longer than everything else that is done for a token.
        """
        if row.stops not in self._visible_stops:
            self._visible_stops[row.stops] = self._find_visible_stops(row.stops)
        stops = self._visible_stops[row.stops]
        if stops is None:
            return True
        longest, texts, tail, before = max(map(len, stops)), self._visible_texts, "", 0
        for token in reversed(row.tokens):
            tail = (texts[token] if token < len(texts) else "") + tail  # some models have more tokens than texts
            before = before or len(tail)  # what the last token with visible characters has
            if len(tail) - before >= longest:
                break
        return any(stop in tail for stop in stops)

    def _find_visible_stops(self, stops: tuple[str, ...]) -> tuple[str, ...] | None:
        """The stop strings without whitespace; None if the texts of single tokens do not contain them.

        The text of a token alone may lack a space, or have another one, and holds no character that it shares.
        """
        visible = tuple(_without_whitespace(stop) for stop in stops)
        for stop, found in zip(stops, visible):
            tokens = self.tokenizer(f"x{stop}", add_special_tokens=False)["input_ids"]
            if not found.isascii() or found not in "".join(self._visible_texts[token] for token in tokens):
                return None
        return visible

    @cached_property
    def _token_texts(self) -> list[str]:
        return [self.decode((token,)) for token in range(len(self.tokenizer))]

    @cached_property
    def _visible_texts(self) -> list[str]:
        return [_without_whitespace(text) for text in self._token_texts]

    def text_of(self, row: Row) -> str:
        """The generated text of a row, without the end-of-turn token."""
        tokens = row.tokens[:-1] if row.tokens and row.tokens[-1] in self.end_tokens else row.tokens
        return self.decode(tokens, after=row.prompt_tokens)

    def reply_of(self, row: Row) -> Generation:
        """The reply of a finished row."""
        assert row.finish is not None
        full_text = self.text_of(row)
        text, _ = cut_at_stop(full_text, row.stops)
        tokens, logprobs = tuple(row.tokens), tuple(row.logprobs)
        written = Segment(Author.POLICY, full_text, tokens, logprobs, self.encoding.vocabulary, row.grammar)
        usage = Usage(read=len(row.prompt_tokens), written=len(row.tokens))
        return Generation(row.context, written, text, row.finish, usage)


def _without_whitespace(text: str) -> str:
    return "".join(text.split())
