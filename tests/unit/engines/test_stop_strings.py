"""Stop strings: the fast test with the texts of single tokens never misses what the decoded text contains."""

import random
from collections.abc import Callable

import pytest
from transformers import PreTrainedTokenizerBase

from stepladder.core.requests import Finish, Sampling
from stepladder.engines.base import cut_at_stop
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.engines.transformers.token_sampler import Row
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from tests.support.tokenizer_shapes import SHAPES

TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerBase]] = {"tiny": tiny_tokenizer, **SHAPES}
STOPS = [
    ("</answer>",),
    ("</query>", "</answer>"),
    ("\n",),
    ("\n\n",),
    ("Observation:\n",),
    ("So the next query is ", "."),
    ("→",),
    ("> é",),
]


def row_of(stops: tuple[str, ...], tokens: list[int]) -> Row:
    return Row(0, (), [1], stops, Sampling(max_tokens=999), 0, 999, tokens=tokens)


def texts_with(stops: tuple[str, ...], randomness: random.Random) -> list[str]:
    """Texts with stop strings, parts of them, and characters of several bytes between words."""
    words = ["Velm", " ", "  ", "\n", "<", ">", "é", "→", "𝔘", ".", "\t", "query", "Observation", ":"]
    parts = [*words, *stops, *(stop[: len(stop) // 2] for stop in stops), *(stop[1:] for stop in stops)]
    return ["".join(randomness.choices(parts, k=12)) for _ in range(25)]


@pytest.mark.parametrize("stops", STOPS, ids=repr)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_row_ends_where_its_decoded_text_contains_a_stop_string(name: str, stops: tuple[str, ...]) -> None:
    randomness = random.Random(name + repr(stops))
    tokenizer = TOKENIZERS[name]()
    engine = TransformersEngine(tiny_model(), tokenizer)
    drawn = [randomness.choices(range(len(tokenizer)), k=40) for _ in range(10)]
    written = [list(engine.encoding.tokenizer(text)["input_ids"]) for text in texts_with(stops, randomness)]
    found = 0
    for tokens in drawn + written:
        tokens = [token for token in tokens if token not in engine.end_tokens]
        for count in range(1, len(tokens) + 1):
            row = row_of(stops, tokens[:count])
            contained = cut_at_stop(engine.text_of(row), stops)[1]
            assert (engine.finish_of(row) is Finish.STOP) == contained
            if contained:
                found += 1
                break
    assert found > 5


def test_a_text_is_decoded_only_if_a_stop_string_may_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TransformersEngine("nano", device="cpu")
    tokens = engine.encoding.tokenizer("a > b </query")["input_ids"]
    rows = [row_of(("</query>",), tokens[:count]) for count in range(1, len(tokens) + 1)]
    assert not any(map(engine.finish_of, rows))  # builds the tables
    monkeypatch.setattr(engine, "text_of", lambda row: pytest.fail("decoded"))
    assert not any(map(engine.finish_of, rows))


def test_texts_of_tokens_that_do_not_show_a_stop_string_are_not_relied_on() -> None:
    engine = TransformersEngine(tiny_model(), tiny_tokenizer())
    assert engine._find_visible_stops(("</a>",)) == ("</a>",)
    assert engine._find_visible_stops(("→",)) is None
    last = engine.tokenizer("</a>", add_special_tokens=False)["input_ids"][-1]
    engine._visible_texts[last] = "##>"
    assert engine._find_visible_stops(("</a>",)) is None
