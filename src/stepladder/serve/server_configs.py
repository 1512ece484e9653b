"""Configurations of the servers: limits on requests, queue and cache sizes, timeouts."""

from typing import Self

from pydantic import Field, SecretStr, model_validator

from stepladder.core.config import Config
from stepladder.retrieval.remote.protocol import MAX_QUERY_CHARACTERS


class HTTPConfig(Config):
    """Subclass it with the limits of a server."""

    #: Open connections. Above it, those that have waited longest for their clients are closed.
    max_connections: int = Field(default=2000, ge=1)
    #: Bytes of the request line and headers.
    max_header_bytes: int = Field(default=2**16, ge=1)
    #: Seconds to receive the headers of a request, and for a new connection to send anything.
    header_seconds: float = Field(default=10.0, gt=0)
    #: Seconds between requests on a connection: longer than clients keep it, so that none is closed during a request.
    idle_seconds: float = Field(default=75.0, gt=0)
    #: Bytes per request.
    max_body_bytes: int = Field(default=2**20, ge=1)
    #: Seconds to receive the body of a request, and for clients to read a response.
    body_seconds: float = Field(default=30.0, gt=0)
    #: Seconds for requests in progress when the server shuts down.
    drain_seconds: float = Field(default=30.0, ge=0)
    #: Clients must send it as `Authorization: Bearer TOKEN`.
    token: SecretStr | None = None


class AgentServerConfig(HTTPConfig):
    """The limits of the agent server, and its token."""

    #: The model name that clients use.
    model: str = Field(default="stepladder", min_length=1, max_length=200)
    #: Maximum characters of a question.
    max_characters: int = Field(default=4000, ge=1)
    #: Maximum number of questions that run at once.
    max_running: int = Field(default=64, ge=1)
    #: Maximum number of questions that wait.
    max_waiting: int = Field(default=256, ge=1)
    #: Maximum number of passages of the search tool.
    max_topk: int = Field(default=100, ge=1)
    #: Timeout in seconds for an answer, including the time in the queue.
    answer_seconds: float = Field(default=600.0, gt=0)


class StudioConfig(HTTPConfig):
    """The limits of the studio, and its token."""

    #: Open connections. Every open page keeps one.
    max_connections: int = Field(default=200, ge=1)
    #: Seconds for requests in progress when the server shuts down. Pages that are open do not hold it up.
    drain_seconds: float = Field(default=5.0, ge=0)
    #: Seconds between two looks at the files of a run that somebody watches.
    refresh_seconds: float = Field(default=1.0, gt=0)
    #: Policies of the playground that are loaded at once; two can be compared.
    max_policies: int = Field(default=2, ge=1)
    #: Maximum characters of a question.
    max_characters: int = Field(default=4000, ge=1)
    #: Timeout in seconds for an answer.
    answer_seconds: float = Field(default=600.0, gt=0)


class ServerConfig(HTTPConfig):
    """The limits of the search server, and its token."""

    #: Default passages per query.
    topk: int = Field(default=3, ge=1)
    max_topk: int = Field(default=100, ge=1)
    #: Queries per request. Search-R1 sends those of a whole GRPO batch at once: 512 questions x 5 rollouts.
    max_queries: int = Field(default=4096, ge=1)
    #: Characters per query. Longer ones are truncated, since one in a batch must not fail all others.
    max_characters: int = Field(default=MAX_QUERY_CHARACTERS, ge=1)
    #: Bytes per request: `max_queries` queries of `max_characters` ASCII characters.
    max_body_bytes: int = Field(default=32 * 2**20, ge=1)
    #: Queued queries of all requests.
    max_waiting: int = Field(default=20_480, ge=1)
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
