"""A tiny encoder of random weights, and passages for it."""

from pathlib import Path

import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

from stepladder.core.trace import Passage

TOWNS = tuple(
    Passage(f"t{number}", f"Town {number}", f"It lies on the river {'abcdefg'[number % 7]}{number % 11}.")
    for number in range(60)
)


def save_encoder(folder: Path, seed: int = 0, width: int = 32) -> Path:
    """A plain transformer of random weights; its vocabulary is of letters."""
    letters = [chr(code) for code in range(33, 127)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{each}" for each in letters)]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=width,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=width,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    torch.manual_seed(seed)
    BertModel(config).save_pretrained(folder)
    return folder
