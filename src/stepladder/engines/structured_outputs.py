"""A grammar as the fields that OpenAI-compatible servers take beside the standard ones.

In: the grammar of a request and its token limit. Out: fields to add to the body of the HTTP request. There is no
standard: every server has its own, and other servers ignore the fields or reject the request.
"""

from collections.abc import Callable
from typing import Any

from stepladder.core.grammars.grammar import Grammar

#: By kind of server.
GRAMMAR_FIELDS: dict[str, Callable[[Grammar, int], dict[str, Any]]] = {
    "vllm": lambda grammar, max_tokens: {"structured_outputs": {"regex": grammar.regex(max_tokens)}},
    "vllm<0.12": lambda grammar, max_tokens: {"guided_regex": grammar.regex(max_tokens)},
    "sglang": lambda grammar, max_tokens: {"regex": grammar.regex(max_tokens)},
    "llama.cpp": lambda grammar, max_tokens: {"grammar": grammar.gbnf(max_tokens)},
}
#: All of them at once: most servers ignore the fields of others.
_AUTO = ("vllm", "sglang", "llama.cpp")


def grammar_fields(kind: str, grammar: Grammar, max_tokens: int) -> dict[str, Any]:
    """The fields for a kind of server, or for any (`auto`)."""
    kinds = _AUTO if kind == "auto" else (kind,)
    return {name: value for each in kinds for name, value in GRAMMAR_FIELDS[each](grammar, max_tokens).items()}
