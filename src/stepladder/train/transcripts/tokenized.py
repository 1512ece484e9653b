"""Tokenize a trajectory for training: token ids, the policy mask, and loss weights.

In: a `Trajectory`, with token ids or without, and an engine that tokenizes the segments without. Out: one `Example` per
context: the whole transcript, every segment in order. A new example starts only where a step restarts the context.
Prompt and environment tokens have weight 0. Policy tokens have weight 1, or more if they are part of a tag.

Stored ids are used unchanged. Generation ends right after a stop string, so there is no end-of-sequence token between
segments; one is appended to the transcript, for servers without stop strings.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any, Protocol

from stepladder.core.trace import Author, Segment, Trajectory
from stepladder.preferences.pair_checks import expect_known_tokens


class Encoder(Protocol):
    """The part of `InProcessEngine` that is needed here."""

    tokenizer: Any

    def encode(self, segment: Segment) -> Segment: ...

    def decode(self, tokens: Sequence[int], after: Sequence[int] = ()) -> str: ...


@dataclass(frozen=True, slots=True)
class Example:
    """One tokenized context, with one weight per token."""

    question_id: str
    tokens: tuple[int, ...]
    #: Loss weights: 0 unless the policy wrote the token.
    weights: tuple[float, ...]


def expect_token_ids(transcripts: Iterable[Trajectory], *, reencode: bool) -> None:
    """Raise if transcripts are from a server, so that their token ids are unknown, and may not be encoded here."""
    expect_known_tokens((step.written for each in transcripts for step in each.steps), reencode=reencode)


def tokenize_trajectory(trajectory: Trajectory, engine: Encoder, tag_weights: Mapping[str, float]) -> list[Example]:
    """One example per context of a trajectory; most agents have one."""
    return [_example(trajectory, segments, engine, tag_weights) for segments in split_contexts(trajectory)]


def split_contexts(trajectory: Trajectory) -> Iterator[tuple[Segment, ...]]:
    """The contexts of a trajectory: a new one starts where a step restarts the context."""
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
    weights: list[float] = []
    for segment in segments:
        encoded = engine.encode(segment)
        if segment.author is Author.POLICY:
            weights += token_weights(encoded.text, token_ends(encoded, tokens, engine), tag_weights)
        else:
            weights += [0.0] * len(encoded.tokens)
        tokens += encoded.tokens
    end = engine.tokenizer.eos_token_id
    if not segments[-1].tokens and end is not None:
        tokens.append(end)
        weights.append(1.0)
    return Example(trajectory.question.id, tuple(tokens), tuple(weights))


def token_ends(segment: Segment, before: Sequence[int], engine: Encoder) -> list[int]:
    """The end offset of every token of a segment in its text. `before`: the tokens before the segment."""
    pieces = [engine.decode((token,)) for token in segment.tokens]
    ends: list[int] = []
    if "".join(pieces) == segment.text:
        for piece in pieces:
            ends.append((ends[-1] if ends else 0) + len(piece))
        return ends
    # Characters of several tokens, or a tokenizer that treats the start of a text specially: decode every prefix of the
    # segment. An incomplete character decodes to U+FFFD and does not count yet.
    for count in range(1, len(segment.tokens) + 1):
        prefix = engine.decode(segment.tokens[:count], after=before)
        ends.append(len(commonprefix([prefix, segment.text])))  # noqa: RUF071 - characters are what counts
    return ends


def token_weights(text: str, ends: Sequence[int], tag_weights: Mapping[str, float]) -> list[float]:
    """One weight per token: that of the heaviest tag it overlaps, else 1.

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
