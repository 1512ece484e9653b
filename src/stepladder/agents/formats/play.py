"""`Play`: how the text of an agent's policy is read, and what follows a slip or a limit."""

from dataclasses import dataclass
from enum import StrEnum


class Format(StrEnum):
    """How the text of a policy is read."""

    STRICT = "strict"  # exactly the agent's format
    LENIENT = "lenient"  # the first complete action counts; text around it is allowed
    CONSTRAINED = "constrained"  # as lenient, and decoding is constrained to the agent's grammar


@dataclass(frozen=True, slots=True)
class Play:
    """The rules of an episode beyond an agent's format. The defaults are those of the strict format."""

    format: Format = Format.STRICT
    #: Slips (malformed steps) that are answered with a hint. One more ends the episode.
    max_format_errors: int = 0
    #: Ask once for the answer when a limit or the last slip would end the episode without one.
    force_answer: bool = False
    #: Most searches; None is no limit. An agent that has used them up has to answer.
    max_searches: int | None = None
    #: Lead a policy that was not trained on the format. Lenient: the environment opens its turns with the beginning of
    #: the format (`<step>`); not for chat servers, where that would be the end of the user's message. Constrained: no
    #: free thought where only one kind of action may follow.
    prime: bool = False

    def __post_init__(self) -> None:
        if self.max_format_errors < 0 or (self.max_searches is not None and self.max_searches < 1):
            raise ValueError(
                f"max_format_errors is {self.max_format_errors} and max_searches is {self.max_searches}; expected 0 or "
                "more, and 1 or more"
            )

    @property
    def opens_turns(self) -> bool:
        """Whether turns begin with text of the environment. A grammar needs none."""
        return self.prime and self.format is not Format.CONSTRAINED

    @classmethod
    def of(cls, format: Format | str) -> "Play":
        """The usual rules of a format: a strict episode ends with its first slip, others end with an answer.

        >>> Play.of("lenient")
        Play(format=<Format.LENIENT: 'lenient'>, max_format_errors=2, force_answer=True, max_searches=None, prime=False)
        """
        return cls() if format == Format.STRICT else cls(Format(format), max_format_errors=2, force_answer=True)
