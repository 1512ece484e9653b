"""What the cards of well-known encoders say about their use: prefixes, pooling, similarity.

An encoder that is used without its prefix, or with another pooling, still gives vectors, only worse ones, and nothing
fails. So what is known is written down here. What a model's own files say (prompts, pooling) goes before it, and what
the user says before that.
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
    """How an encoder wants to be used."""

    query_prefix: str = ""
    passage_prefix: str = ""
    pooling: Pooling = "mean"
    similarity: Similarity = "cosine"


#: By patterns that are looked for in the last part of a model's name; the first that fits holds.
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
    """The card of a model, by a folder's or a hub name.

    >>> card_of("intfloat/e5-base-v2").query_prefix
    'query: '
    >>> card_of("models/bge-base-en-v1.5").pooling
    'cls'
    >>> card_of("all-MiniLM-L6-v2")
    ModelCard(query_prefix='', passage_prefix='', pooling='mean', similarity='cosine')
    """
    name = re.split(r"[/\\]", model.rstrip("/\\"))[-1].lower()
    return next((card for pattern, card in _CARDS if re.search(pattern, name)), ModelCard())
