"""Encode all passages into one vector file, shard by shard, with resume.

In: passages and an encoder. Out: `vectors.npy`, one row per passage, memory-mapped. A checkpoint is written after each
shard, and the next attempt resumes after it. Shards start at fixed positions and are encoded in the same batches every
time, so the result does not depend on interruptions, nor on who encodes (`encoding_with`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file, reserve_space, sync
from stepladder.core.memory import format_bytes
from stepladder.core.trace import Passage
from stepladder.retrieval.base import ProgressCallback
from stepladder.retrieval.corpus.passage_store import Passages
from stepladder.retrieval.index.encoder import Encoder, Vectors

VECTORS = "vectors.npy"
_CHECKPOINT = "encoded.txt"

#: Passages per shard: the most that an interruption loses, half a minute on a CPU.
SHARD = 4096
#: Batches that are sorted by length together.
_BATCHES = 32
#: Approximate memory per passage during encoding, in bytes, without its vector.
_BYTES_PER_PASSAGE = 8_000

#: Minimum cosine similarity of two encodings of the same text by the same encoder.
MIN_COSINE = 0.98

#: One vector per row, as stored on disk.
StoredVectors = npt.NDArray[np.float32] | npt.NDArray[np.float16]
#: Encodes groups of passages elsewhere, as the encoder would: vectors with the positions of their groups, in any order.
GroupEncoder = Callable[[Encoder, Sequence[Sequence[Passage]]], Iterable[tuple[int, Vectors]]]

_elsewhere: ContextVar[GroupEncoder | None] = ContextVar("elsewhere", default=None)
#: Shards that are encoded together elsewhere: enough for many workers.
_SHARDS_ELSEWHERE = 8


@contextmanager
def encoding_with(encode: GroupEncoder) -> Iterator[None]:
    """Passages are encoded by this function, and not by the encoder in this process."""
    before = _elsewhere.set(encode)
    try:
        yield
    finally:
        _elsewhere.reset(before)


def encode_passages(
    passages: Passages,
    encoder: Encoder,
    folder: Path,
    scratch: Path,
    dtype: type[np.float32] | type[np.float16],
    memory: int,
    progress: ProgressCallback,
) -> StoredVectors:
    """Encode the passages into a file in the folder, with the checkpoint in the scratch folder."""
    file, checkpoint = folder / VECTORS, scratch / _CHECKPOINT
    needed = SHARD * (_BYTES_PER_PASSAGE + 12 * encoder.dimensions)
    if memory < needed:
        raise StepladderError(
            f"encoding needs about {format_bytes(needed)} in addition to the model, and the memory limit is "
            f"{format_bytes(memory)}: raise it (--memory)"
        )
    done = _done(file, checkpoint, passages, encoder)
    if not done:
        np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=(len(passages), encoder.dimensions))  # type: ignore[no-untyped-call]
    reserve_space(file)
    vectors = np.load(file, mmap_mode="r+")
    progress("Encoding passages", done, len(passages))
    span = SHARD if _elsewhere.get() is None else SHARD * _SHARDS_ELSEWHERE
    for start in range(done, len(passages), span):
        end, count = min(start + span, len(passages)), start
        for some, found in _encoded(passages, encoder, range(start, end)):
            vectors[some.start : some.stop] = found
            count += len(some)
            if count < end:
                progress("Encoding passages", count, len(passages))
        vectors.flush()
        sync(file)
        with atomic_file(checkpoint) as written:
            written.write(str(end))
        progress("Encoding passages", end, len(passages))
    return open_vectors(folder)


def _encoded(passages: Passages, encoder: Encoder, span: range) -> Iterator[tuple[range, Vectors]]:
    """The vectors of some passages, group by group. A group is encoded at once, and never crosses a shard."""
    size = _BATCHES * encoder.batch
    groups = [
        range(first, min(first + size, shard + SHARD, span.stop))
        for shard in range(span.start, span.stop, SHARD)
        for first in range(shard, min(shard + SHARD, span.stop), size)
    ]
    if (encode := _elsewhere.get()) is not None:
        for index, found in encode(encoder, [[passages[position] for position in group] for group in groups]):
            yield groups[index], found
        return
    for group in groups:
        yield group, encoder.passages([passages[position] for position in group])


def reuse_vectors(
    rows: Iterable[Vectors], count: int, total: int, folder: Path, scratch: Path, dtype: type[np.float32 | np.float16]
) -> None:
    """Write the `count` vectors of another index as the first of `total`: `encode_passages` continues after them."""
    checkpoint, written = scratch / _CHECKPOINT, None
    if checkpoint.exists():
        return
    for position, row in enumerate(rows):
        if written is None:
            shape = (total, len(row))
            written = np.lib.format.open_memmap(folder / VECTORS, mode="w+", dtype=dtype, shape=shape)  # type: ignore[no-untyped-call]
            reserve_space(folder / VECTORS)
        written[position] = row
    if written is not None:
        written.flush()
        sync(folder / VECTORS)
        with atomic_file(checkpoint) as file:
            file.write(str(count))


def _done(file: Path, checkpoint: Path, passages: Passages, encoder: Encoder) -> int:
    """The number of valid vectors from an earlier attempt with this encoder."""
    if not checkpoint.exists():
        return 0
    try:
        done, vectors = int(checkpoint.read_text(encoding="utf-8")), np.load(file, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return 0
    if vectors.shape != (len(passages), encoder.dimensions) or not 0 < done <= len(vectors):
        return 0
    last = np.asarray(vectors[done - 1], dtype=np.float32)
    return done if same_direction(encoder.passages([passages[done - 1]])[0], last) else 0


def same_direction(one: Vectors, other: Vectors) -> bool:
    """Whether two vectors can be encodings of the same text by the same encoder; bf16 changes the cosine by 1e-3."""
    return float(one @ other) >= MIN_COSINE * float(np.linalg.norm(one) * np.linalg.norm(other)) > 0


def open_vectors(folder: Path) -> StoredVectors:
    """The memory-mapped vectors in a folder."""
    # A plain array view: slicing a memmap is slow.
    return np.asarray(np.load(folder / VECTORS, mmap_mode="r"))
