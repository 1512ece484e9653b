"""What can be set of a search server: what a request may ask for, how many may wait, who may ask."""

from typing import Self

from pydantic import Field, SecretStr, model_validator

from stepladder.core.config import Config

#: Longer queries are a policy that lost the thread; encoders read a fraction of this.
MAX_QUERY_CHARACTERS = 8192


class ServerConfig(Config):
    """The limits of a server, and its token."""

    #: Passages a query, where the request does not say.
    topk: int = Field(default=3, ge=1)
    max_topk: int = Field(default=100, ge=1)
    #: Queries a request.
    max_queries: int = Field(default=512, ge=1)
    #: Characters a query.
    max_characters: int = Field(default=MAX_QUERY_CHARACTERS, ge=1)
    #: Bytes a request.
    max_body_bytes: int = Field(default=8 * 2**20, ge=1)
    #: Queries of all requests that may wait for a search.
    max_waiting: int = Field(default=10_000, ge=1)
    #: Seconds in which the whole body of a request must come.
    body_seconds: float = Field(default=30.0, gt=0)
    #: Results that are kept, by their number and their bytes; 0 of either keeps none.
    cache_entries: int = Field(default=10_000, ge=0)
    cache_bytes: int = Field(default=256 * 2**20, ge=0)
    #: Seconds that requests under way get when the server is asked to end.
    drain_seconds: float = Field(default=30.0, ge=0)
    #: Clients must send it as `Authorization: Bearer TOKEN`.
    token: SecretStr | None = None

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.topk > self.max_topk:
            raise ValueError(f"topk is {self.topk}, which max_topk, {self.max_topk}, forbids")
        if self.max_waiting < self.max_queries:
            raise ValueError(f"max_waiting is {self.max_waiting}: no room for a request of {self.max_queries} queries")
        return self
