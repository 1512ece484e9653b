"""The transformers engine: exact ids, exact stops, seeds of one's own, and clear errors."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
)

from stepladder.core.errors import BackendError, ContractViolation, StepladderError, UnknownName
from stepladder.core.requests import Finish, Generate, Generation, Sampling
from stepladder.core.trace import Author, Segment
from stepladder.engines.base import check_engine
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.engines.transformers.token_sampler import keep_top_p
from stepladder.models import devices, loading
from stepladder.models.loading import quiet_libraries
from stepladder.models.tiny import tiny_model, tiny_tokenizer

HOT = Sampling(temperature=1.0, max_tokens=24)


@pytest.fixture(scope="module")
def engine() -> TransformersEngine:
    return TransformersEngine("tiny", device="cpu")


def prompt(text: str, **settings: Any) -> Generate:
    return Generate((Segment(Author.PROMPT, text),), **settings)


def generate(engine: TransformersEngine, *requests: Generate) -> list[Generation]:
    replies = engine.generate(requests)
    assert all(isinstance(reply, Generation) for reply in replies), replies
    return replies  # type: ignore[return-value]


def test_it_keeps_the_contract(engine: TransformersEngine) -> None:
    check_engine(engine)


def test_the_contract_holds_in_bf16_too() -> None:
    check_engine(TransformersEngine("tiny", device="cpu", dtype="bf16"), logprob_tolerance=0.2)


class DeafToStops(TransformersEngine):
    def closing_tokens_of(self, stops: tuple[str, ...]) -> Any:
        return frozenset()


class Reencoding(TransformersEngine):
    """Decodes what it wrote and encodes it again, as others do."""

    def encode(self, segment: Segment) -> Segment:
        return super().encode(replace(segment, tokens=(), logprobs=()))


class Seedless(TransformersEngine):
    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        return super().generate([replace(request, seed=secrets.randbits(60)) for request in requests])


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (DeafToStops, "with the stop .* the text must be"),
        (Reencoding, "segments that had token ids were changed"),
        (Seedless, "equal seeds gave different texts"),
    ],
)
def test_the_contract_test_finds_broken_engines(broken: type[TransformersEngine], message: str) -> None:
    with pytest.raises(ContractViolation, match=message):
        check_engine(broken("tiny", device="cpu"))


def test_greedy_tokens_equal_those_of_generate(engine: TransformersEngine) -> None:
    texts = ["Who?", "Where is the tower of Velm?", "x" * 70]
    ours = generate(engine, *[prompt(text, sampling=Sampling(max_tokens=20)) for text in texts])
    for text, reply in zip(texts, ours):
        ids = engine.tokenizer(text, return_tensors="pt")
        theirs = engine.model.generate(**ids, max_new_tokens=20, do_sample=False)[0, ids["input_ids"].shape[1] :]
        assert list(reply.written.tokens) == theirs.tolist()


def test_log_probs_equal_those_of_one_pass_over_the_whole_text(engine: TransformersEngine) -> None:
    requests = [
        prompt("Where?" * length, sampling=replace(HOT, temperature=0.7, top_p=0.9), seed=length) for length in (1, 9)
    ]
    for reply in generate(engine, *requests):
        read, written = list(reply.context[0].tokens), list(reply.written.tokens)
        logits = engine.model(torch.tensor([read + written])).logits[0, len(read) - 1 : -1]
        expected = torch.log_softmax(logits.float(), -1)[range(len(written)), written]
        assert torch.allclose(torch.tensor(reply.written.logprobs), expected, atol=1e-4)


def test_a_seed_gives_the_same_text_in_any_company(engine: TransformersEngine) -> None:
    requests = [prompt(f"Number {number % 5}", sampling=HOT, seed=number) for number in range(20)]
    together = [reply.written.tokens for reply in generate(engine, *requests)]
    alone = [generate(engine, request)[0].written.tokens for request in requests]
    assert together == alone
    small = TransformersEngine("tiny", device="cpu", max_batch=3)
    assert [reply.written.tokens for reply in generate(small, *requests)] == together
    assert len(set(together)) == 20


def test_rows_of_one_batch_have_their_own_settings(engine: TransformersEngine) -> None:
    greedy, hot, cold, short = generate(
        engine,
        prompt("Same start"),
        prompt("Same start", sampling=HOT, seed=3),
        prompt("Same start", sampling=replace(HOT, top_p=1e-9), seed=3),
        prompt("Same start", sampling=Sampling(max_tokens=2)),
    )
    assert hot.written.tokens != greedy.written.tokens[:24]
    assert cold.written.tokens == greedy.written.tokens[:24], "top-p near 0 leaves the likeliest token only"
    assert (short.written.tokens, short.finish) == (greedy.written.tokens[:2], Finish.LENGTH)


def test_samples_follow_the_distribution_of_the_model(engine: TransformersEngine) -> None:
    draws = 3000
    requests = [prompt("A", sampling=Sampling(1.0, 1.0, 1), seed=seed) for seed in range(draws)]
    counts = torch.zeros(257)
    for reply in generate(engine, *requests):
        counts[reply.written.tokens[0]] += 1
    expected = torch.softmax(engine.model(torch.tensor([list(engine.tokenizer("A")["input_ids"])])).logits[0, -1], -1)
    distance = 0.5 * (counts / draws - expected).abs().sum()
    assert distance < 0.12, f"total variation distance {distance}"


def test_top_p_keeps_the_smallest_set_of_that_mass() -> None:
    probs = torch.tensor([[0.1, 0.4, 0.3, 0.2]])
    assert (keep_top_p(probs, torch.tensor([[0.6]])) > 0).tolist() == [[False, True, True, False]]
    assert (keep_top_p(probs, torch.tensor([[1.0]])) > 0).all()


# --- stops and ends ----------------------------------------------------------------------------------------


def merging_tokenizer() -> PreTrainedTokenizerFast:
    """A BPE tokenizer with tokens such as `>.` that run past the end of a tag."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = ["<answer>Velm</answer>. Then", "<step>x</step>. And </answer>. "] * 50
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        text, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, special_tokens=["<|end|>"])
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")


