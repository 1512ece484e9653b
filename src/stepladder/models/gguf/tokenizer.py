"""Build a transformers tokenizer from a GGUF file.

In: the file's header. Out: a tokenizer with the ids of the model's own tokenizer. A GGUF file contains the vocabulary
and the merges, but only the name of the pre-tokenizer (`tokenizer.ggml.pre`). This module maps the names;
transformers supports only some of them and would tokenize numbers differently.
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

#: Pre-tokenizers that split digits, then work like GPT-2's.
_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})
_GPT2 = frozenset({"gpt-2", "default", "phi-2", "olmo", "mpt", "gigachat", "roberta-bpe", "jina-v1-en", "jina-v2-de"})
#: Aliases of pre-tokenizers that transformers supports.
_ALIASES = {"stablelm2": "qwen2", "hunyuan": "qwen2", "chatglm-bpe": "llama-bpe"}

#: Tokenizers that apply NFC normalization.
_NFC = frozenset({"qwen2", "qwen35"})
_LLAMA3 = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"})
#: Tokenizers that look up whole words before applying merges (`ignore_merges`).
_IGNORE_MERGES = _LLAMA3 | {"tekken"}
#: Tokenizers that add a BOS token by default.
_ADD_BOS = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3"})

#: Token types (`tokenizer.ggml.token_type`).
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5

#: End-of-turn and end-of-text tokens, in addition to the file's EOS token.
_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>", "<|end|>")


def tokenizer_of(header: GGUF) -> PreTrainedTokenizerBase:
    """The tokenizer with special tokens and chat template."""
    kind = header.tokenizer_setting("model")
    if kind == "gpt2":
        backend = _byte_level(header)
    elif kind == "llama":
        backend = _sentencepiece(header)
    else:
        raise StepladderError(f"GGUF file {header.path} has a tokenizer of kind '{kind}'; expected gpt2 or llama")
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special = {name: _token(header, f"{key}_token_id") for name, key in names.items()}
    _add_post_processor(backend, header, special)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        chat_template=header.settings.get("tokenizer.chat_template"),
        model_max_length=header.architecture_setting("context_length"),
        clean_up_tokenization_spaces=False,
        **{name: token for name, token in special.items() if token is not None},
    )


def end_ids(header: GGUF) -> list[int]:
    """The ids of end tokens: those named by the file first, then those with well-known names."""
    named = [header.tokenizer_setting(f"{key}_token_id") for key in ("eos", "eot", "eom")]
    tokens, kinds = header.tokenizer_setting("tokens"), header.tokenizer_setting("token_type") or []
    known = [number for number, kind in enumerate(kinds) if kind == _CONTROL and tokens[number] in _ENDS]
    return list(dict.fromkeys(number for number in (*named, *known) if number is not None))


def _token(header: GGUF, setting: str) -> str | None:
    number, tokens = header.tokenizer_setting(setting), header.tokenizer_setting("tokens")
    if number is None:
        return None
    if not 0 <= number < len(tokens):
        raise StepladderError(f"GGUF file {header.path}: {setting} is {number}, and there are {len(tokens)} tokens")
    return str(tokens[number])


def _byte_level(header: GGUF) -> Tokenizer:
    pre = header.tokenizer_setting("pre") or ""
    tokens, kinds = header.tokenizer_setting("tokens"), header.tokenizer_setting("token_type") or []
    padding = {  # padding of the embedding matrix, which the model's own tokenizer does not have
        number for number, kind in enumerate(kinds) if kind == _UNUSED and re.fullmatch(r"\[PAD\d+\]", tokens[number])
    }
    vocabulary = {token: number for number, token in enumerate(tokens) if number not in padding}
    merges = [tuple(merge.split(" ")) for merge in header.tokenizer_setting("merges") or []]
    backend: Any = Tokenizer(BPE(vocabulary, merges, ignore_merges=pre in _IGNORE_MERGES))
    backend.normalizer = normalizers.NFC() if _ALIASES.get(pre, pre) in _NFC else None
    backend.pre_tokenizer = _pre_tokenizer(header, _ALIASES.get(pre, pre))
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(
        [
            AddedToken(tokens[number], normalized=False, special=kind == _CONTROL)
            for number, kind in enumerate(kinds)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    return backend  # type: ignore[no-any-return]


def _pre_tokenizer(header: GGUF, pre: str) -> Any:
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
            "%s uses the unknown pre-tokenizer %s: GPT-2's is used instead, and token ids may differ from those the "
            "model was trained with. Its folder in transformers' format has the right tokenizer",
            header.path.name,
            f"'{pre}'" if pre else "(no name)",
        )
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _sentencepiece(header: GGUF) -> Tokenizer:
    """transformers' conversion, with the file's setting for the prefix space."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

    described = {name: header.tokenizer_setting(name) for name in ("tokens", "scores", "token_type")}
    if merges := header.tokenizer_setting("merges"):
        described["merges"] = merges
    backend: Any
    backend, _ = convert_gguf_tokenizer(header.architecture, {"tokenizer_type": "llama", **described})
    if header.tokenizer_setting("add_space_prefix") is False and isinstance(
        backend.pre_tokenizer, pre_tokenizers.Metaspace
    ):
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
        backend.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]  # no prefix space to strip
        )
    return backend  # type: ignore[no-any-return]


def _add_post_processor(backend: Any, header: GGUF, special: dict[str, str | None]) -> None:
    """Add BOS and EOS tokens around every text where the model expects them."""
    add_bos = header.tokenizer_setting("add_bos_token")
    if add_bos is None:
        add_bos = header.tokenizer_setting("model") == "llama" or header.tokenizer_setting("pre") in _ADD_BOS
    bos = special["bos_token"] if add_bos else None
    eos = special["eos_token"] if header.tokenizer_setting("add_eos_token") else None
    if bos is None and eos is None:
        is_byte_level = header.tokenizer_setting("model") == "gpt2"
        backend.post_processor = processors.ByteLevel(trim_offsets=False) if is_byte_level else None
        return
    template = [token for token in (bos, "$A", eos) if token is not None]
    ids = [(token, backend.token_to_id(token)) for token in dict.fromkeys((bos, eos)) if token is not None]
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
