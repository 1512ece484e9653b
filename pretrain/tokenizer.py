"""nano's tokenizer: byte-level BPE of 4,096 tokens, trained on pre-training documents of a few worlds.

Digits stand alone, so that numbers can be compared; a tag such as `<q>` or `</step>` is one token.

    python -m pretrain.tokenizer --out FOLDER
"""

import argparse
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from pretrain.documents import FIRST_WORLD, documents
from pretrain.styles import AGENT_TAGS, PLAIN_TAGS
from stepladder.data.atlas import generate_atlas

VOCABULARY = 4096
END = "<|end|>"
WORLDS, DOCUMENTS = 6, 4000


def train_tokenizer() -> PreTrainedTokenizerFast:
    """The same tokenizer on every machine."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    avoid = generate_atlas().name_words
    texts = [
        "".join(text for text, _ in document)
        for world in range(WORLDS)
        for document in documents(FIRST_WORLD + world, DOCUMENTS, avoid)
    ]
    tags = [mark for tag in AGENT_TAGS + PLAIN_TAGS for mark in (f"<{tag}>", f"</{tag}>")]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(tags),
        special_tokens=[AddedToken(END, special=True)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in tags])
    assert tokenizer.get_vocab_size() == VOCABULARY
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END, model_max_length=2048)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    train_tokenizer().save_pretrained(arguments.out)
