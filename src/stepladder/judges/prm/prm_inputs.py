"""What a reward model reads: token ids, and the places in them where the scores of steps are read.

In: trajectories, or a state with a step. Out: `Reading`s. A step's score is read at its last token, so one pass over a
transcript scores every step in it: a causal model has seen there all that came before, and nothing of what follows.

Where a transcript outgrows the window, a step beyond it gets a reading of its own: as much as fits in front of its last
token. What is cut is history, always at the left, and never the newest words; such steps are counted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from stepladder.core.errors import BackendError
from stepladder.core.trace import Segment, Trajectory
from stepladder.engines.transformers.tokenization import Encoding


@dataclass(frozen=True, slots=True)
class Reading:
    """One row of a batch."""

    tokens: tuple[int, ...]
    #: Which steps end in it, the token at which each begins to be written, and the one at which it ends.
    steps: tuple[int, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]


class StepReader:
    """Turns steps into readings for one model."""

    def __init__(self, encoding: Encoding, window: int, padding: int | None, *, retokenize: bool = False) -> None:
        """`window`: most tokens of a reading. `padding`: the token that the model takes for no word at all.

        `retokenize`: text whose ids are of another vocabulary is encoded anew, instead of refused.
        """
        if window < 1:
            raise ValueError(f"a window of {window} tokens has room for nothing")
        self.encoding = encoding
        self.window = window
        self.padding = padding
        self.retokenize = retokenize
        #: Steps whose history did not fit and was cut, and segments that were encoded anew.
        self.cut = 0
        self.reencoded = 0

    def trajectory(self, trajectory: Trajectory) -> list[Reading]:
        """Every step of a trajectory, in as few readings as there are contexts."""
        readings: list[Reading] = []
        tokens: list[int] = []
        whole: list[tuple[int, int, int]] = []
        for number, step in enumerate(trajectory.steps):
            if step.restarts:
                readings += self._whole(tokens, whole)
                tokens, whole = [], []
            tokens += self._ids(step.read)
            start = len(tokens)
            tokens += self._ids((step.written,))
            end = self._end(tokens)
            if end < self.window:
                whole.append((number, min(start, end), end))
            else:
                readings.append(self._cut(tokens, number, start, end))
        return readings + self._whole(tokens, whole)

    def step(self, context: Sequence[Segment], written: Segment) -> Reading:
        """One step in its state."""
        tokens = self._ids(context)
        start = len(tokens)
        tokens += self._ids((written,))
        end = self._end(tokens)
        if end >= self.window:
            return self._cut(tokens, 0, start, end)
        return Reading(tuple(tokens[: end + 1]), (0,), (min(start, end),), (end,))

    def _whole(self, tokens: Sequence[int], steps: Sequence[tuple[int, int, int]]) -> list[Reading]:
        """The steps that fit, in one reading that ends with the last of them."""
        if not steps:
            return []
        numbers, starts, ends = zip(*steps)
        return [Reading(tuple(tokens[: ends[-1] + 1]), numbers, starts, ends)]

    def _cut(self, tokens: Sequence[int], number: int, start: int, end: int) -> Reading:
        self.cut += 1
        first = end + 1 - self.window
        start = min(max(start - first, 0), self.window - 1)
        return Reading(tuple(tokens[first : end + 1]), (number,), (start,), (self.window - 1,))

    def _end(self, tokens: Sequence[int]) -> int:
        """The last token that is a word. Models of this kind take the score there, and not at the end of a turn."""
        for place in range(len(tokens) - 1, -1, -1):
            if tokens[place] != self.padding:
                return place
        raise BackendError("a step without a single token cannot be scored")

    def _ids(self, segments: Iterable[Segment]) -> list[int]:
        return [token for segment in segments for token in self._encoded(segment).tokens]

    def _encoded(self, segment: Segment) -> Segment:
        if segment.tokens and segment.vocabulary != self.encoding.vocabulary:
            if not self.retokenize:
                raise BackendError(
                    f"a transcript has token ids of another vocabulary ({segment.vocabulary or 'unnamed'}) than the "
                    f"reward model's ({self.encoding.vocabulary}): the policy has another tokenizer. Take a reward "
                    "model that was trained from this policy, or set retokenize to true to encode the text anew"
                )
            self.reencoded += 1
            segment = replace(segment, tokens=(), logprobs=(), vocabulary="")
        return self.encoding.encode(segment)
