"""Configuration of the search server: limits on requests, queue and cache sizes."""

from typing import Self

from pydantic import Field, model_validator

from stepladder.retrieval.remote.protocol import MAX_QUERY_CHARACTERS
from stepladder.serve.http.http_config import HTTPConfig


class ServerConfig(HTTPConfig):
    """The limits of the search server, and its token."""

    #: Default passages per query.
    topk: int = Field(default=3, ge=1)
    max_topk: int = Field(default=100, ge=1)
    #: Queries per request.
    max_queries: int = Field(default=512, ge=1)
    #: Characters per query.
    max_characters: int = Field(default=MAX_QUERY_CHARACTERS, ge=1)
    max_body_bytes: int = Field(default=8 * 2**20, ge=1)
    #: Queued queries of all requests.
    max_waiting: int = Field(default=10_000, ge=1)
    #: LRU cache of results, limited by entries and bytes; 0 of either disables it.
    cache_entries: int = Field(default=10_000, ge=0)
    cache_bytes: int = Field(default=256 * 2**20, ge=0)

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.topk > self.max_topk:
            raise ValueError(f"topk is {self.topk}, above max_topk, {self.max_topk}")
        if self.max_waiting < self.max_queries:
            raise ValueError(f"max_waiting is {self.max_waiting}, below max_queries, {self.max_queries}")
        return self
