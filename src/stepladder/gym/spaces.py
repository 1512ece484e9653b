"""A text space: any Unicode string up to a length.

Gymnasium's own `Text` has a list of characters and rejects strings with any other; policies and documents may contain
all of Unicode.
"""

import string
from typing import Any, Never

from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Text
from gymnasium.vector.utils import create_shared_memory

#: Samples use these characters: most of Unicode is unassigned.
_DRAWN = string.ascii_letters + string.digits + string.punctuation + " \n"
#: Maximum length of samples.
_LONGEST_SAMPLE = 100


class AnyText(Text):
    """Strings of at most `max_length` characters, including the empty one.

    >>> space = AnyText(10, seed=0)
    >>> "\N{SNOWMAN}" in space, "" in space, "01234567890" in space, 5 in space, space.sample() in space
    (True, True, False, False, True)
    """

    def __init__(self, max_length: int, *, seed: int | None = None) -> None:
        super().__init__(max_length, min_length=0, charset=_DRAWN, seed=seed)

    def contains(self, x: Any) -> bool:
        """Whether `x` is a string and not too long."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Random printable text of at most 100 characters, unless a mask sets the length (see `Text`)."""
        if mask is None and probability is None:
            mask = int(self.np_random.integers(min(self.max_length, _LONGEST_SAMPLE) + 1)), None
        return super().sample(mask, probability)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText) and self.max_length == other.max_length

    __hash__ = None  # type: ignore[assignment] # like every space of Gymnasium

    def __repr__(self) -> str:
        return f"AnyText({self.max_length})"

    @property
    def is_np_flattenable(self) -> bool:
        """False: flattening needs a list of all characters."""
        return False


@create_shared_memory.register(AnyText)
def _no_shared_memory(space: AnyText, n: int = 1, ctx: Any = None) -> Never:  # noqa: ARG001
    # Gymnasium reads texts from shared memory only once, before the first reset.
    raise CustomSpaceError("texts cannot be in shared memory: use vector_kwargs={'shared_memory': False}")
