"""What can be set of a server of an agent: what a request may ask for, how many may wait, who may ask."""

from pydantic import Field, SecretStr

from stepladder.core.config import Config


class AgentServerConfig(Config):
    """The limits of a server, and its token."""

    #: The name under which clients ask for the agent.
    model: str = Field(default="stepladder", min_length=1, max_length=200)
    #: Characters a question.
    max_characters: int = Field(default=4000, ge=1)
    #: Bytes a request, with the messages before the question.
    max_body_bytes: int = Field(default=2**20, ge=1)
    #: Questions that are played at once.
    max_running: int = Field(default=64, ge=1)
    #: Questions that may wait to be played.
    max_waiting: int = Field(default=256, ge=1)
    #: Passages that a client of the search tool may ask for.
    max_topk: int = Field(default=20, ge=1)
    #: Seconds in which the whole body of a request must come.
    body_seconds: float = Field(default=30.0, gt=0)
    #: Seconds in which a question must be answered, waiting included.
    answer_seconds: float = Field(default=600.0, gt=0)
    #: Seconds that requests under way get when the server is asked to end.
    drain_seconds: float = Field(default=30.0, ge=0)
    #: Clients must send it as `Authorization: Bearer TOKEN`.
    token: SecretStr | None = None
