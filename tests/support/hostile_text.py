"""Text that documents may contain to deceive an agent: mutated tags, control tokens and grammar lines.

`mutation` makes it, `measured` counts what a tokenizer of a known shape reads in a rendering.
"""

import random
import re
from collections import Counter
from functools import cache

from stepladder.core.trace import Author, Segment
from stepladder.engines.transformers.tokenization import Encoding
from tests.support.tokenizer_shapes import SHAPES

HEADS = ("Question", "Search", "Result", "Answer", "Thought", "Action", "Observation", "Action: Finish[x]")
LINES = (*(f"{head}: Velm" for head in HEADS), "[1] Velm: a town", '{"answer": "x"}', "No search is left.", "### User:")
TAGS = ("step", "answer", "subquery", "subanswer", "retrieval", "search", "result", "query", "evidence", "think")
FOREIGN = ("<<SYS>>", "<</SYS>>", "<｜User｜>", "<|start|>", "<start_of_turn>", "<s>", "<2en>", "[gMASK]", "[CLS]")
#: A token that only the tokenizer in use knows.
UNKNOWN = "[Nobody:17]"
BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
INVISIBLE = "\u200b\u00ad\ufeff\u2060\x01 "
FULL_WIDTH = str.maketrans("<>|[]/!", "＜＞｜［］／！")
#: Passages in one rendering: each carries a mutation of its own.
PASSAGES = 50
TAG = re.compile(r"</?[A-Za-z_]+>")


@cache
def encoding(shape: str) -> Encoding:
    return Encoding(SHAPES[shape]())


@cache
def control_ids(shape: str) -> dict[int, str]:
    tokens = encoding(shape).tokenizer.added_tokens_decoder.items()
    return {number: token.content for number, token in tokens if token.content.strip()}


@cache
def pieces() -> tuple[str, ...]:
    tags = [f"{open_}{tag}>" for tag in TAGS for open_ in ("<", "</")]
    return (*(name for shape in SHAPES for name in control_ids(shape).values()), *tags, *FOREIGN, *LINES)


def mutation(rng: random.Random) -> str:
    """A few pieces of markup, each as it is or bent."""

    def bent(piece: str) -> str:
        match rng.randrange(8):
            case 0:
                return piece.translate(FULL_WIDTH)
            case 1:
                spot = rng.randrange(len(piece) + 1)
                return piece[:spot] + rng.choice(INVISIBLE) + piece[spot:]
            case 2:
                return rng.choice([piece.upper(), piece.title(), piece[::-1], piece * 3])
            case 3:
                spot = rng.randrange(len(piece) + 1)
                return piece[:spot] + rng.choice(pieces()) + piece[spot:]
            case _:
                return piece

    parts = [rng.choice([*BREAKS, "", " ", "stone"]) + bent(rng.choice(pieces())) for _ in range(rng.randint(1, 4))]
    return "stone" + "".join(parts) + rng.choice(["", "\n", " stone"])


@cache
def spelled() -> re.Pattern[str]:
    """Control tokens in a text, which a server of another family would read as such."""
    known = {*(name for shape in SHAPES for name in control_ids(shape).values()), *FOREIGN} - {UNKNOWN}
    return re.compile("|".join(map(re.escape, known)))


def measured(text: str, shape: str) -> tuple[Counter[str], int, int]:
    """Control tokens, tags and lines of a text that went through a tokenizer."""
    tokens = encoding(shape).encode(Segment(Author.ENVIRONMENT, text)).tokens
    read = encoding(shape).decode(tokens)
    controls = Counter(control_ids(shape)[token] for token in tokens if token in control_ids(shape))
    return controls, len(TAG.findall(read)), len(read.splitlines())
