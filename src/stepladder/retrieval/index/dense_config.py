"""What can be set of an index of embeddings."""

from enum import StrEnum
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from stepladder.core.config import Config
from stepladder.models import absolute_if_folder


def _plain_address(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.username or parts.password or parts.query:
        raise ValueError("an address without secrets is expected; put the token into STEPLADDER_MILVUS_TOKEN")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"expected an address such as http://localhost:19530, found {uri!r}")
    return uri


class Layout(StrEnum):
    """How embeddings lie on disk, and how the nearest of them are found."""

    flat = "flat"
    hnsw = "hnsw"
    ivfpq = "ivfpq"


class EncoderConfig(Config):
    """A model that makes embeddings, and how it is used; what is None is as its card says."""

    #: minilm (comes with the extra `dense`), a model folder, or a hub name.
    encoder: Annotated[str, Field(min_length=1), AfterValidator(absolute_if_folder)] = "minilm"
    #: What is put before queries and passages.
    query_prefix: str | None = None
    passage_prefix: str | None = None
    #: How the vectors of the tokens become one.
    pooling: Literal["mean", "cls", "last"] | None = None
    #: cosine makes all vectors equally long, dot leaves them as they are.
    similarity: Literal["cosine", "dot"] | None = None
    #: Longer texts are cut.
    max_tokens: int | None = Field(default=None, ge=8)


class DenseConfig(EncoderConfig):
    """An index of embeddings."""

    #: auto takes a GPU where there is one.
    device: str = "auto"
    #: In which passages are encoded: auto takes bf16 where the processor is quick at it. Queries are always fp32.
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    #: Passages in one batch of the encoder.
    batch: int | None = Field(default=None, ge=1)


class MilvusConfig(DenseConfig):
    """An index of embeddings in Milvus."""

    #: Address of a server (http://host:19530, or with a database http://host:19530/name). None: milvus-lite, in a file
    #: of the index folder. A token comes from the environment variable STEPLADDER_MILVUS_TOKEN.
    uri: Annotated[str, AfterValidator(_plain_address)] | None = None
    #: None makes up a name. A collection of Stepladder that has the name is replaced.
    collection: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,254}$")
    #: FLAT is exact, HNSW quick, AUTOINDEX what the server likes. None: FLAT without a server, HNSW with one.
    milvus_index: Literal["FLAT", "HNSW", "AUTOINDEX"] | None = None