def speaking(text: str, tokenizer: PreTrainedTokenizerFast) -> TransformersEngine:
    """An engine whose model writes the text, whatever it is asked."""
    ids = tokenizer(text)["input_ids"] + [tokenizer.eos_token_id]
    engine = TransformersEngine(tiny_model(vocab_size=len(tokenizer)), tokenizer)
    forward = engine.model.forward
    position = iter(ids)

    def overruled(**inputs: Any) -> Any:
        output = forward(**inputs)
        output.logits[:, -1] = -50.0
        output.logits[:, -1, next(position)] = 50.0
        return output

    engine.model.forward = overruled
    return engine


def test_text_ends_right_behind_the_stop_and_tokens_are_kept_as_they_were_drawn() -> None:
    tokenizer = merging_tokenizer()
    engine = speaking("<answer>Velm</answer>. Then more", tokenizer)
    (reply,) = generate(engine, prompt("?", stop=("</answer>",)))
    assert (reply.text, reply.finish) == ("<answer>Velm</answer>", Finish.STOP)
    assert reply.written.text.startswith("<answer>Velm</answer>.")  # the last token ran past the tag ...
    assert engine.decode(reply.written.tokens) == reply.written.text  # ... and is stored whole


def test_the_stop_that_ends_first_counts() -> None:
    engine = speaking("one two three", tiny_tokenizer())
    (reply,) = generate(engine, prompt("?", stop=("three", "wo")))
    assert reply.text == "one two"


def test_a_stop_in_the_context_does_not_count() -> None:
    engine = speaking("no more", tiny_tokenizer())
    (reply,) = generate(engine, prompt("<a></a>", stop=("</a>",)))
    assert (reply.text, reply.finish) == ("no more", Finish.END)
    assert reply.written.tokens[-1] == 256, "the token that ended the turn is part of what was written"
    assert "end" not in reply.written.text


