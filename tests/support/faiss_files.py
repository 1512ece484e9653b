"""FAISS files and corpora as others publish them, in the layout of wiki-18: made without our own encoder code."""

import json
from collections.abc import Sequence
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt
import torch
from transformers import BertModel, BertTokenizerFast

from stepladder.core.trace import Passage


def write_corpus(path: Path, passages: Sequence[Passage]) -> Path:
    rows = ({"id": each.id, "contents": f'"{each.title}"\n{each.text}'} for each in passages)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def e5_vectors(encoder: Path, texts: Sequence[str], prefix: str = "passage: ") -> npt.NDArray[np.float32]:
    """Prefix, mean pooling, length 1, as e5's model card says and as Search-R1 builds its indexes."""
    tokenizer, model = BertTokenizerFast.from_pretrained(encoder), BertModel.from_pretrained(encoder).eval()
    tokens = tokenizer([prefix + text for text in texts], padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        states, mask = model(**tokens).last_hidden_state, tokens["attention_mask"][..., None]
    pooled = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
    return np.ascontiguousarray(pooled.numpy(), dtype=np.float32)


def write_faiss(path: Path, vectors: npt.NDArray[np.float32], kind: str = "Flat", *, l2: bool = False) -> Path:
    index = faiss.index_factory(vectors.shape[1], kind, faiss.METRIC_L2 if l2 else faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    if kind.startswith("IDMap"):
        index.add_with_ids(vectors, np.arange(len(vectors)))
    else:
        index.add(vectors)
    faiss.write_index(index, str(path))
    return path
