"""Tokenizers of GGUF files: text is cut as the model learnt it, and comes back as it was."""

import logging
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from stepladder.core.trace import Author, Segment
from stepladder.engines.transformers.tokenization import Encoding
from stepladder.models.gguf.header import GGUF
from stepladder.models.gguf.tokenizer import end_ids, tokenizer_of
from tests.support.gguf_files import SETTINGS, TEMPLATE, WORDS

AWKWARD = (
    "1234567 and 3.14 of 2,024",
    "naïve café, Ünïcödé, 日本語, 🙂",
    "a\tb\t\tc\r\n\n  x  ",
    "<search>Q & A</search><answer>it's</answer>",
    "<|im_start|>system <think>the</think>",
)


def tokenizer_with(**changed: Any) -> PreTrainedTokenizerBase:
    return tokenizer_of(head_with(**changed))


def head_with(**changed: Any) -> GGUF:
    settings = SETTINGS | {f"tokenizer.ggml.{name}": value for name, value in changed.items()}
    return GGUF(Path("small.gguf"), settings | {"general.architecture": "llama"}, {})


@cache
def smollm() -> PreTrainedTokenizerBase:
    return tokenizer_with()


def pieces(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    return [piece for piece, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("smollm", ["in", "Ġ", "2", "0", "2", "4", "!", "Ġit", "'s", "ĠIT", "'", "S"]),
        ("gpt-2", ["in", "Ġ2024", "!", "Ġit", "'s", "ĠIT", "'", "S"]),
        ("qwen2", ["in", "Ġ", "2", "0", "2", "4", "!", "Ġit", "'s", "ĠIT", "'S"]),
        ("llama-bpe", ["in", "Ġ", "202", "4", "!", "Ġit", "'s", "ĠIT", "'S"]),
        ("stablelm2", ["in", "Ġ", "2", "0", "2", "4", "!", "Ġit", "'s", "ĠIT", "'S"]),
    ],
)
def test_text_is_cut_by_the_rules_that_the_file_names(
    pre: str, expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert pieces(tokenizer_with(pre=pre), "in 2024! it's IT'S") == expected
    assert not caplog.records


@pytest.mark.parametrize(("pre", "named"), [("brand-new", "'brand-new'"), (None, "(no name)")])
def test_rules_that_are_not_known_are_told(pre: str | None, named: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = tokenizer_with(pre=pre)
    assert pieces(tokenizer, "in 2024") == ["in", "Ġ2024"]
    assert f"small.gguf uses the unknown pre-tokenizer {named}" in caplog.text


def test_merges_do_not_cross_what_was_cut() -> None:
    assert smollm().tokenize("the the 123") == ["the", "Ġthe", "Ġ", "1", "2", "3"]
    assert tokenizer_with(pre="gpt-2").tokenize("the123") == ["the", "123"]


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe"])
def test_awkward_text_comes_back(pre: str) -> None:
    tokenizer = tokenizer_with(pre=pre)
    for text in AWKWARD:
        for split in (False, True):
            ids = tokenizer(text, add_special_tokens=False, split_special_tokens=split)["input_ids"]
            assert tokenizer.decode(ids) == text


@given(st.text(max_size=40))
def test_any_text_comes_back(text: str) -> None:
    assert smollm().decode(smollm()(text, add_special_tokens=False)["input_ids"]) == text


def test_special_tokens_and_the_template_survive_saving(tmp_path: Path) -> None:
    smollm().save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for each in (smollm(), tokenizer):
        assert (each.bos_token_id, each.eos_token_id, each.pad_token_id, each.unk_token_id) == (1, 2, 2, 0)
        assert (each.chat_template, each.model_max_length, len(each)) == (TEMPLATE, 256, len(WORDS))
        assert each("<|im_start|>the<|im_end|>")["input_ids"] == [1, WORDS.index("the"), 2]
        assert each("<think>")["input_ids"] == [WORDS.index("<think>")]
        turn = each.apply_chat_template(
            [{"role": "user", "content": "the"}], add_generation_prompt=True, tokenize=False
        )
        assert turn == "<|im_start|>user\nthe<|im_end|>\n<|im_start|>assistant\n"
    assert pieces(tokenizer, "x 12") == ["x", "Ġ", "1", "2"]


def test_documents_cannot_forge_control_tokens() -> None:
    encoding = Encoding(smollm())
    tokens = encoding.encode(Segment(Author.ENVIRONMENT, "<|im_end|>")).tokens
    assert not set(tokens) & {0, 1, 2}
    assert encoding.decode(tokens) == "<|im_end|>"


def test_a_text_begins_as_the_file_says() -> None:
    assert smollm()("the")["input_ids"] == [WORDS.index("the")]
    assert tokenizer_with(add_bos_token=True, add_eos_token=True)("the")["input_ids"] == [1, WORDS.index("the"), 2]
    assert tokenizer_with(add_bos_token=None, pre="llama-bpe")("the")["input_ids"] == [1, WORDS.index("the")]
    assert tokenizer_with(add_bos_token=None, pre="qwen2")("the")["input_ids"] == [WORDS.index("the")]


def test_words_that_only_fill_the_matrix_are_left_out() -> None:
    more = [*WORDS, "[PAD265]", "[PAD266]"]
    tokenizer = tokenizer_with(tokens=more, token_type=[*SETTINGS["tokenizer.ggml.token_type"], 5, 5])
    assert tokenizer.get_vocab() == smollm().get_vocab()


def test_what_ends_a_text() -> None:
    assert end_ids(head_with()) == [2, 0]
    assert end_ids(head_with(eos_token_id=0, eot_token_id=2)) == [0, 2]
    assert end_ids(head_with(eos_token_id=None, token_type=[1] * len(WORDS))) == []


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "ab", "▁a", "▁ab"]


@pytest.mark.parametrize(("prefix", "first"), [(True, "▁ab"), (False, "ab")], ids=["space", "no space"])
def test_words_of_sentencepiece(prefix: bool, first: str) -> None:
    tokenizer = tokenizer_with(
        model="llama",
        pre="default",
        tokens=PIECES,
        scores=[0.0] * 259 + [-float(number) for number in range(6)],
        token_type=[2, 3, 3, *[6] * 256, *[1] * 6],
        merges=["a b", "▁ a", "▁a b", "▁ ab"],
        add_space_prefix=prefix,
        add_bos_token=None,
    )
    ids = tokenizer("ab é\n  ab")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids)[:2] == ["<s>", first]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab é\n  ab"
    encoding = Encoding(tokenizer)
    tokens = encoding.encode(Segment(Author.ENVIRONMENT, " ab<0x41>")).tokens
    assert encoding.decode(tokens, after=[PIECES.index("b")]) == " ab<0x41>"
