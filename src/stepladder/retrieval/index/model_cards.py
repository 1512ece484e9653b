"""Usage of well-known encoders according to their model cards: prefixes, pooling, similarity.

An encoder used without its prefix, or with the wrong pooling, silently gives worse vectors. The settings here are
defaults: a model's own files (prompts, pooling) take precedence, and the user's settings over both.
"""

import re
from dataclasses import dataclass
from typing import Literal

_BGE_QUERY = "Represent this sentence for searching relevant passages: "
_WEB_SEARCH = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "

Pooling = Literal["mean", "cls", "last"]
Similarity = Literal["cosine", "dot"]


@dataclass(frozen=True, slots=True)
class ModelCard:
    """How to use an encoder."""

    query_prefix: str = ""
    passage_prefix: str = ""
    pooling: Pooling = "mean"
    similarity: Similarity = "cosine"


#: By regular expressions on the last part of a model's name; the first match applies.
_CARDS: tuple[tuple[str, ModelCard], ...] = (
    (r"e5-mistral.*instruct", ModelCard(query_prefix=_WEB_SEARCH, pooling="last")),
    (r"e5-.*instruct", ModelCard(query_prefix=_WEB_SEARCH)),
    (r"(^|-)e5-", ModelCard("query: ", "passage: ")),
    (r"^qwen3-embedding", ModelCard(query_prefix=_WEB_SEARCH, pooling="last")),
    (r"^bge-m3", ModelCard(pooling="cls")),
    (r"^bge-.*-en", ModelCard(query_prefix=_BGE_QUERY, pooling="cls")),
    (r"^bge-", ModelCard(pooling="cls")),
    (r"^mxbai-embed", ModelCard(query_prefix=_BGE_QUERY, pooling="cls")),
    (r"^snowflake-arctic-embed.*v2", ModelCard(query_prefix="query: ", pooling="cls")),
    (r"^snowflake-arctic-embed", ModelCard(query_prefix=_BGE_QUERY, pooling="cls")),
    (r"^nomic-embed-text", ModelCard("search_query: ", "search_document: ")),
    (r"^gte-.*-v1\.5", ModelCard(pooling="cls")),
    (r"^contriever", ModelCard(similarity="dot")),
    (r"-dot-", ModelCard(pooling="cls", similarity="dot")),
)


def card_of(model: str) -> ModelCard:
    """The card of a model, by folder or hub name.

    >>> card_of("intfloat/e5-base-v2").query_prefix
    'query: '
    >>> card_of("models/bge-base-en-v1.5").pooling
    'cls'
    >>> card_of("all-MiniLM-L6-v2")
    ModelCard(query_prefix='', passage_prefix='', pooling='mean', similarity='cosine')
    """
    name = re.split(r"[/\\]", model.rstrip("/\\"))[-1].lower()
    return next((card for pattern, card in _CARDS if re.search(pattern, name)), ModelCard())
