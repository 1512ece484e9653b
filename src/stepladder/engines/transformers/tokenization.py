"""Tokenization of segments.

In: a tokenizer of transformers. Out: segments with token ids. Prompts are put into the chat template, if there is one.
What the environment says continues the policy's turn or, if the policy has ended its turn, is the user's next message.
Text that continues other text gets no leading space. Documents stay plain text, even if they spell a control token:
special tokens, and added tokens in brackets that agents do not neutralize, are read as text. A segment with token ids
keeps them; ids of another vocabulary are an error.
"""

import re
from collections.abc import Container, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
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
        self._chat_template_kwargs = dict(chat_template_kwargs or {})
        if self._chat_template_kwargs and not in_chat:
            names = ", ".join(self._chat_template_kwargs)
            raise StepladderError(f"the model has no chat template: leave out its variables (chat_options: {names})")
        self._chat_affixes = self._split_chat_template() if in_chat else None

    @property
    def control_tokens(self) -> frozenset[int]:
        """The ids of special tokens, and of added tokens that documents cannot contain."""
        added = self._plain.added_tokens_decoder.items()
        return frozenset(number for number, token in added if token.special)

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

    def encode_user_turn(self, segment: Segment, after: Segment, end_tokens: Container[int]) -> Segment | None:
        """What the environment says `after` a policy that has ended its turn, as the user's next message; else None."""
        ended = after.author is Author.POLICY and after.tokens != () and after.tokens[-1] in end_tokens
        if not ended or segment.author is not Author.ENVIRONMENT or segment.tokens or self._user_turn is None:
            return None
        before, behind = self._user_turn
        text = segment.text.strip()
        tokens = self._encode_text(text, self._plain, continuation=True, split_special_tokens=True)
        return replace(segment, tokens=before + tokens + behind, vocabulary=self.vocabulary)

    @cached_property
    def _user_turn(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The tokens around a user's message that follows an ended turn; None if the template shows no such message."""
        if self._chat_affixes is None:
            return None
        contents = [f"{_MESSAGE}-{number}" for number in range(3)]
        messages = [{"role": role, "content": text} for role, text in zip(("user", "assistant", "user"), contents)]
        try:
            text = str(self._apply_template(messages))
        except Exception:  # noqa: BLE001 - templates are third-party programs; this one knows a single turn
            return None
        _, found, rest = text.partition(contents[1])
        between, shown, behind = rest.partition(contents[2])
        ended = str(self.tokenizer.eos_token or "")
        if not found or not shown or not ended or not between.lstrip().startswith(ended):
            return None
        before = between.lstrip().removeprefix(ended)
        return self._encode_text(before, continuation=True), self._encode_text(behind, continuation=True)

    def _apply_template(self, messages: list[dict[str, str]]) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False, **self._chat_template_kwargs
            )
        )

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

    def _split_chat_template(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens that the chat template puts before and after a user's message."""
        messages = [{"role": "user", "content": _MESSAGE}]
        try:
            text = self._apply_template(messages)
        except Exception as error:  # templates are third-party programs and can raise anything
            raise StepladderError(
                f"the tokenizer's chat template failed: {error}. Set its variables (chat_template_kwargs) or chat=False"
            ) from error
        before, *after = text.split(_MESSAGE)
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
