"""The warm-up: what it learns from, that it can be killed and repeated, and how it says no."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.state import AcceleratorState  # type: ignore[import-untyped]
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    LlamaForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
)

from stepladder.agents import make_agent
from stepladder.core.errors import StepladderError
from stepladder.core.io.records import read_records
from stepladder.core.requests import Generate, Generation, Sampling
from stepladder.core.trace import Author, Hop, Segment, Trajectory
from stepladder.driver import Outcome
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.explore.episode import EpisodeConfig
from stepladder.models.length_batches import context_window
from stepladder.models.loading import quiet_libraries
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from stepladder.train.loop.checkpoints import Checkpoints
from stepladder.train.loop.config import LoraConfig
from stepladder.train.loop.context import TrainingContext
from stepladder.train.loop.metrics_log import read_metrics
from stepladder.train.loop.policy_session import PolicySession
from stepladder.train.loop.policy_weights import check_target_modules, load_policy, skip_lora_input_casts
from stepladder.train.loop.rollout_engine import make_rollout_engine, without_autocast
from stepladder.train.loop.training_loop import Compute
from stepladder.train.sft.config import SFTConfig
from stepladder.train.sft.trainer import TrainingReport, train_sft
from stepladder.train.transcripts import fine_tune
from stepladder.train.transcripts.fine_tune import collate, weighted_nll
from stepladder.train.transcripts.tokenized import Example, tokenize_trajectory
from tests.support.samples import QUESTION
from tests.support.sft_training import QUESTIONS, SETTINGS, train
from tests.support.training_runs import losses, weights


def changed(settings: SFTConfig, **changes: Any) -> SFTConfig:
    return SFTConfig(**{**settings.model_dump(exclude_unset=True), **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> TrainingReport:
    return train(tmp_path_factory.mktemp("sft"))


def plain_rows(folder: Path) -> list[dict[str, Any]]:
    """MetricsLog without the times, which differ from run to run."""
    return [{name: value for name, value in row.items() if "seconds" not in name} for row in read_metrics(folder)]


# --- what comes out -----------------------------------------------------------------------------------------


def test_a_warm_up_leaves_a_policy_and_its_history(finished: TrainingReport) -> None:
    folder, summary = finished.policy.parent, finished.numbers
    assert summary["transcripts"] == summary["asked"] == summary["examples"] == 5
    assert summary["steps"] == 6
    assert summary["last_loss"] < summary["first_loss"]
    assert 0 < summary["policy_tokens"] < summary["tokens"]
    rows = read_metrics(folder / "curves.jsonl")
    assert [(row["step"], "loss" in row) for row in rows] == [
        (1, True), (2, True), (3, True), (3, False), (4, True), (5, True), (6, True), (6, False),
    ]  # fmt: skip
    prompt = Generate((Segment(Author.PROMPT, "Question: Who?"),), sampling=Sampling(max_tokens=3))
    (reply,) = TransformersEngine(finished.policy, device="cpu").generate([prompt])
    assert len(reply.written.tokens) == 3  # type: ignore[union-attr]
    assert not [path for path in folder.rglob("*") if path.name.startswith(".")]


def test_what_is_learnt_is_what_an_episode_needs(tmp_path: Path) -> None:
    """The tokens trained on are those an episode reads and writes: two answers, learnt by heart, score 1."""
    questions = [replace(QUESTION, id=name, text=name, answers=(name * 3,)) for name in ("Orm", "Tarn")]
    settings = SFTConfig(num_train_epochs=60, batch_size=2, learning_rate=1e-2, eval_steps=60)
    context = TrainingContext(make_agent("direct"), questions, questions, None, EpisodeConfig(), tmp_path, device="cpu")
    report = train_sft("tiny", context, settings)
    assert report.numbers["best_dev_f1"] == 1.0


def test_the_same_seed_gives_the_same_numbers(finished: TrainingReport, tmp_path: Path) -> None:
    again = train(tmp_path)
    assert plain_rows(tmp_path / "curves.jsonl") == plain_rows(finished.policy.parent / "curves.jsonl")
    assert all(torch.equal(tensor, weights(finished.policy)[name]) for name, tensor in weights(again.policy).items())


def test_an_update_in_parts_is_the_same_update(finished: TrainingReport, tmp_path: Path) -> None:
    """Parts differ in length and weight: each counts by its share of the whole, not as an equal part."""
    train(tmp_path, changed(SETTINGS, gradient_accumulation_steps=2, dev_questions=0))
    assert losses(tmp_path)[:3] == pytest.approx(losses(finished.policy.parent)[:3], rel=1e-4)


def test_so_is_one_for_which_there_is_little_memory(
    finished: TrainingReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepladder.train.loop.base_trainer.max_microbatch_tokens", lambda *_, **__: 1)
    train(tmp_path, changed(SETTINGS, dev_questions=0))
    assert losses(tmp_path) == pytest.approx(losses(finished.policy.parent), rel=1e-4)


def rates(folder: Path) -> list[float]:
    return [row["lr"] for row in read_metrics(folder / "curves.jsonl") if "loss" in row]


def test_a_warm_up_of_the_learning_rate_leaves_an_update_to_learn_in(finished: TrainingReport, tmp_path: Path) -> None:
    one = train(tmp_path / "one", changed(SETTINGS, batch_size=5, num_train_epochs=1, dev_questions=0))
    assert rates(tmp_path / "one") == [SETTINGS.learning_rate]
    before = tiny_model().state_dict()
    assert any(not torch.equal(tensor, before[name]) for name, tensor in weights(one.policy).items())
    train(tmp_path / "two", changed(SETTINGS, batch_size=5, warmup_ratio=0.9, dev_questions=0))
    assert rates(tmp_path / "two") == [0, SETTINGS.learning_rate]
    # Where there are enough updates the share is as it was asked for, rounded up.
    assert [rate > 0 for rate in rates(finished.policy.parent)] == [False, True, True, True, True, True]
    train(tmp_path / "half", changed(SETTINGS, warmup_ratio=0.5, lr_scheduler_type="constant", dev_questions=0))
    assert rates(tmp_path / "half") == pytest.approx(
        [SETTINGS.learning_rate * share for share in (0, 1 / 3, 2 / 3, 1, 1, 1)]
    )


def test_the_loss_is_the_mean_over_an_update_by_another_implementation(tmp_path: Path) -> None:
    """Parts of unequal length and weight; the first update is made with the weights as they came."""
    short = replace(QUESTION, id="short", answers=("Ada Tarn",), hops=(Hop("Who built it?", "Ada Tarn", ("p1",)),))
    settings = changed(SETTINGS, batch_size=4, gradient_accumulation_steps=4, num_train_epochs=1, dev_questions=0)
    train(tmp_path, settings, questions=[*QUESTIONS[:2], short, replace(short, id="other")])
    model, engine = tiny_model(), TransformersEngine("tiny", device="cpu")
    total = weight = 0.0
    for trajectory in read_records(tmp_path / "transcripts.jsonl", Trajectory):
        (example,) = tokenize_trajectory(trajectory, engine, settings.tag_weights)
        with torch.no_grad():
            logprobs_TV = model(torch.tensor([example.tokens])).logits[0].log_softmax(-1)
        for place in range(1, len(example.tokens)):
            total -= example.weights[place] * logprobs_TV[place - 1, example.tokens[place]].item()
            weight += example.weights[place]
    assert read_metrics(tmp_path / "curves.jsonl")[0]["loss"] == pytest.approx(total / weight, rel=1e-4)


def test_nothing_is_said_but_by_us(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "sft"
    train(folder, changed(SETTINGS, num_train_epochs=1, questions=2, lora=LoraConfig(r=2)))
    stdout, stderr = capfd.readouterr()
    assert stdout == ""
    update, dev = stderr.splitlines()
    assert update.startswith("sft: update 1/1, loss ")
    assert dev.startswith("sft: dev at update 1: F1 ")


def test_a_finished_run_is_not_trained_again(finished: TrainingReport) -> None:
    def never(outcome: Outcome[Any]) -> None:
        pytest.fail("there was nothing left to do")

    before = weights(finished.policy)
    again = train(finished.policy.parent, watch=never)
    assert again.numbers == finished.numbers
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(again.policy).items())


# --- kill and resume ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"dev_questions": 0, "lora": LoraConfig(r=2, lora_dropout=0.3)},
        {"precision": "bf16", "gradient_accumulation_steps": 2},
    ],
    ids=["lora", "bf16"],
)
def test_resuming_in_the_middle_of_an_epoch_keeps_the_order(tmp_path: Path, changes: dict[str, Any]) -> None:
    settings = changed(SETTINGS, eval_steps=2, **changes)
    whole = train(tmp_path / "whole", settings)

    class Stop(Exception):
        """Ends a run."""

    def watch(outcome: Outcome[Any]) -> None:
        if outcome.index + 1 == 3 and isinstance(outcome.value, float):
            raise Stop

    with pytest.raises(Stop):
        train(tmp_path / "cut", settings, watch=watch)
    assert Checkpoints(tmp_path / "cut" / "checkpoints").complete == [2]
    resumed = train(tmp_path / "cut", settings)
    for name, tensor in weights(resumed.policy).items():
        torch.testing.assert_close(tensor, weights(whole.policy)[name], rtol=1e-4, atol=1e-5)


# --- which checkpoint ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scores", "best"), [((0.5, 0.7, 0.2), 6), ((0.7, 0.7, 0.2), 6), ((0.9, 0.1, 0.2), 3)])
def test_the_best_by_dev_score_is_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: tuple[float, ...], best: int
) -> None:
    given = iter(scores)
    monkeypatch.setattr(PolicySession, "dev_evaluator", lambda *_: lambda: {"f1": next(given)})
    report = train(tmp_path, changed(SETTINGS, num_train_epochs=3))
    assert report.numbers["best_step"] == best
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.complete == [best, 9]
    for name, tensor in weights(checkpoints.at(best)).items():
        assert torch.equal(tensor, weights(report.policy)[name])


def test_lora_is_merged_into_an_ordinary_model(tmp_path: Path) -> None:
    report = train(tmp_path, changed(SETTINGS, lora=LoraConfig(r=2), dev_questions=0))
    assert "best_step" not in report.numbers
    assert not (report.policy / "adapter_config.json").exists()
    with quiet_libraries():
        merged = AutoModelForCausalLM.from_pretrained(report.policy)
        adapted = PeftModel.from_pretrained(tiny_model(), str(tmp_path / "checkpoints" / "checkpoint-6"))
    ids = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(merged(ids).logits, adapted(ids).logits, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(merged(ids).logits, tiny_model()(ids).logits, atol=1e-2)


# --- what cannot be trained ---------------------------------------------------------------------------------


def test_a_loss_that_is_no_number_ends_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = fine_tune.weighted_nll, []

    def breaks(model: Any, batch: Any) -> torch.Tensor:
        calls.append(batch)
        return real(model, batch) * (float("nan") if len(calls) == 5 else 1.0)

    monkeypatch.setattr(fine_tune, "weighted_nll", breaks)
    with pytest.raises(StepladderError, match=r"stopped at update 5: the loss is nan.*bad_batch.json"):
        train(tmp_path)
    found = json.loads((tmp_path / "bad_batch.json").read_text())
    assert found["questions"] == calls[-1]["question_ids"]
    assert Checkpoints(tmp_path / "checkpoints").complete == [3]
    assert not (tmp_path / "policy").exists()


def test_transcripts_beyond_the_window_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with quiet_libraries():
        tiny_model(max_position_embeddings=400).save_pretrained(tmp_path / "model")
        tiny_tokenizer().save_pretrained(tmp_path / "model")
    short = replace(QUESTION, id="short", answers=("Ada Tarn",), hops=(Hop("Who built it?", "Ada Tarn", ("p1",)),))
    settings = changed(SETTINGS, num_train_epochs=1, dev_questions=0)
    report = train(tmp_path / "run", settings, model=tmp_path / "model", questions=[*QUESTIONS, short])
    assert (report.numbers["skipped_too_long"], report.numbers["examples"]) == (5, 1)
    assert "skipped 5 of 6 transcripts: longer than the context window of 400 tokens" in capsys.readouterr().err
    with pytest.raises(StepladderError, match=r"none of 5 transcripts fits .* 400 tokens: they have 5\d\d to"):
        train(tmp_path / "none", settings, model=tmp_path / "model")


def other_models() -> dict[str, Callable[[], Any]]:
    tiny = tiny_model().config
    small = {"vocab_size": 257, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32}
    t5 = {"vocab_size": 257, "d_model": 32, "d_ff": 32, "num_layers": 1, "num_heads": 2, "d_kv": 8}
    return {
        "BertForMaskedLM; expected a causal": lambda: BertForMaskedLM(BertConfig(num_hidden_layers=1, **small)),
        "T5ForConditionalGeneration; expected a causal": lambda: T5ForConditionalGeneration(T5Config(**t5)),
        "LlamaForSequenceClassification; expected a causal": lambda: LlamaForSequenceClassification(tiny),
    }


@pytest.mark.parametrize("said", sorted(other_models()))
def test_a_model_of_another_architecture_is_refused(tmp_path: Path, said: str) -> None:
    with quiet_libraries():
        other_models()[said]().save_pretrained(tmp_path / "model")
    with pytest.raises(StepladderError, match=said):
        train(tmp_path / "run", model=tmp_path / "model")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_hidden_layers": 3}, "9 missing"),
        ({"num_hidden_layers": 1}, "9 not in the model"),
        ({"intermediate_size": 64}, "6 of another shape"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, int], said: str) -> None:
    with quiet_libraries():
        tiny_model().save_pretrained(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    with pytest.raises(StepladderError, match=f"do not fit its config.json: {said}"):
        train(tmp_path / "run", model=tmp_path / "model")


def test_layers_that_are_not_there_cannot_be_adapted(tmp_path: Path) -> None:
    with pytest.raises(
        StepladderError, match=r"lora.target_modules does not fit model 'tiny': .*nope.*: down_proj, .*v_proj"
    ):
        train(tmp_path, changed(SETTINGS, lora=LoraConfig(target_modules=("nope",))))


def test_checkpoints_without_their_curves_are_not_guessed_about(tmp_path: Path) -> None:
    train(tmp_path, changed(SETTINGS, num_train_epochs=1))
    (tmp_path / "curves.jsonl").unlink()
    with pytest.raises(StepladderError, match=r"curves.jsonl has 0 of the 3 updates .* delete .*checkpoints to train"):
        train(tmp_path, changed(SETTINGS, num_train_epochs=1))


def test_settings_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(StepladderError, match="batch_size 8 is not a multiple of gradient_accumulation_steps 3"):
        SFTConfig.read({"gradient_accumulation_steps": 3})
    with pytest.raises(StepladderError, match="needs teacher_model"):
        SFTConfig.read({"source": "teacher"})


def test_a_teacher_that_would_not_be_asked_is_refused() -> None:
    with pytest.raises(StepladderError, match="teacher_model has no effect with source: gold"):
        SFTConfig.read({"source": "gold", "teacher_model": "x"})


@pytest.fixture
def accelerator() -> Iterator[Any]:
    """One that trains in bf16. Its library keeps a state for the whole process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield Accelerator(mixed_precision="bf16", cpu=True)
    AcceleratorState._reset_state(reset_partial_state=True)


