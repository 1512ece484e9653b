"""The vectors of all passages in one file, made shard by shard: work of hours that can be cut off at any time.

In: passages and an encoder. Out: `vectors.npy`, one row a passage, mapped into memory. After each shard is on disk, a
note says so, and a next attempt begins behind it. Shards begin at fixed positions and are encoded in the same batches
whenever that happens, so the file does not depend on how often the work was cut off.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file, sync
from stepladder.retrieval.base import ProgressCallback
from stepladder.retrieval.corpus.passage_store import Passages
from stepladder.retrieval.index.encoder import Encoder, Vectors
from stepladder.retrieval.index.memory_budget import format_bytes

VECTORS = "vectors.npy"
_NOTE = "encoded.txt"

#: Passages a shard: what is lost at most when the work is cut off, half a minute on a CPU.
SHARD = 4096
#: Batches that are sorted by length together.
_BATCHES = 32
#: A passage on its way through a tokenizer and back takes about so many bytes beside its vector.
_BYTES_A_PASSAGE = 8_000

#: The least cosine of two vectors that one encoder makes of one text.
_SAME = 0.98

#: One vector a row, as they lie on disk.
StoredVectors = npt.NDArray[np.float32] | npt.NDArray[np.float16]


def encode_passages(
    passages: Passages,
    encoder: Encoder,
    folder: Path,
    notes: Path,
    dtype: type[np.float32] | type[np.float16],
    memory: int,
    progress: ProgressCallback,
) -> StoredVectors:
    """The vectors of the passages, in a file of the folder; how far it came stands in the notes."""
    file, note = folder / VECTORS, notes / _NOTE
    needed = SHARD * (_BYTES_A_PASSAGE + 12 * encoder.dimensions)
    if memory < needed:
        raise StepladderError(
            f"encoding takes about {format_bytes(needed)} beside the model, and the memory that was allowed is "
            f"{format_bytes(memory)}: allow more (--memory)"
        )
    done = _done(file, note, passages, encoder)
    if not done:
        np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=(len(passages), encoder.dimensions))  # type: ignore[no-untyped-call]
    vectors = np.load(file, mmap_mode="r+")
    progress("Encoding passages", done, len(passages))
    for start in range(done, len(passages), SHARD):
        end = min(start + SHARD, len(passages))
        for first in range(start, end, _BATCHES * encoder.batch):
            some = range(first, min(first + _BATCHES * encoder.batch, end))
            vectors[some.start : some.stop] = encoder.passages([passages[position] for position in some])
            if some.stop < end:
                progress("Encoding passages", some.stop, len(passages))
        vectors.flush()
        sync(file)
        with atomic_file(note) as written:
            written.write(str(end))
        progress("Encoding passages", end, len(passages))
    return open_vectors(folder)


def _done(file: Path, note: Path, passages: Passages, encoder: Encoder) -> int:
    """How many vectors an earlier attempt has left that are whole and of this encoder."""
    if not note.exists():
        return 0
    try:
        done, vectors = int(note.read_text(encoding="utf-8")), np.load(file, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return 0
    if vectors.shape != (len(passages), encoder.dimensions) or not 0 < done <= len(vectors):
        return 0
    last = np.asarray(vectors[done - 1], dtype=np.float32)
    return done if same_direction(encoder.passages([passages[done - 1]])[0], last) else 0


def same_direction(one: Vectors, other: Vectors) -> bool:
    """Whether two vectors can be of the same text by the same encoder; bf16 alone costs 1e-3 of the cosine."""
    return float(one @ other) >= _SAME * float(np.linalg.norm(one) * np.linalg.norm(other)) > 0


def open_vectors(folder: Path) -> StoredVectors:
    """The vectors in a folder, mapped into memory."""
    # A plain view of the mapped memory: slicing a memmap is slow.
    return np.asarray(np.load(folder / VECTORS, mmap_mode="r"))
