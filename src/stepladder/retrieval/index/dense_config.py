"""The settings of embedding indexes."""

from enum import StrEnum
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from stepladder.core.config import Config
from stepladder.models import absolute_if_folder


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
    pooling: Literal["mean", "cls", "last"] | None = None
    #: cosine normalizes the vectors, dot does not.
    similarity: Literal["cosine", "dot"] | None = None
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
