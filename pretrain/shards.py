"""Pre-training data as token shards, written by many processes and read in a fixed order.

In: a tokenizer and a number of shards. Out: files `00000.npz` ... in a folder, each the tokens (uint16) and loss
weights (in 1/100, uint8) of about two million tokens: the documents of one world. Shard n is the same on all machines.
"""

import multiprocessing
import sys
import time
from collections.abc import Iterator
from itertools import count as counter
from multiprocessing.context import SpawnProcess
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from pretrain.documents import FIRST_WORLD, documents
from stepladder.data.atlas import generate_atlas

#: The first worlds are the tokenizer's and the held-out ones; see tokenizer.py and train.py.
FIRST_SHARD_WORLD = FIRST_WORLD + 1_000
DOCUMENTS_A_SHARD = 6_000
#: Seconds to wait for a shard; one takes a few.
PATIENCE = 300


def write_shard(number: int, tokenizer_folder: str, folder: Path, avoid: frozenset[str], chains: float | None) -> None:
    """Documents of one world, each ended by the end token, one after the other."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    texts, weights, ends = [], [], []
    for document in documents(FIRST_SHARD_WORLD + number, DOCUMENTS_A_SHARD, avoid, chains):
        for text, weight in document:
            texts.append(text)
            weights.append(weight)
        ends.append(len(texts) - 1)
    encoded = tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    last = set(ends)
    ids: list[int] = []
    scales: list[int] = []
    for place, (encoding, weight) in enumerate(zip(encoded, weights)):
        piece = encoding.ids
        ids += piece
        scales += [round(weight * 100)] * len(piece)
        if place in last:
            ids.append(tokenizer.eos_token_id)
            scales.append(30 if chains is None else 0)
    temporary = folder / f".{number:05d}.npz"
    np.savez(temporary, ids=np.array(ids, np.uint16), weights=np.array(scales, np.uint8))
    temporary.rename(folder / f"{number:05d}.npz")


def _write_shards(
    numbers: range, tokenizer_folder: str, folder: Path, avoid: frozenset[str], chains: float | None
) -> None:
    for number in numbers:
        write_shard(number, tokenizer_folder, folder, avoid, chains)


def start_writers(
    shards: int, tokenizer_folder: str, folder: Path, workers: int, chains: float | None = None
) -> list[SpawnProcess]:
    """Processes that write all shards, in about their order. `chains`: as for `documents`."""
    folder.mkdir(parents=True, exist_ok=True)
    avoid = generate_atlas().name_words
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(
            target=_write_shards,
            args=(range(worker, shards, workers), tokenizer_folder, folder, avoid, chains),
            daemon=True,
        )
        for worker in range(workers)
    ]
    for writer in writers:
        writer.start()
    return writers


def read_batches(folder: Path, rows: int, width: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches of packed rows, ids and weights, from the shards in their order; waits for the writers, not for ever."""
    held_ids, held_weights = np.zeros(0, np.uint16), np.zeros(0, np.uint8)
    need = rows * width
    for number in counter():
        path = folder / f"{number:05d}.npz"
        asked = time.monotonic()
        while not path.exists():
            if time.monotonic() - asked > PATIENCE:
                raise TimeoutError(f"no writer has made {path} in {PATIENCE} s: have they all died?")
            time.sleep(0.05)
        with np.load(path) as shard:
            held_ids = np.concatenate([held_ids, shard["ids"]])
            held_weights = np.concatenate([held_weights, shard["weights"]])
        while len(held_ids) >= need:
            yield held_ids[:need].reshape(rows, width), held_weights[:need].reshape(rows, width)
            held_ids, held_weights = held_ids[need:], held_weights[need:]


if __name__ == "__main__":
    # Only needed to train several models on the same shards: `train.py` starts writers of its own.
    _, tokenizer, place, shards, workers = sys.argv
    for process in start_writers(int(shards), tokenizer, Path(place), int(workers)):
        process.join()