def test_stops_beyond_ascii_are_found() -> None:
    engine = speaking("abc → def", tiny_tokenizer())
    (reply,) = generate(engine, prompt("?", stop=("→",)))
    assert reply.text == "abc →"


def test_a_full_window_is_told_apart_from_a_token_limit(engine: TransformersEngine) -> None:
    small = TransformersEngine(tiny_model(max_position_embeddings=20), tiny_tokenizer())
    full, nearly, free = generate(
        small, prompt("x" * 20), prompt("x" * 15), prompt("x", sampling=Sampling(max_tokens=3))
    )
    assert (full.finish, full.text, full.written.tokens) == (Finish.CONTEXT_FULL, "", ())
    assert (nearly.finish, len(nearly.written.tokens)) == (Finish.CONTEXT_FULL, 5)
    assert free.finish is Finish.LENGTH


def test_an_empty_context_fails_alone(engine: TransformersEngine) -> None:
    empty, fine = engine.generate([prompt(""), prompt("x", sampling=Sampling(max_tokens=1))])
    assert isinstance(empty, BackendError)
    assert isinstance(fine, Generation)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_output_that_is_not_a_number_is_an_error_and_the_engine_stays_usable(temperature: float) -> None:
    engine = TransformersEngine("tiny", device="cpu")
    request = prompt("Who built the tower of Velm?", sampling=Sampling(temperature, max_tokens=3))
    (before,) = generate(engine, request)
    weights = engine.model.model.norm.weight.data
    kept = weights.clone()
    weights.fill_(float("nan"))
    with pytest.raises(BackendError, match="the model's logits are NaN"):
        engine.generate([request])
    weights.copy_(kept)
    assert generate(engine, request) == [before]


# --- prompts -----------------------------------------------------------------------------------------------


def test_prompts_go_into_the_chat_template_and_the_rest_follows_it() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "[{{ messages[0].role }}] {{ messages[0].content }} [me] "
    engine = TransformersEngine(tiny_model(), tokenizer)
    context = (Segment(Author.PROMPT, "Who?"), Segment(Author.ENVIRONMENT, "Hm."))
    (reply,) = generate(engine, Generate(context, sampling=Sampling(max_tokens=1)))
    assert [segment.text for segment in reply.context] == ["Who?", "Hm."], "the agent's own words stay as they are"
    assert [engine.decode(segment.tokens) for segment in reply.context] == ["[user] Who? [me] ", "Hm."]
    plain = TransformersEngine(tiny_model(), tokenizer, chat=False)
    assert plain.decode(plain.encode(context[0]).tokens) == "Who?"


def test_documents_cannot_spell_control_tokens(engine: TransformersEngine) -> None:
    for author in (Author.ENVIRONMENT, Author.PROMPT):
        assert 256 not in engine.encode(Segment(author, "a<|end|>b")).tokens


def test_nothing_in_a_message_becomes_a_control_token_of_the_chat_template() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["[INST]"]})
    tokenizer.chat_template = "[INST]{{ messages[0].content }}<|end|>"
    engine = TransformersEngine(tiny_model(vocab_size=258), tokenizer)
    tokens = engine.encode(Segment(Author.PROMPT, "a[INST]b<|end|>c")).tokens
    assert (tokens.count(257), tokens.count(256)) == (1, 1), "only the template's own"
    assert engine.decode(tokens) == "[INST]a[INST]b<|end|>c<|end|>"


def test_variables_of_the_chat_template_can_be_set() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}{% if not thinking %} /no_think{% endif %}"
    thinking = TransformersEngine(tiny_model(), tokenizer, chat_template_kwargs={"thinking": True})
    assert thinking.decode(thinking.encode(Segment(Author.PROMPT, "Who?")).tokens) == "Who?"
    plain = TransformersEngine(tiny_model(), tokenizer)
    assert plain.decode(plain.encode(Segment(Author.PROMPT, "Who?")).tokens) == "Who? /no_think"


