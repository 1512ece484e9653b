"""Constrained decoding in process, with llguidance: tokens that a grammar does not allow are masked before sampling.

In: a grammar with its token limit (`Constraint`) and the tokens so far. Out: the tokens that may come next, as bits.
Masks are a function of these alone. So a trainer computes the same ones (`GrammarMasks.of`) and the same log-probs:
those of the model's distribution over the tokens that were allowed.

An end token is allowed only where the text is complete. Control tokens are never allowed. Other added tokens, such as
the tags of nano or Qwen's `<think>`, count as the text they stand for.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from stepladder.core.errors import BackendDown, BackendError
from stepladder.core.extras import install_command
from stepladder.core.grammars.grammar import Constraint
from stepladder.engines.transformers.text_progress import Automaton, State, TextProgress, token_limits
from stepladder.engines.transformers.tokenization import Encoding

#: Compiled constraints that are kept. Agents have few grammars, but near the end of a context window limits vary.
_MAX_COMPILED = 256
#: One bit per token of the vocabulary, in bytes, the lowest bit first.
Bits = NDArray[np.uint8]


class TokenConstraint:
    """The state of a grammar after some tokens."""

    def __init__(self, vocabulary: "_Vocabulary", matcher: Any, progress: TextProgress) -> None:
        self.vocabulary, self.matcher, self.progress = vocabulary, matcher, progress

    @property
    def complete(self) -> bool:
        """Whether nothing can follow."""
        return bool(self.matcher.is_stopped())

    def allowed(self) -> Bits:
        """The bits of the tokens that may come next. Equal states share them: they are not to be changed."""
        state = self.progress.state
        # Where characters are limited, tokens are allowed that are no longer than what is left of the text.
        key = self.progress.characters if state.texts and not self.progress.limits else None
        if key not in state.masks or state.is_ambiguous:
            bits = np.zeros(self.vocabulary.num_bytes, dtype=np.uint8)
            self.matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            if not bits.any():
                raise BackendError(f"the grammar allows no token: {_reason(self.matcher)}")
            state.masks[key] = bits
        return self._ending(state) if self.progress.must_end else state.masks[key]

    def _ending(self, state: State) -> Bits:
        """The bits of the allowed tokens that end the free text of a state; of all, if there is none."""
        if "ending" not in state.masks:
            ending = state.masks[None] & self.vocabulary.tokens_with(state.ends)
            state.masks["ending"] = ending if ending.any() else state.masks[None]
        found: Bits = state.masks["ending"]
        return found

    def accept(self, token: int) -> None:
        """Advance by a token."""
        if not self.matcher.consume_token(token):
            raise BackendError(f"the grammar does not allow token {token}: {_reason(self.matcher)}")
        if token not in self.vocabulary.control_tokens:
            self.progress.accept(self.vocabulary.tokens[token])


class GrammarMasks:
    """Grammars over the vocabulary of one model."""

    def __init__(self, encoding: Encoding, end_tokens: frozenset[int]) -> None:
        llguidance = import_llguidance()
        self._matcher: Any = llguidance.LLMatcher
        self.vocabulary = _Vocabulary(encoding, end_tokens)
        wrapped = llguidance.TokenizerWrapper(self.vocabulary)
        self._tokenizer = llguidance.LLTokenizer(wrapped, eos_token=sorted(end_tokens))
        #: By regular expression.
        self._compiled: dict[str, tuple[Any, Automaton]] = {}

    def start(self, constraint: Constraint) -> TokenConstraint:
        """The state before the first token."""
        regex = constraint.regex
        if regex not in self._compiled:
            if len(self._compiled) >= _MAX_COMPILED:
                self._compiled.clear()
            self._compiled[regex] = self.compile(regex), Automaton(constraint.grammar)
        matcher, automaton = self._compiled[regex]
        return TokenConstraint(self.vocabulary, matcher.deep_copy(), TextProgress(automaton, token_limits(constraint)))

    def compile(self, regex: str) -> Any:
        """A matcher of llguidance. Every token that fits is allowed, however the tokenizer would split the text."""
        slashed = regex.replace("/", chr(92) + "/")
        grammar = self._matcher.grammar_from_lark(f'%llguidance {{"no_forcing": true}}\nstart: /{slashed}/')
        matcher = self._matcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise BackendDown(f"llguidance cannot read the grammar: {_reason(matcher)}")
        return matcher

    def of(self, constraint: Constraint, tokens: Sequence[int]) -> list[Bits]:
        """For each of these tokens, the bits of those that were allowed in its place."""
        state, found = self.start(constraint), []
        for token in tokens:
            found.append(state.allowed())
            state.accept(token)
        return found


def mask_logits(logits_BV: torch.Tensor, constraints: Sequence[TokenConstraint | None]) -> torch.Tensor:
    """The logits, with minus infinity for tokens that the grammar of their row does not allow."""
    rows = {index: each for index, each in enumerate(constraints) if each is not None}
    if not rows:
        return logits_BV
    allowed_RV = unpack_bits([each.allowed() for each in rows.values()], logits_BV.shape[1], logits_BV.device)
    if len(rows) == len(logits_BV):
        return logits_BV.masked_fill(~allowed_RV, -torch.inf)
    indices_R = torch.tensor(list(rows), device=logits_BV.device)
    return logits_BV.index_copy(0, indices_R, logits_BV[indices_R].masked_fill(~allowed_RV, -torch.inf))


def unpack_bits(bits: Sequence[Bits], vocab_size: int, device: torch.device) -> torch.Tensor:
    """Bits as booleans, one per logit. Logits beyond the tokenizer's vocabulary are not allowed."""
    unique = {id(each): each for each in bits}  # most positions are in one of a few states, which share their bits
    places = {key: place for place, key in enumerate(unique)}
    packed_UW1 = torch.from_numpy(np.stack(list(unique.values()))).to(device)[:, :, None]
    allowed_UV = ((packed_UW1 >> torch.arange(8, dtype=torch.uint8, device=device)) & 1).flatten(1).bool()
    allowed_UV = pad(allowed_UV[:, :vocab_size], (0, max(vocab_size - allowed_UV.shape[1], 0)))
    return allowed_UV[torch.tensor([places[id(each)] for each in bits], device=device)]