def test_a_small_model_writes_in_the_precision_of_its_weights_though_it_is_trained_in_another(accelerator: Any) -> None:
    model = tiny_model()
    seen: list[torch.dtype] = []
    assert accelerator.prepare(model) is model
    ids = torch.ones(1, 4, dtype=torch.long)
    layer = next(module for module in model.modules() if isinstance(module, torch.nn.Linear))
    layer.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    model(input_ids=ids)
    with without_autocast(model):
        model(input_ids=ids)
    model(input_ids=ids)
    assert seen == [torch.bfloat16, torch.float32, torch.bfloat16]


def test_lora_leaves_conversions_to_autocast_and_makes_its_own_without(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    model = load_policy(tmp_path, LoraConfig(r=2), bf16=True, device=torch.device("cpu")).model
    ids = torch.arange(5, 45)[None]
    layer = next(each for each in model.modules() if isinstance(each, torch.nn.Linear) and each.out_features == 2)
    given: list[torch.dtype] = []
    layer.register_forward_hook(lambda _, inputs, __: given.append(inputs[0].dtype))

    def logits() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            found: torch.Tensor = model(input_ids=ids).logits
        return found

    converted = logits()
    skip_lora_input_casts(model)
    assert torch.equal(logits(), converted)
    with without_autocast(model):
        model(input_ids=ids)
    logits()
    assert given == [torch.float32, torch.bfloat16, torch.float32, torch.bfloat16]


@pytest.mark.parametrize("lora", [None, LoraConfig(r=2)], ids=["all weights", "lora"])
def test_a_large_model_is_played_by_a_copy_that_keeps_in_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lora: LoraConfig | None
) -> None:
    monkeypatch.setattr("stepladder.train.loop.policy_weights._SMALL", 1)
    tiny_model().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    place = Compute(torch.device("cpu"), True, 0, None)
    policy = load_policy(tmp_path, lora, bf16=True, device=place.device)
    engine, playing = make_rollout_engine(policy, place, 4)
    assert isinstance(engine, TransformersEngine)
    assert engine.dtype is torch.bfloat16
    request = Generate((Segment(Author.PROMPT, "Where?"),), sampling=Sampling(max_tokens=8))

    def played() -> Generation:
        with playing():
            (reply,) = engine.generate([request])
        assert isinstance(reply, Generation)
        return reply

    before = played()
    with torch.no_grad():  # a step of an optimizer
        for name, weights in policy.model.named_parameters():
            if weights.requires_grad:
                weights.add_(0.2 if "lora" in name else 0.02 * torch.randn_like(weights))
    after = played()
    assert after.written.logprobs != before.written.logprobs
    tokens = [*after.context[0].tokens, *after.written.tokens]
    logits = policy.model(input_ids=torch.tensor([tokens])).logits[0, len(after.context[0].tokens) - 1 : -1]
    expected = logits.float().log_softmax(-1)[range(len(after.written.tokens)), list(after.written.tokens)]
    assert list(after.written.logprobs) == pytest.approx(expected.tolist(), abs=0.2)  # as far as bf16 goes


