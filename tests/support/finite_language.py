"""A grammar with few texts, a vocabulary of nine tokens, and all ways to write the texts, found without llguidance."""

from collections.abc import Iterator
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from stepladder.core.grammars.grammar import Grammar, Space, Text
from stepladder.models.tiny import tiny_model

#: With this limit, the free text has at most 8 tokens: 3 bytes are literals, and 3 are kept for its last character.
MAX_TOKENS = 14
_A = Text("<>bc\n")
GRAMMAR = Grammar((("<", _A, ">", Space("\n")), ("<", _A, "b>")))
#: The texts of the grammar, as far as this vocabulary can write them.
WORDS = frozenset(f"<{'a' * count}{end}" for count in range(1, 9) for end in (">", ">\n", "b>"))
#: Byte-level names: Ċ is a line break. Two tokens hold several characters; one could begin words, and none goes on so.
PIECES = ["<", ">", "a", "b", "c", "Ċ", "b>", ">Ċ", "<b"]
END = len(PIECES)


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(
        models.BPE({piece: number for number, piece in enumerate(PIECES)}, [("b", ">"), (">", "Ċ"), ("<", "b")])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<|end|>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>", pad_token="<|end|>")


def model() -> LlamaForCausalLM:
    """With two logits that belong to no token."""
    ids = {"eos_token_id": END, "pad_token_id": END}
    return tiny_model(vocab_size=END + 3, hidden_size=16, intermediate_size=32, initializer_range=0.12, **ids)


def allowed_after(text: str) -> list[int]:
    """The tokens that may follow an unfinished text."""
    pieces = [piece.replace("Ċ", "\n") for piece in PIECES]
    found = [number for number, piece in enumerate(pieces) if any(word.startswith(text + piece) for word in WORDS)]
    return [*found, END] if text in WORDS else found


def completions(text: str = "") -> Iterator[tuple[int, ...]]:
    """All token sequences that write a text of the grammar."""
    for token in allowed_after(text):
        if token == END:
            yield (token,)
            continue
        longer = text + PIECES[token].replace("Ċ", "\n")
        if any(word.startswith(longer) and word != longer for word in WORDS):
            yield from ((token, *rest) for rest in completions(longer))
        else:
            yield (token,)


def logps(policy: Any, prompt: tuple[int, ...], tokens: tuple[int, ...], temperature: float = 1.0) -> torch.Tensor:
    """The log-prob of each token, among those that were allowed in its place."""
    logits_TV = policy(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1] / temperature
    found, text = [], ""
    for logits_V, token in zip(logits_TV, tokens):
        choices = allowed_after(text)
        found.append(logits_V[choices].log_softmax(-1)[choices.index(token)])
        text += PIECES[token].replace("Ċ", "\n") if token != END else ""
    return torch.stack(found)
