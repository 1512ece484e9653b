"""Segments to token ids and back, as one model reads them.

In: a tokenizer of transformers. Out: segments with their ids. A prompt is put into the chat template, where there is
one; text that follows other text gets no space of its own; what a document spells stays plain text, even where it
spells a control token. A segment that has ids keeps them, and ids of another vocabulary are refused, not misread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from stepladder.core.errors import BackendError, StepladderError
from stepladder.core.trace import Author, Segment
from stepladder.models.loading import fingerprint

#: Stands for the message while the chat template is taken apart.
_MESSAGE = "STEPLADDER-MESSAGE"


class Encoding:
    """How one model reads segments."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        chat: bool | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """`chat`: put prompts into the tokenizer's chat template, by default when it has one. `chat_template_kwargs` are
        variables of that template.
        """
        self.tokenizer = tokenizer
        self.vocabulary = fingerprint(tokenizer)
        self._adds_space = self._decode(list(self._encode_text("x"))) != "x" or self._first_token("x").startswith("▁")
        in_chat = tokenizer.chat_template is not None if chat is None else chat
        self._chat_affixes = self._split_chat_template(chat_template_kwargs or {}) if in_chat else None

    def encode(self, segment: Segment) -> Segment:
        """The segment with token ids; one that has them is returned as it is."""
        if segment.tokens and segment.vocabulary != self.vocabulary:
            raise BackendError(
                f"a segment has token ids of another vocabulary ({segment.vocabulary or 'unnamed'}, this model's is "
                f"{self.vocabulary}): its transcript was made with another tokenizer"
            )
        if segment.tokens or not segment.text:
            return segment
        starts_text = segment.author is Author.PROMPT and self._chat_affixes is None
        tokens = self._encode_text(segment.text, continuation=not starts_text, split_special_tokens=True)
        if starts_text:
            tokens = self._with_bos(tokens)
        elif segment.author is Author.PROMPT and self._chat_affixes is not None:
            before, after = self._chat_affixes
            tokens = before + tokens + after
        return replace(segment, tokens=tokens, vocabulary=self.vocabulary)

    def decode(self, tokens: Sequence[int], after: Sequence[int] = ()) -> str:
        """The text of tokens that follow others (some tokenizers drop the first space of a text)."""
        before = list(after[-8:])
        head = self._decode(before) if before else ""
        return self._decode([*before, *tokens])[len(head) :]

    def _decode(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _first_token(self, text: str) -> str:
        return str(self.tokenizer.convert_ids_to_tokens(list(self._encode_text(text)))[0])

    def _with_bos(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Tokens behind the one that begins a text, for tokenizers that add it by themselves."""
        starts_text = self.tokenizer("")["input_ids"][:1]
        return (*starts_text, *tokens) if starts_text and starts_text[0] == self.tokenizer.bos_token_id else tokens

    def _encode_text(self, text: str, *, continuation: bool = False, **options: bool) -> tuple[int, ...]:
        """Token ids of a text; `inside`: it follows another, so no space is put before it."""

        def encode(text: str) -> tuple[int, ...]:
            return tuple(self.tokenizer(text, add_special_tokens=False, **options)["input_ids"])

        if not continuation or not self._adds_space:
            return encode(text)
        anchor, anchored = encode("\n"), encode("\n" + text)
        return anchored[len(anchor) :] if anchored[: len(anchor)] == anchor else encode(text)

    def _split_chat_template(self, options: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens that the chat template puts before and behind a user's message."""
        messages = [{"role": "user", "content": _MESSAGE}]
        try:
            rendered = self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False, **options
            )
        except Exception as error:  # templates are programs of others, and fail in their own ways
            raise StepladderError(
                f"the tokenizer's chat template cannot be used: {error}. Set its variables (chat_template_kwargs) or chat=False"
            ) from error
        before, *after = str(rendered).split(_MESSAGE)
        if len(after) != 1:
            raise StepladderError(
                f"the tokenizer's chat template shows a message {len(after)} times, not once; use chat=False"
            )
        return self._encode_text(before), self._encode_text(after[0], continuation=True)