def test_lora_of_an_output_layer_that_is_the_embeddings_too_is_refused() -> None:
    cpu = torch.device("cpu")
    for targets, tied in ((("q_proj",), True), (("lm_head",), False)):
        model = tiny_model()
        model.config.tie_word_embeddings = tied
        check_target_modules(model, LoraConfig(target_modules=targets), "tiny")
    assert tiny_model().config.tie_word_embeddings
    with pytest.raises(StepladderError, match="the output layer lm_head"):
        load_policy("tiny", LoraConfig(target_modules=("q_proj", "lm_head")), bf16=False, device=cpu)


def test_a_small_model_and_one_trained_in_fp32_play_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    for bf16, worth in ((True, 100e6), (False, 1)):
        monkeypatch.setattr("stepladder.train.loop.policy_weights._SMALL", worth)
        place = Compute(torch.device("cpu"), bf16, 0, None)
        policy = load_policy("tiny", None, bf16=False, device=place.device)
        engine, _ = make_rollout_engine(policy, place, 4)
        assert isinstance(engine, TransformersEngine)
        assert engine.model is policy.model


def test_a_batch_is_not_padded_beyond_the_window_of_its_model() -> None:
    """Learned positions end there."""
    model = AutoModelForCausalLM.from_config(GPT2Config(vocab_size=300, n_positions=50, n_embd=8, n_layer=1, n_head=2))
    example = Example("q", tuple(range(1, 50)), (1.0,) * 49)
    loss = weighted_nll(model, collate([example], context_window(model)))
    assert torch.isfinite(loss)
    assert collate([example])["input_ids"].shape == (1, 64)
