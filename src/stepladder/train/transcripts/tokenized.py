"""From a finished trajectory to what a model is trained on: token ids, which of them the policy wrote, and weights.

In: a `Trajectory`, with token ids or without, and an engine that encodes the segments which have none. Out: one
`Example` a context: the whole transcript, every segment in order. Only a step that restarts the context begins another
example. Prompt and environment tokens weigh exactly 0. Policy tokens weigh 1, or more where they spell a tag.

Stored ids are used as they are. Text without ids is encoded as an engine would read it. A generation stops right behind
a stop string, so between segments no end-of-sequence token follows; one is put at the very end of a transcript, for
servers that know no stop strings.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stepladder.core.trace import Author, Segment, Trajectory


class Encoder(Protocol):
    """What is needed of an engine; `InProcessEngine` has it."""

    tokenizer: Any

    def encode(self, segment: Segment) -> Segment: ...

    def decode(self, tokens: Sequence[int], after: Sequence[int] = ()) -> str: ...


@dataclass(frozen=True, slots=True)
class Example:
    """One context with the policy's words in it. The three tuples have one entry a token."""

    question_id: str
    tokens: tuple[int, ...]
    #: Whether the policy wrote the token.
    policy: tuple[bool, ...]
    #: How much the token counts in the loss: 0 unless the policy wrote it.
    weights: tuple[float, ...]


def tokenize_trajectory(trajectory: Trajectory, engine: Encoder, tag_weights: Mapping[str, float]) -> list[Example]:
    """One example for every context of a trajectory; mostly that is one."""
    return [_example(trajectory, segments, engine, tag_weights) for segments in split_contexts(trajectory)]


def split_contexts(trajectory: Trajectory) -> Iterator[tuple[Segment, ...]]:
    """The transcripts in a trajectory: a new one begins where a step restarts the context."""
    segments: list[Segment] = []
    for step in trajectory.steps:
        if step.restarts and segments:
            yield tuple(segments)
            segments.clear()
        segments += (*step.read, step.written)
    if segments:
        yield tuple(segments)


def _example(
    trajectory: Trajectory, segments: Sequence[Segment], engine: Encoder, tag_weights: Mapping[str, float]
) -> Example:
    tokens: list[int] = []
    policy: list[bool] = []
    weights: list[float] = []
    for segment in segments:
        encoded = engine.encode(segment)
        mine = segment.author is Author.POLICY
        if mine:
            weights += _segment_weights(encoded, tokens, engine, tag_weights)
        else:
            weights += [0.0] * len(encoded.tokens)
        policy += [mine] * len(encoded.tokens)
        tokens += encoded.tokens
    end = engine.tokenizer.eos_token_id
    if not segments[-1].tokens and end is not None:
        tokens.append(end)
        policy.append(True)
        weights.append(1.0)
    return Example(trajectory.question.id, tuple(tokens), tuple(policy), tuple(weights))


def _segment_weights(
    segment: Segment, before: Sequence[int], engine: Encoder, tag_weights: Mapping[str, float]
) -> list[float]:
    ends = token_ends(segment, before, engine)
    return token_weights(segment.text, ends, tag_weights)


def token_ends(segment: Segment, before: Sequence[int], engine: Encoder) -> list[int]:
    """For every token of a segment, where in its text the token ends. `before`: the tokens in front of the segment."""
    pieces = [engine.decode((token,)) for token in segment.tokens]
    ends: list[int] = []
    if "".join(pieces) == segment.text:
        for piece in pieces:
            ends.append((ends[-1] if ends else 0) + len(piece))
        return ends
    # Characters of several tokens, or a tokenizer that treats the beginning of a text in its own way: look at what each
    # beginning of the segment reads as. An unfinished character shows as U+FFFD and does not count yet.
    for count in range(1, len(segment.tokens) + 1):
        read = engine.decode(segment.tokens[:count], after=before)
        ends.append(_agreement(read, segment.text))
    return ends


def _agreement(a: str, b: str) -> int:
    """How many characters two texts have in common before they differ."""
    return next((place for place, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def token_weights(text: str, ends: Sequence[int], tag_weights: Mapping[str, float]) -> list[float]:
    """A weight a token: that of the heaviest tag whose characters it holds any of, else 1.

    >>> token_weights("so</step> x", [2, 4, 9, 11], {"</step>": 2})
    [1.0, 2.0, 2.0, 1.0]
    """
    weights = [1.0] * len(ends)
    for tag, weight in sorted(tag_weights.items(), key=lambda item: item[1]):
        start = text.find(tag)
        while start >= 0:
            stop = start + len(tag)
            for index, end in enumerate(ends):
                begin = ends[index - 1] if index else 0
                if begin < stop and end > start:
                    weights[index] = float(weight)
            start = text.find(tag, stop)
    return weights
