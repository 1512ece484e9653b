"""The inputs of a process reward model: token ids, and the positions at which the steps end.

In: trajectories, or a state with one step. Out: `PRMInput`s. A step is scored at its last token, so one forward pass
over a transcript scores every step in it: attention is causal, so nothing after the step can influence its score.

With `after_retrieval` a query is scored at the last token of the passages that it found, as in ProRAG: the segment of
the environment that follows it. In agents whose prompts start anew at every step, the passages are put behind the
query. A query that ends its episode at a limit has no passages and is scored where it ends.

If a transcript exceeds the context window, every step beyond it gets its own input that ends with the step. Its history
is truncated on the left; such steps are counted.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import NamedTuple

from stepladder.agents import agent_named
from stepladder.agents.base import environment_segment, render_passages
from stepladder.core.errors import BackendError
from stepladder.core.trace import ActionKind, Author, Segment, Trajectory
from stepladder.engines.transformers.tokenization import Encoding
from stepladder.explore.episode import new_segments


@dataclass(frozen=True, slots=True)
class PRMInput:
    """One sequence of a batch."""

    tokens: tuple[int, ...]
    #: The steps that are scored in it, the positions of the scores, and those of the other tokens of each step.
    steps: tuple[int, ...]
    ends: tuple[int, ...]
    others: tuple[range, ...]


class _Turn(NamedTuple):
    """A step, as the model reads it."""

    #: Whether the context starts anew, and what is added to it before the step.
    restarts: bool
    read: Sequence[Segment]
    written: Segment
    #: What the step is scored after: the passages of a query, or nothing.
    found: Sequence[Segment] = ()


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
    #: Score queries after their retrieval.
    after_retrieval: bool = False
    #: The number of steps whose history was truncated, and of segments that were encoded again.
    truncated: int = field(default=0, init=False)
    retokenized: int = field(default=0, init=False)

    def trajectory(self, trajectory: Trajectory) -> list[PRMInput]:
        """The inputs for every step of a trajectory: one per context, plus one per step beyond the window."""
        return self._inputs(self._turns(trajectory))

    def step(self, context: Sequence[Segment], written: Segment) -> PRMInput:
        """The input for one step in its state, scored where it ends."""
        return self._inputs([_Turn(False, context, written)])[0]

    def _turns(self, trajectory: Trajectory) -> Iterator[_Turn]:
        """The steps of a trajectory. What a query is scored after is not read again by the next step."""
        known = 0
        for number, step in enumerate(trajectory.steps):
            read = step.read[known:]
            asks = self.after_retrieval and step.action.kind is ActionKind.QUERY
            found, known = _observation(trajectory, number) if asks else ((), 0)
            yield _Turn(step.restarts, read, step.written, found)

    def _inputs(self, turns: Iterable[_Turn]) -> list[PRMInput]:
        """The inputs for steps."""
        inputs: list[PRMInput] = []
        tokens: list[int] = []
        fitting: list[tuple[int, int, range]] = []
        for number, turn in enumerate(turns):
            if turn.restarts:
                inputs += self._whole(tokens, fitting)
                tokens, fitting = [], []
            tokens += self._ids(turn.read)
            start = len(tokens)
            tokens += self._ids((turn.written,))
            last = self._end(tokens)
            tokens += self._found_ids(turn)
            end = self._end(tokens)
            others = range(start, last + (end > last))  # the token that is scored is none of them
            if end < self.window:
                fitting.append((number, end, others))
            else:
                inputs.append(self._truncated(tokens, number, end, others))
        return inputs + self._whole(tokens, fitting)

    def _whole(self, tokens: Sequence[int], steps: Sequence[tuple[int, int, range]]) -> list[PRMInput]:
        """One input with all steps that fit; it ends with the last of them."""
        if not steps:
            return []
        numbers, ends, others = zip(*steps)
        return [PRMInput(tuple(tokens[: ends[-1] + 1]), numbers, ends, others)]

    def _truncated(self, tokens: Sequence[int], number: int, end: int, others: range) -> PRMInput:
        self.truncated += 1
        first = end + 1 - self.window
        kept = range(max(others.start - first, 0), max(others.stop - first, 0))
        return PRMInput(tuple(tokens[first : end + 1]), (number,), (self.window - 1,), (kept,))

    def _end(self, tokens: Sequence[int]) -> int:
        """The last token that is not padding: sequence classification models are scored there."""
        for position in range(len(tokens) - 1, -1, -1):
            if tokens[position] != self.padding:
                return position
        raise BackendError("a step without a single token cannot be scored")

    def _found_ids(self, turn: _Turn) -> list[int]:
        """The token ids of what a step is scored after, as an engine encodes it after what was written."""
        ids: list[int] = []
        end_token = self.encoding.tokenizer.eos_token_id
        for segment in turn.found:
            answer = self.encoding.encode_user_turn(segment, self._encoded(turn.written), {end_token})
            ids += (self._encoded(segment) if answer is None else answer).tokens
        return ids

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


def _observation(trajectory: Trajectory, number: int) -> tuple[tuple[Segment, ...], int]:
    """What shows the passages of a query, and how many segments of the next step's `read` are part of it.

    The newest query has no next step: its agent renders what the next one would read.
    """
    query, following = trajectory.steps[number], trajectory.steps[number + 1 : number + 2]
    if not following and trajectory.stop is not None and not query.passages:  # ended at a limit: never retrieved
        return (), 0
    if following:
        read, restarts = following[0].read, following[0].restarts
    else:
        read, restarts = new_segments(trajectory, agent_named(trajectory.agent).render(trajectory))
    if restarts:
        return (environment_segment(f"\n{render_passages(query.passages)}\n"),), 0
    shown = next((count for count, each in enumerate(read, start=1) if each.author is Author.ENVIRONMENT), 0)
    return read[:shown], shown
