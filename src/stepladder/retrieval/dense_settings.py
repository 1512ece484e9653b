"""What can be set of an index of embeddings."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from stepladder.models import absolute_if_folder
from stepladder.settings import Settings


class Layout(StrEnum):
    """How embeddings lie on disk, and how the nearest of them are found."""

    flat = "flat"
    hnsw = "hnsw"
    ivfpq = "ivfpq"


class EncoderSettings(Settings):
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


class DenseSettings(EncoderSettings):
    """An index of embeddings."""

    #: auto takes a GPU where there is one.
    device: str = "auto"
    #: In which passages are encoded: auto takes bf16 where the processor is quick at it. Queries are always fp32.
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    #: Passages in one batch of the encoder.
    batch: int | None = Field(default=None, ge=1)
