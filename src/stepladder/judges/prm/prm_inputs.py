"""The inputs of a process reward model: token ids, and the positions at which the steps end.

In: trajectories, or a state with one step. Out: `PRMInput`s. A step is scored at its last token, so one forward pass
over a transcript scores every step in it: attention is causal, so nothing after the step can influence its score.

If a transcript exceeds the context window, every step beyond it gets its own input that ends with the step. Its history
is truncated on the left; such steps are counted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

from stepladder.core.errors import BackendError
from stepladder.core.trace import Segment, Trajectory
from stepladder.engines.transformers.tokenization import Encoding


@dataclass(frozen=True, slots=True)
class PRMInput:
    """One sequence of a batch."""

    tokens: tuple[int, ...]
    #: The steps that end in it, and the positions of the first and the last token of each.
    steps: tuple[int, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(eq=False)
class PRMInputBuilder:
    """Builds the inputs of one model."""

    encoding: Encoding
    #: Maximum tokens of an input.
    window: int
    #: The padding token, which never ends a step.
    padding: int | None
    _: KW_ONLY
    #: Encode the text again where token ids are of another vocabulary, instead of raising an error.
    retokenize: bool = False
    #: The number of steps whose history was truncated, and of segments that were encoded again.
    truncated: int = field(default=0, init=False)
    retokenized: int = field(default=0, init=False)

    def trajectory(self, trajectory: Trajectory) -> list[PRMInput]:
        """The inputs for every step of a trajectory: one per context, plus one per step beyond the window."""
        return self._inputs((step.restarts, step.read, step.written) for step in trajectory.steps)

    def step(self, context: Sequence[Segment], written: Segment) -> PRMInput:
        """The input for one step in its state."""
        return self._inputs([(False, context, written)])[0]

    def _inputs(self, steps: Iterable[tuple[bool, Sequence[Segment], Segment]]) -> list[PRMInput]:
        """The inputs for steps: whether each restarts the context, what it adds to the context, what was written."""
        inputs: list[PRMInput] = []
        tokens: list[int] = []
        fitting: list[tuple[int, int, int]] = []
        for number, (restarts, read, written) in enumerate(steps):
            if restarts:
                inputs += self._whole(tokens, fitting)
                tokens, fitting = [], []
            tokens += self._ids(read)
            start = len(tokens)
            tokens += self._ids((written,))
            end = self._end(tokens)
            if end < self.window:
                fitting.append((number, min(start, end), end))
            else:
                inputs.append(self._truncated(tokens, number, start, end))
        return inputs + self._whole(tokens, fitting)

    def _whole(self, tokens: Sequence[int], steps: Sequence[tuple[int, int, int]]) -> list[PRMInput]:
        """One input with all steps that fit; it ends with the last of them."""
        if not steps:
            return []
        numbers, starts, ends = zip(*steps)
        return [PRMInput(tuple(tokens[: ends[-1] + 1]), numbers, starts, ends)]

    def _truncated(self, tokens: Sequence[int], number: int, start: int, end: int) -> PRMInput:
        self.truncated += 1
        first = end + 1 - self.window
        start = min(max(start - first, 0), self.window - 1)
        return PRMInput(tuple(tokens[first : end + 1]), (number,), (start,), (self.window - 1,))

    def _end(self, tokens: Sequence[int]) -> int:
        """The last token that is not padding: sequence classification models are scored there."""
        for position in range(len(tokens) - 1, -1, -1):
            if tokens[position] != self.padding:
                return position
        raise BackendError("a step without a single token cannot be scored")

    def _ids(self, segments: Iterable[Segment]) -> list[int]:
        return [token for segment in segments for token in self._encoded(segment).tokens]

    def _encoded(self, segment: Segment) -> Segment:
        if segment.tokens and segment.vocabulary != self.encoding.vocabulary:
            if not self.retokenize:
                raise BackendError(
                    f"a transcript has token ids of another vocabulary ({segment.vocabulary or 'unnamed'}) than the "
                    f"reward model's ({self.encoding.vocabulary}): the policy has another tokenizer. Take a reward "
                    "model that was trained from this policy, or set retokenize to true to encode the text again"
                )
            self.retokenized += 1
            segment = replace(segment, tokens=(), logprobs=(), vocabulary="")
        return self.encoding.encode(segment)
