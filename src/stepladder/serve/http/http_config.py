"""Configuration that every HTTP server has: limits on clients, shutdown, the token."""

from pydantic import Field, SecretStr

from stepladder.core.config import Config


class HTTPConfig(Config):
    """Subclass it with the limits of a server."""

    #: Bytes per request.
    max_body_bytes: int = Field(default=2**20, ge=1)
    #: Seconds to receive the body of a request.
    body_seconds: float = Field(default=30.0, gt=0)
    #: Seconds for requests in progress when the server shuts down.
    drain_seconds: float = Field(default=30.0, ge=0)
    #: Clients must send it as `Authorization: Bearer TOKEN`.
    token: SecretStr | None = None