class _Vocabulary:
    """The bytes of every token: all that llguidance asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, encoding: Encoding, end_tokens: frozenset[int]) -> None:
        from llguidance.hf import from_tokenizer

        if not end_tokens:
            raise BackendDown("format 'constrained' needs a model with an end-of-sequence token; use format: lenient")
        try:
            # It knows the bytes, but takes every added token in brackets for a control token.
            known = from_tokenizer(cast(Any, encoding.tokenizer))
        except ValueError as error:
            raise BackendDown(f"format 'constrained' does not support this model's tokenizer: {error}") from error
        self.tokens: list[bytes] = [known.decode_bytes([token]) for token in range(known.vocab_size)]
        self.num_bytes = 4 * -(-len(self.tokens) // 32)
        self.control_tokens = encoding.control_tokens | end_tokens
        self.special_token_ids = sorted(self.control_tokens)
        self.eos_token_id = min(end_tokens)
        self._with: dict[str, Bits] = {}

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("masks do not depend on how a text would be split into tokens")

    def tokens_with(self, characters: str) -> Bits:
        """The bits of the tokens that contain one of these characters, all of them ASCII."""
        if characters not in self._with:
            wanted = set(characters.encode())
            found = np.array([not wanted.isdisjoint(token) for token in self.tokens])
            packed = np.packbits(found, bitorder="little")
            self._with[characters] = np.pad(packed, (0, self.num_bytes - len(packed)))
        return self._with[characters]


def import_llguidance() -> Any:
    """The library; an error that says how to install it, if it is missing."""
    try:
        import llguidance
    except ImportError as error:
        raise BackendDown(
            f"format 'constrained' needs llguidance, which is not installed: {install_command('constrained')}, or use "
            "format: lenient"
        ) from error
    return llguidance


def _reason(matcher: Any) -> str:
    """The first line of the message of llguidance; the state of its parser follows."""
    return str(matcher.get_error()).partition("\n")[0]
