"""Tokenization of segments.

In: a tokenizer of transformers. Out: segments with token ids. Prompts are put into the chat template, if there is one.
Text that continues other text gets no leading space. Documents stay plain text, even if they spell a control token:
special tokens, and added tokens in brackets that agents do not neutralize, are read as text. A segment with token ids
keeps them; ids of another vocabulary are an error.
"""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

from stepladder.agents.base import neutralize
from stepladder.core.errors import BackendError, StepladderError
from stepladder.core.trace import Author, Segment
from stepladder.models.loading import fingerprint

#: Placeholder for the message, to find its position in the chat template.
_MESSAGE = "STEPLADDER-MESSAGE"
#: Added tokens that may be control tokens, special or not. Others are words, spaces, tags of a grammar.
_IN_BRACKETS = re.compile(r"[\[({<].*[\])}>]", re.DOTALL)


class Encoding:
    """Encodes and decodes segments for one model."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        chat: bool | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """`chat`: apply the tokenizer's chat template to prompts (default: if it has one).

        `chat_template_kwargs`: variables of that template.
        """
        self.tokenizer = tokenizer
        self._plain = _with_control_tokens_as_special(tokenizer)
        self.vocabulary = fingerprint(tokenizer)
        self._adds_space = self._decode(list(self._encode_text("x"))) != "x" or self._first_token("x").startswith("▁")
        in_chat = tokenizer.chat_template is not None if chat is None else chat
        self._chat_affixes = self._split_chat_template(chat_template_kwargs or {}) if in_chat else None

    def encode(self, segment: Segment) -> Segment:
        """The segment with token ids; unchanged if it has them."""
        if segment.tokens and segment.vocabulary != self.vocabulary:
            raise BackendError(
                f"a segment has token ids of another vocabulary ({segment.vocabulary or 'unnamed'}, this model's is "
                f"{self.vocabulary}): its transcript was generated with another tokenizer"
            )
        if segment.tokens or not segment.text:
            return segment
        starts_text = segment.author is Author.PROMPT and self._chat_affixes is None
        tokenizer = self.tokenizer if segment.author is Author.POLICY else self._plain
        tokens = self._encode_text(segment.text, tokenizer, continuation=not starts_text, split_special_tokens=True)
        if starts_text:
            tokens = self._with_bos(tokens)
        elif segment.author is Author.PROMPT and self._chat_affixes is not None:
            before, after = self._chat_affixes
            tokens = before + tokens + after
        return replace(segment, tokens=tokens, vocabulary=self.vocabulary)

    def decode(self, tokens: Sequence[int], after: Sequence[int] = ()) -> str:
        """The text of tokens that follow the tokens `after` (some tokenizers drop the first space of a text)."""
        before = list(after[-8:])
        head = self._decode(before) if before else ""
        return self._decode([*before, *tokens])[len(head) :]

    def _decode(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _first_token(self, text: str) -> str:
        return str(self.tokenizer.convert_ids_to_tokens(list(self._encode_text(text)))[0])

    def _with_bos(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens after the BOS token, for tokenizers that add one."""
        starts_text = self.tokenizer("")["input_ids"][:1]
        return (*starts_text, *tokens) if starts_text and starts_text[0] == self.tokenizer.bos_token_id else tokens

    def _encode_text(
        self,
        text: str,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        continuation: bool = False,
        **options: bool,
    ) -> tuple[int, ...]:
        """Token ids of a text; `continuation`: it follows other text, so no space is put before it."""
        tokenize: Any = tokenizer or self.tokenizer

        def encode(text: str) -> tuple[int, ...]:
            return tuple(tokenize(text, add_special_tokens=False, **options)["input_ids"])

        if not continuation or not self._adds_space:
            return encode(text)
        anchor, anchored = encode("\n"), encode("\n" + text)
        return anchored[len(anchor) :] if anchored[: len(anchor)] == anchor else encode(text)

    def _split_chat_template(self, options: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens that the chat template puts before and after a user's message."""
        messages = [{"role": "user", "content": _MESSAGE}]
        try:
            text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **options)
        except Exception as error:  # templates are third-party programs and can raise anything
            raise StepladderError(
                f"the tokenizer's chat template failed: {error}. Set its variables (chat_template_kwargs) or chat=False"
            ) from error
        before, *after = str(text).split(_MESSAGE)
        if len(after) != 1:
            raise StepladderError(
                f"the tokenizer's chat template shows a message {len(after)} times, expected once; use chat=False"
            )
        return self._encode_text(before), self._encode_text(after[0], continuation=True)


def _with_control_tokens_as_special(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer, or a copy in which the added tokens that `neutralize` leaves in a document are special."""
    names = [
        token.content
        for token in tokenizer.added_tokens_decoder.values()
        if not token.special and _IN_BRACKETS.fullmatch(token.content) and neutralize(token.content) == token.content
    ]
    if not names:
        return tokenizer
    copied = deepcopy(tokenizer)
    copied.add_tokens([AddedToken(name, special=True, normalized=False) for name in names], special_tokens=True)
    return copied
