"""The settings of embedding indexes, and how well-known encoders are used according to their model cards.

An encoder used without its prefix, or with the wrong pooling, silently gives worse vectors. Model cards are defaults: a
model's own files (prompts, pooling) take precedence, and the user's settings over both.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from stepladder.core.config import Config
from stepladder.models import absolute_if_folder

_BGE_QUERY = "Represent this sentence for searching relevant passages: "
_WEB_SEARCH = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "

Pooling = Literal["mean", "cls", "last"]
Similarity = Literal["cosine", "dot"]


def _plain_address(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.username or parts.password or parts.query:
        raise ValueError("expected an address without secrets; put the token into STEPLADDER_MILVUS_TOKEN")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"expected an address such as http://localhost:19530, found {uri!r}")
    return uri


class Layout(StrEnum):
    """How embeddings are stored and searched."""

    flat = "flat"
    hnsw = "hnsw"
    ivfpq = "ivfpq"


class EncoderConfig(Config):
    """An embedding model and its usage; None means the value of its model card."""

    #: minilm (installed with the extra `dense`), a model folder, or a hub name.
    encoder: Annotated[str, Field(min_length=1), AfterValidator(absolute_if_folder)] = "minilm"
    #: Prefixes of queries and passages.
    query_prefix: str | None = None
    passage_prefix: str | None = None
    #: Pooling of the token vectors.
    pooling: Pooling | None = None
    #: cosine normalizes the vectors, dot does not.
    similarity: Similarity | None = None
    #: Longer texts are truncated.
    max_tokens: int | None = Field(default=None, ge=8)


class DenseConfig(EncoderConfig):
    """An embedding index."""

    #: auto uses a GPU if available.
    device: str = "auto"
    #: For encoding passages: auto uses bf16 where the hardware is fast at it. Queries always use fp32.
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    #: Encoder batch size, in passages.
    batch: int | None = Field(default=None, ge=1)


class MilvusConfig(DenseConfig):
    """An embedding index in Milvus."""

    #: Address of a server (http://host:19530, or with a database http://host:19530/name). None: milvus-lite, in a file
    #: in the index folder. The token is read from the environment variable STEPLADDER_MILVUS_TOKEN.
    uri: Annotated[str, AfterValidator(_plain_address)] | None = None
    #: None generates a name. An existing Stepladder collection of that name is replaced.
    collection: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,254}$")
    #: FLAT is exact, HNSW fast, AUTOINDEX the server's choice. None: FLAT without a server, HNSW with one.
    milvus_index: Literal["FLAT", "HNSW", "AUTOINDEX"] | None = None


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
