"""The tokenizer that a GGUF file describes, as one of transformers.

In: the head of the file. Out: a tokenizer that gives the ids the model learnt with. A GGUF file has the words and the
merges, but of the way text is cut before words are looked up only a name (`tokenizer.ggml.pre`). What belongs to the
name is here; transformers, which knows some of them, leaves others out, and then numbers become other tokens.
"""

import re
from logging import getLogger
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from stepladder.core.errors import StepladderError
from stepladder.models.gguf.header import GGUF

log = getLogger(__name__)

#: Every digit alone, then as GPT-2 does.
_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})
_GPT2 = frozenset({"gpt-2", "default", "phi-2", "olmo", "mpt", "gigachat", "roberta-bpe", "jina-v1-en", "jina-v2-de"})
#: Other names of ways to cut that transformers knows.
_SAME_AS = {"stablelm2": "qwen2", "hunyuan": "qwen2", "chatglm-bpe": "llama-bpe"}

#: Text is normalised first, as these models' own tokenizers do.
_NFC = frozenset({"qwen2", "qwen35"})
_LLAMA3 = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"})
#: A piece that is a word as a whole is taken as it is, whatever the merges say.
_WHOLE_WORDS = _LLAMA3 | {"tekken"}
#: A text begins with a token of its own, where the file does not say.
_BEGINS = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3"})

#: Kinds of words (`tokenizer.ggml.token_type`).
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5

#: Words with which a turn or a text ends, whatever the file calls its end.
_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>", "<|end|>")


def tokenizer_of(head: GGUF) -> PreTrainedTokenizerBase:
    """The tokenizer, with its special tokens and its chat template."""
    kind = head.token("model")
    if kind == "gpt2":
        backend = _byte_level(head)
    elif kind == "llama":
        backend = _sentencepiece(head)
    else:
        raise StepladderError(f"GGUF file {head.path} has a tokenizer of kind '{kind}'; expected gpt2 or llama")
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special = {name: _word(head, f"{key}_token_id") for name, key in names.items()}
    _add_frame(backend, head, special)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        chat_template=head.settings.get("tokenizer.chat_template"),
        model_max_length=head.own("context_length"),
        clean_up_tokenization_spaces=False,
        **{name: word for name, word in special.items() if word is not None},
    )


def end_ids(head: GGUF) -> list[int]:
    """The tokens that end what is written: the file's own first, then those that are known to by their names."""
    named = [head.token(f"{key}_token_id") for key in ("eos", "eot", "eom")]
    words, kinds = head.token("tokens"), head.token("token_type") or []
    known = [number for number, kind in enumerate(kinds) if kind == _CONTROL and words[number] in _ENDS]
    return list(dict.fromkeys(number for number in (*named, *known) if number is not None))


def _word(head: GGUF, setting: str) -> str | None:
    number, words = head.token(setting), head.token("tokens")
    if number is None:
        return None
    if not 0 <= number < len(words):
        raise StepladderError(f"GGUF file {head.path}: {setting} is {number}, and there are {len(words)} words")
    return str(words[number])


def _byte_level(head: GGUF) -> Tokenizer:
    pre = head.token("pre") or ""
    words, kinds = head.token("tokens"), head.token("token_type") or []
    padding = {  # words that only make the matrix longer; the model's own tokenizer does not have them
        number for number, kind in enumerate(kinds) if kind == _UNUSED and re.fullmatch(r"\[PAD\d+\]", words[number])
    }
    vocabulary = {word: number for number, word in enumerate(words) if number not in padding}
    merges = [tuple(merge.split(" ")) for merge in head.token("merges") or []]
    backend: Any = Tokenizer(BPE(vocabulary, merges, ignore_merges=pre in _WHOLE_WORDS))
    backend.normalizer = normalizers.NFC() if _SAME_AS.get(pre, pre) in _NFC else None
    backend.pre_tokenizer = _pre_tokenizer(head, _SAME_AS.get(pre, pre))
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(
        [
            AddedToken(words[number], normalized=False, special=kind == _CONTROL)
            for number, kind in enumerate(kinds)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    return backend  # type: ignore[no-any-return]


def _pre_tokenizer(head: GGUF, pre: str) -> Any:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    if pre in _DIGITS:
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    if split := GGUF_PRE_TOKENIZER_SPLITS.get(pre):
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(split), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    if pre not in _GPT2:
        log.warning(
            "%s cuts text by %s, which is not known here: it is cut as GPT-2 does, and the model may read other tokens "
            "than it learnt with. Its folder in the format of transformers has the right tokenizer",
            head.path.name,
            f"'{pre}'" if pre else "rules that it does not name",
        )
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _sentencepiece(head: GGUF) -> Tokenizer:
    """As transformers makes it; words in spaces and bytes work as they are, and the first space as the file says."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

    described = {
        "tokenizer_type": "llama",
        "tokens": head.token("tokens"),
        "scores": head.token("scores"),
        "token_type": head.token("token_type"),
    }
    if head.token("merges"):
        described["merges"] = head.token("merges")
    backend: Any
    backend, _ = convert_gguf_tokenizer(head.architecture, described)
    if head.token("add_space_prefix") is False and isinstance(backend.pre_tokenizer, pre_tokenizers.Metaspace):
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
        backend.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]  # no first space to take away
        )
    return backend  # type: ignore[no-any-return]


def _add_frame(backend: Any, head: GGUF, special: dict[str, str | None]) -> None:
    """The tokens before and behind every text, where the model expects them."""
    begins = head.token("add_bos_token")
    if begins is None:
        begins = head.token("model") == "llama" or head.token("pre") in _BEGINS
    before = special["bos_token"] if begins else None
    behind = special["eos_token"] if head.token("add_eos_token") else None
    if before is None and behind is None:
        is_byte_level = head.token("model") == "gpt2"
        backend.post_processor = processors.ByteLevel(trim_offsets=False) if is_byte_level else None
        return
    around = [word for word in (before, "$A", behind) if word is not None]
    ids = [(word, backend.token_to_id(word)) for word in dict.fromkeys((before, behind)) if word is not None]
    backend.post_processor = processors.TemplateProcessing(single=around, special_tokens=ids)
