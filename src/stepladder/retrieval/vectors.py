"""The vectors of all passages in one file, made shard by shard: work of hours that can be cut off at any time.

In: passages and an encoder. Out: `vectors.npy`, one row a passage, mapped into memory. After each shard is on disk, a
note says so, and a next attempt begins behind it. Shards begin at fixed positions and are encoded in the same batches
whenever that happens, so the file does not depend on how often the work was cut off.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepladder.errors import StepladderError
from stepladder.files import atomic_file, sync
from stepladder.retrieval.base import Watch
from stepladder.retrieval.encoder import Encoder
from stepladder.retrieval.memory import shown_bytes
from stepladder.retrieval.passages import Passages

VECTORS = "vectors.npy"
_NOTE = "encoded.txt"

#: Passages a shard: what is lost at most when the work is cut off, half a minute on a CPU.
SHARD = 4096
#: Batches that are sorted by length together.
_BATCHES = 32
#: A passage on its way through a tokenizer and back takes about so many bytes beside its vector.
_BYTES_A_PASSAGE = 8_000

#: One vector a row, as they lie on disk.
StoredVectors = npt.NDArray[np.float32] | npt.NDArray[np.float16]


def encode_passages(
    passages: Passages,
    encoder: Encoder,
    folder: Path,
    notes: Path,
    dtype: type[np.float32] | type[np.float16],
    memory: int,
    watch: Watch,
) -> StoredVectors:
    """The vectors of the passages, in a file of the folder; how far it came stands in the notes."""
    file, note = folder / VECTORS, notes / _NOTE
    needed = SHARD * (_BYTES_A_PASSAGE + 12 * encoder.dimensions)
    if memory < needed:
        raise StepladderError(
            f"encoding takes about {shown_bytes(needed)} beside the model, and the memory that was allowed is "
            f"{shown_bytes(memory)}: allow more (--memory)"
        )
    done = int(note.read_text(encoding="utf-8")) if note.exists() else 0
    if not done:
        np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=(len(passages), encoder.dimensions))  # type: ignore[no-untyped-call]
    vectors = np.load(file, mmap_mode="r+")
    watch("Encoding passages", done, len(passages))
    for start in range(done, len(passages), SHARD):
        end = min(start + SHARD, len(passages))
        for first in range(start, end, _BATCHES * encoder.batch):
            some = range(first, min(first + _BATCHES * encoder.batch, end))
            vectors[some.start : some.stop] = encoder.passages([passages[position] for position in some])
            if some.stop < end:
                watch("Encoding passages", some.stop, len(passages))
        vectors.flush()
        sync(file)
        with atomic_file(note) as written:
            written.write(str(end))
        watch("Encoding passages", end, len(passages))
    return open_vectors(folder)


def open_vectors(folder: Path) -> StoredVectors:
    """The vectors in a folder, mapped into memory."""
    # A plain view of the mapped memory: slicing a memmap is slow.
    return np.asarray(np.load(folder / VECTORS, mmap_mode="r"))
