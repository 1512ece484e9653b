"""Configuration of the agent server: limits on requests, queue sizes, timeouts."""

from pydantic import Field

from stepladder.serve.http.http_config import HTTPConfig


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
    max_topk: int = Field(default=20, ge=1)
    #: Timeout in seconds for an answer, including the time in the queue.
    answer_seconds: float = Field(default=600.0, gt=0)