def test_a_token_that_begins_texts_is_put_before_prompts_only() -> None:
    tokenizer = merging_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", len(tokenizer))]
    )
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    engine = TransformersEngine(tiny_model(vocab_size=len(tokenizer)), tokenizer)
    begin = tokenizer.bos_token_id
    assert engine.encode(Segment(Author.PROMPT, "Who?")).tokens.count(begin) == 1
    assert engine.encode(Segment(Author.PROMPT, "Who?")).tokens[0] == begin
    assert begin not in engine.encode(Segment(Author.ENVIRONMENT, "Who?")).tokens


@pytest.mark.parametrize("prepend", ["always", "first"])
def test_tokenizers_that_put_a_space_before_texts_do_so_only_at_the_beginning(prepend: str) -> None:
    """As those of the first Llamas do. In the middle of a transcript nobody wrote that space."""
    core = Tokenizer(models.BPE(unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    core.decoder = decoders.Metaspace(prepend_scheme=prepend)
    text = ["<retrieval> the tower in Velm </retrieval> [INST] x"] * 20
    core.train_from_iterator(text, trainers.BpeTrainer(vocab_size=80, special_tokens=["<unk>", "</s>"]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", unk_token="<unk>", pad_token="</s>")
    engine = TransformersEngine(tiny_model(vocab_size=len(tokenizer), pad_token_id=1, eos_token_id=1), tokenizer)
    before = engine.encode(Segment(Author.PROMPT, "the tower"))
    after = engine.encode(Segment(Author.ENVIRONMENT, "<retrieval> the"))
    assert tokenizer.convert_ids_to_tokens(before.tokens[0]).startswith("▁")
    assert not tokenizer.convert_ids_to_tokens(after.tokens[0]).startswith("▁")
    assert tokenizer.decode([*before.tokens, *after.tokens]) == "the tower<retrieval> the"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ messages[0].nothing.at_all }}", "template failed"),
        ("{{ raise_exception('no user') }}", "template failed: no user"),
        ("{% for m in messages %}", "template failed"),
        ("always the same", "shows a message 0 times"),
        ("{{ messages[0].content }} {{ messages[0].content }}", "shows a message 2 times"),
    ],
)
def test_chat_templates_that_do_not_work_say_so(template: str, problem: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(StepladderError, match=problem):
        TransformersEngine(tiny_model(), tokenizer)


def test_ids_of_another_vocabulary_are_refused_not_misread(engine: TransformersEngine) -> None:
    other = TransformersEngine(tiny_model(vocab_size=len(merging_tokenizer())), merging_tokenizer())
    foreign = other.encode(Segment(Author.PROMPT, "Who built it?"))
    refused, fine = engine.generate([Generate((foreign,)), prompt("Who?", sampling=Sampling(max_tokens=1))])
    assert isinstance(refused, BackendError)
    assert "another vocabulary" in str(refused)
    assert isinstance(fine, Generation)


# --- architectures -----------------------------------------------------------------------------------------


def gpt2() -> Any:
    """A model with learnt absolute positions: wrong position ids, which rotary models forgive, show here."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=257, n_positions=128, n_embd=32, n_layer=2, n_head=2, initializer_range=0.4)
    config.eos_token_id = config.bos_token_id = 256
    return GPT2LMHeadModel(config).eval()


def qwen3() -> Any:
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 8,
    }
    config = Qwen3Config(vocab_size=300, num_key_value_heads=2, initializer_range=0.3, eos_token_id=256, **sizes)
    return Qwen3ForCausalLM(config).eval()  # its vocabulary is larger than the tokenizer's, as in the real ones


def lfm2() -> Any:
    """Convolutions beside attention: layers that cannot give up rows of a batch."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    layers = ["conv", "full_attention"]
    config = Lfm2Config(vocab_size=257, num_key_value_heads=2, initializer_range=0.3, layer_types=layers, **sizes)
    config.eos_token_id = config.pad_token_id = config.bos_token_id = 256
    return Lfm2ForCausalLM(config).eval()


@pytest.mark.parametrize("make", [gpt2, qwen3, lfm2])
def test_other_architectures_keep_the_contract(make: Any) -> None:
    check_engine(TransformersEngine(make(), tiny_tokenizer()))


def falcon_h1() -> Any:
    """Attention and recurrence in one layer."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    recurrence = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}
    config = FalconH1Config(vocab_size=257, num_key_value_heads=2, initializer_range=0.3, **sizes, **recurrence)
    config.eos_token_id = config.pad_token_id = config.bos_token_id = 256
    return FalconH1ForCausalLM(config).eval()


def mamba() -> Any:
    """No attention at all."""
    torch.manual_seed(0)
    config = MambaConfig(vocab_size=257, hidden_size=32, state_size=4, num_hidden_layers=2, initializer_range=0.3)
    config.eos_token_id = config.pad_token_id = config.bos_token_id = 256
    return MambaForCausalLM(config).eval()


def rwkv() -> Any:
    return RwkvForCausalLM(RwkvConfig(vocab_size=257, hidden_size=32, num_hidden_layers=2, context_length=64)).eval()


@pytest.mark.parametrize("make", [rwkv, mamba])
def test_a_model_that_keeps_its_memory_elsewhere_is_refused(make: Any) -> None:
    """It would take every token for the first of a text."""
    engine = TransformersEngine(make(), tiny_tokenizer(), context_limit=64)
    with pytest.raises(BackendError, match="ForCausalLM does not use transformers' KV cache"):
        engine.generate([prompt("Where?")])


@pytest.mark.parametrize("make", [gpt2, qwen3, falcon_h1])
def test_rows_of_different_lengths_write_what_they_write_alone(make: Any) -> None:
    engine = TransformersEngine(make(), tiny_tokenizer())
    requests = [prompt("x" * length, sampling=Sampling(max_tokens=length)) for length in (3, 30, 12, 25)]
    alone = [generate(engine, request)[0].written.tokens for request in requests]
    assert [reply.written.tokens for reply in generate(engine, *requests)] == alone


def test_a_model_that_does_not_say_its_context_length_is_asked_about() -> None:
    model = BloomForCausalLM(BloomConfig(vocab_size=257, hidden_size=32, n_layer=1, n_head=2))
    with pytest.raises(StepladderError, match="pass context_limit"):
        TransformersEngine(model, tiny_tokenizer())
    assert TransformersEngine(model, tiny_tokenizer(), context_limit=99).context_limit == 99


def test_every_token_that_ends_a_turn_counts() -> None:
    """Chat models end their turns with another token than their tokenizer names."""
    model = tiny_model()
    model.generation_config.eos_token_id = [256, ord("b") - 33]
    engine = TransformersEngine(model, tiny_tokenizer())
    assert engine.end_tokens == {256, 65}


def test_a_model_object_is_used_as_it_is_and_left_as_it_was() -> None:
    model = tiny_model().to(torch.bfloat16).train()
    engine = TransformersEngine(model, tiny_tokenizer())
    generate(engine, prompt("Who?", sampling=Sampling(max_tokens=3)))
    assert (model.dtype, model.training, engine.dtype) == (torch.bfloat16, True, torch.bfloat16)
    with pytest.raises(StepladderError, match="leave out device and dtype"):
        TransformersEngine(model, tiny_tokenizer(), dtype="fp32")


def test_parts_of_a_model_that_were_frozen_stay_so() -> None:
    model = tiny_model().train()
    model.model.layers[0].eval()
    generate(TransformersEngine(model, tiny_tokenizer()), prompt("Who?", sampling=Sampling(max_tokens=1)))
    assert (model.model.layers[0].training, model.model.layers[1].training) == (False, True)


def test_dropout_is_off_while_a_training_model_generates() -> None:
    model = tiny_model(attention_dropout=0.9).train()
    engine = TransformersEngine(model, tiny_tokenizer())
    requests = [prompt("Where?", sampling=Sampling(max_tokens=10))] * 2
    first, second = generate(engine, *requests)
    assert first.written.logprobs == pytest.approx(second.written.logprobs)
    assert (
        first.written.tokens
        == generate(TransformersEngine(model.eval(), tiny_tokenizer()), requests[0])[0].written.tokens
    )


# --- the distribution of samples ---------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_sharpens_and_flattens(engine: TransformersEngine, temperature: float) -> None:
    draws = 2000
    sampling = Sampling(temperature, 1.0, 1)
    counts = torch.zeros(257)
    for reply in generate(engine, *[prompt("A", sampling=sampling, seed=seed) for seed in range(draws)]):
        counts[reply.written.tokens[0]] += 1
    logits = engine.model(torch.tensor([list(engine.tokenizer("A")["input_ids"])])).logits[0, -1]
    for other, closer in ((temperature, True), (1.0, False)):
        distance = 0.5 * (counts / draws - torch.softmax(logits / other, -1)).abs().sum()
        assert (distance < 0.16) == closer, f"total variation distance to temperature {other}: {distance:.3f}"


def test_every_position_has_a_draw_of_its_own() -> None:
    """On a model that finds all tokens equally likely, the tokens of a reply are its draws."""
    model = tiny_model()
    torch.nn.init.zeros_(model.lm_head.weight)
    engine = TransformersEngine(model, tiny_tokenizer())
    engine.end_tokens = frozenset()
    (reply,) = generate(engine, prompt("A", sampling=replace(HOT, max_tokens=64)))
    assert len(set(reply.written.tokens)) > 40


def test_temperatures_next_to_nothing_are_greedy(engine: TransformersEngine) -> None:
    cold, greedy = generate(
        engine, prompt("A", sampling=Sampling(1e-308, 1.0, 8)), prompt("A", sampling=Sampling(0, 1.0, 8))
    )
    assert cold.written.tokens == greedy.written.tokens


@pytest.mark.parametrize(
    "settings", [{"temperature": float("nan")}, {"temperature": -1}, {"top_p": 0}, {"max_tokens": 0}]
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        Sampling(**settings)


# --- loading -----------------------------------------------------------------------------------------------


def test_a_saved_model_folder_loads_and_speaks_alike(tmp_path: Path, engine: TransformersEngine) -> None:
    tiny_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    loaded = TransformersEngine(tmp_path / "model", device="cpu")
    request = prompt("Where?", sampling=HOT, seed=9)
    assert generate(loaded, request)[0].written.tokens == generate(engine, request)[0].written.tokens


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("./no/such/model", "no/such/model does not exist; expected a folder with a model"),
        ("/no/such/model", "does not exist"),
    ],
)
def test_a_model_path_that_does_not_exist(model: str, message: str) -> None:
    with pytest.raises(StepladderError, match=message):
        TransformersEngine(model)


def test_a_folder_or_file_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match=r"has no config.json"):
        TransformersEngine(tmp_path)
    (tmp_path / "model.bin").write_text("x")
    with pytest.raises(StepladderError, match="is a file; expected a folder"):
        TransformersEngine(tmp_path / "model.bin")


def test_a_damaged_model_says_what_could_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such-architecture"}')
    with pytest.raises(StepladderError, match="could not be loaded"):
        TransformersEngine(tmp_path)


def cut_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def not_a_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin").write_bytes(b"garbage")


def lose_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def lose_a_shard(folder: Path) -> None:
    lose_weights(folder)
    tiny_model().save_pretrained(folder, max_shard_size="150KB")
    (folder / "model-00002-of-00003.safetensors").unlink()


def lose_the_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


def impossible_heads(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"num_attention_heads": 4', '"num_attention_heads": 3'))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut_weights, r"header too small\. Give a folder"),
        (not_a_pickle, "Weights only load failed"),
        (lose_weights, "no file named model.safetensors"),
        (lose_a_shard, r"No such file or directory: .*model-00002-of-00003.safetensors\. Give"),
        (lose_the_tokenizer, "tokenizer"),
        (impossible_heads, r"hidden size \(64\) is not a multiple"),
    ],
)
def test_a_damaged_folder_is_one_clear_line(tmp_path: Path, damage: Callable[[Path], None], said: str) -> None:
    with quiet_libraries():
        tiny_model().save_pretrained(tmp_path)
        tiny_tokenizer().save_pretrained(tmp_path)
        damage(tmp_path)
    with pytest.raises(StepladderError, match=f"could not be loaded: .*{said}") as caught:
        TransformersEngine(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, which itself cannot be reached."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("smolm2", "Did you mean 'smollm2-135m'"),
        ("Nano", "Did you mean 'nano'"),
        ("my-adapter", "Known: nano, "),
        ("gpt2", "A hub model is named ORGANIZATION/NAME, such as openai-community/gpt2"),
        ("not a name", "comes with Stepladder"),
    ],
)
@pytest.mark.parametrize("load", [TransformersEngine, loading.load_tokenizer])
def test_a_name_that_is_nowhere_is_refused_before_the_hub_is_asked(
    name: str, said: str, load: Callable[[str], Any], hub_cache: Path
) -> None:
    with pytest.raises(StepladderError, match=f"there is no folder '{name}' here, and no model of that .*{said}"):
        load(name)


@pytest.mark.parametrize("load", [TransformersEngine, loading.load_tokenizer])
def test_a_model_that_the_hub_does_not_give_is_not_a_folder_either(load: Callable[[str], Any], hub_cache: Path) -> None:
    said = "there is no folder 'runs/typo', and the hub download failed: .*at 'https://[^ ]*'. Give a folder"
    with pytest.raises(StepladderError, match=said):
        load("runs/typo")
    with pytest.raises(StepladderError, match="model path typo does not exist"):
        load("typo/")


def test_an_old_name_of_the_hub_is_read_from_the_cache(hub_cache: Path) -> None:
    commit = "0" * 40
    folder = hub_cache / "models--gpt2"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    with quiet_libraries():
        tiny_model().save_pretrained(folder / "snapshots" / commit)
        tiny_tokenizer().save_pretrained(folder / "snapshots" / commit)
    assert TransformersEngine("gpt2", device="cpu").tokenizer.get_vocab() == tiny_tokenizer().get_vocab()


def test_an_adapter_is_not_taken_for_a_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(StepladderError, match=r"has no config.json; it is an adapter"):
        TransformersEngine(tmp_path)


def test_unknown_dtype_and_device() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'bf16'"):
        TransformersEngine("tiny", dtype="bf61")
    with pytest.raises(StepladderError, match="unknown device 'gpuu'"):
        TransformersEngine("tiny", device="gpuu")
    if not torch.cuda.is_available():
        with pytest.raises(StepladderError, match="no CUDA device"):
            TransformersEngine("tiny", device="cuda")


def test_a_model_object_needs_its_tokenizer() -> None:
    with pytest.raises(StepladderError, match="needs its tokenizer"):
        TransformersEngine(tiny_model())


@pytest.mark.parametrize(
    ("machine", "known", "avx512_bf16", "amx", "found"),
    [
        ("aarch64", True, False, False, torch.bfloat16),
        ("aarch64", False, False, False, torch.float32),
        ("x86_64", True, True, False, torch.bfloat16),
        ("x86_64", True, False, True, torch.bfloat16),
        ("x86_64", True, False, False, torch.float32),  # emulated with AVX-512
        ("x86_64", False, False, False, torch.float32),
    ],
)
def test_a_processor_without_bf16_computes_in_fp32(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    machine: str,
    known: bool,
    avx512_bf16: bool,
    amx: bool,
    found: torch.dtype,
) -> None:
    """torch would take several times as long, or hundreds of times."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: known)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr("platform.machine", lambda: machine)
    devices._cpu_supports_bf16.cache_clear()
    try:
        assert [devices.pick_dtype("bf16", torch.device("cpu")) for _ in range(2)] == [found, found]
        assert devices.pick_dtype("bf16", torch.device("cuda")) is torch.bfloat16
        assert caplog.text.count("using fp32 instead") == int(found is torch.float32)
    finally:
        devices._cpu_supports_bf16.cache_clear()
