"""Tokenizers built as those of known models are: their pre-tokenizers, normalizers, control tokens and chat templates.

Their vocabularies are learned from a few sentences, so that they cost nothing.
"""

from collections.abc import Callable
from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from stepladder.models.loading import load_tokenizer

TEXT = ["Question: Who designed the tower of Orm? It was designed by Ada Tarn in 1901.", "<step>So it is.</step>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}"
    "<|eot_id|>{% endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n"
)
MISTRAL = "<s>{% for m in messages %}[INST] {{ m.content }}[/INST]{% endfor %}"
GEMMA = (
    "<bos>{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    "<start_of_turn>model\n"
)
#: Words, as GPT-4's and Qwen's pre-tokenizers split them.
WORDS = Regex(r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def _byte_level(*splitters: pre_tokenizers.PreTokenizer, ignore_merges: bool = False) -> Tokenizer:
    made = Tokenizer(BPE(ignore_merges=ignore_merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [*splitters, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not splitters)]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False))
    return made


def _wrapped(
    made: Tokenizer, template: str, special: tuple[str, ...], other: tuple[str, ...] = ()
) -> PreTrainedTokenizerFast:
    made.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special])
    made.add_tokens([AddedToken(name, normalized=False, special=False) for name in other])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, chat_template=template, eos_token=special[-1], clean_up_tokenization_spaces=False
    )


def smollm2() -> PreTrainedTokenizerBase:
    made = _byte_level(pre_tokenizers.Digits(individual_digits=True))
    names = ("<repo_name>", "<reponame>", "<file_sep>", "<filename>", "<gh_stars>", "<empty_output>", "<|endoftext|>")
    return _wrapped(made, CHATML, (*names, "<|im_start|>", "<|im_end|>"))


def qwen() -> PreTrainedTokenizerBase:
    made = _byte_level(pre_tokenizers.Split(WORDS, "isolated"))
    made.normalizer = normalizers.NFC()
    other = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<|fim_prefix|>", "<|repo_name|>", "<tool_response>")
    return _wrapped(made, CHATML, ("<|endoftext|>", "<|vision_start|>", "<|im_start|>", "<|im_end|>"), other)


def llama3() -> PreTrainedTokenizerBase:
    made = _byte_level(pre_tokenizers.Split(WORDS, "isolated"), ignore_merges=True)
    names = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>", "<|eot_id|>")
    wrapped = _wrapped(made, LLAMA3, names)
    bos = made.token_to_id("<|begin_of_text|>")
    wrapped.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", bos)]
    )
    return wrapped


def _sentencepiece(special: tuple[str, ...], template: str, other: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *map(chr, range(33, 127)), "▁"]
    made = Tokenizer(BPE({piece: number for number, piece in enumerate(pieces)}, [], byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _wrapped(made, template, special, other)


def mistral() -> PreTrainedTokenizerBase:
    tools = ("[AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[IMG]", "[SYSTEM_PROMPT]", "[control_17]")
    return _sentencepiece(("<unk>", "<s>", "[INST]", "[/INST]", *tools, "</s>"), MISTRAL)


def others() -> PreTrainedTokenizerBase:
    """What is special nowhere: Gemma's and MADLAD's tokens, one that no list knows; compatibility forms are folded."""
    names = ("[INST]", "[/INST]", "<2en>", "<2pt_BR>", "[toxicity]", "[@BOS@]", "[MASK]", "<unused7>", "[Nobody:17]")
    made = _sentencepiece(("<bos>", "<start_of_turn>", "<end_of_turn>", "<eos>"), GEMMA, names)
    backend = made.backend_tokenizer
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" ", "▁")])
    return made


SHAPES: dict[str, Callable[[], PreTrainedTokenizerBase]] = {
    "nano": lambda: load_tokenizer("nano"),
    **{each.__name__: cache(each) for each in (smollm2, qwen, llama3, mistral, others)},
}
