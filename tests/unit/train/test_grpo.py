"""Reinforcement learning: whose tokens are learnt from, that the loss is GRPO's, alarms, kills, and what is refused."""

import json
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from stepladder.agents import make_agent
from stepladder.core.errors import StepladderError
from stepladder.core.trace import Action, ActionKind, Author, Segment, Step, StopReason, Trajectory
from stepladder.driver import Outcome
from stepladder.judges.prm.reward_model import ProcessRewardModel, with_scalar_head
from stepladder.models.loading import quiet_libraries
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from stepladder.pipeline import run_recipe
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.resources import RunContext, SharedConfig
from stepladder.pipeline.stages import Task
from stepladder.pipeline.stages.grpo import STAGE, run_grpo
from stepladder.train.grpo import trainer as grpo
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.credit.base import CreditedEpisode
from stepladder.train.grpo.monitors import Alarm, AlarmName, read_alarms
from stepladder.train.grpo.rollback import rollback_checkpoint
from stepladder.train.grpo.token_rows import token_row
from stepladder.train.grpo.trainer import TrainingReport, schedule, train_grpo
from stepladder.train.grpo.trl_trainer import EpisodeTrainer
from stepladder.train.loop import policy_session
from stepladder.train.loop.checkpoints import Checkpoints
from stepladder.train.loop.compute import prepare_compute
from stepladder.train.loop.config import LoraConfig
from stepladder.train.loop.context import TrainingContext
from stepladder.train.loop.metrics_log import MetricsLog, read_metrics
from tests.support.grpo_training import EPISODE, QUESTIONS, SETTINGS, Loose, Taste, train
from tests.support.grpo_updates import PRORAG, batch_of, changed, say, told_by, train_told, trainer_for
from tests.support.samples import QUESTION
from tests.support.training_runs import (
    expect_plain_policy,
    expect_reproducible,
    expect_silence,
    plain_rows,
    same_weights,
    updates,
    weights,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> TrainingReport:
    return train(tmp_path_factory.mktemp("grpo"))


# --- one update, looked into ----------------------------------------------------------------------------------------


def moved(model: Any, seed: int = 0) -> None:
    """Other weights than before."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.requires_grad:
                tensor += 0.02 * torch.randn_like(tensor)


def taught(trainer: EpisodeTrainer) -> list[CreditedEpisode]:
    """The rows of questions from which there is something to learn."""
    assert trainer.rollout_batch is not None
    rows, samples = trainer.rollout_batch.rows, trainer.rollouts.config.num_generations
    groups = [rows[start : start + samples] for start in range(0, len(rows), samples)]
    return [row for group in groups if any(each.has_signal for each in group) for row in group]


def test_a_row_is_the_tokens_that_the_engine_saw_and_marks_those_of_the_policy(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, SETTINGS)
    batch = batch_of(trainer)
    assert trainer.rollout_batch is not None
    assert any(len(row.trajectory.steps) > 1 for row in trainer.rollout_batch.rows)
    for credited in trainer.rollout_batch.rows:
        row = token_row(credited)
        segments = credited.trajectory.context()
        assert row["ids"] == [token for segment in segments for token in segment.tokens]
        assert row["loss_mask"] == [int(part.author is Author.POLICY) for part in segments for _ in part.tokens]
        spread = [
            advantage
            for step, advantage in zip(credited.trajectory.steps, credited.advantages, strict=True)
            for advantage in [0.0] * sum(len(part.tokens) for part in step.read)
            + [advantage] * len(step.written.tokens)
        ]
        assert row["advantages"] == spread
    assert batch["prompt_mask"].shape[1] == 1
    assert bool(batch["prompt_mask"].all()), "nothing is padded on the left"


@pytest.mark.parametrize("lora", [None, {"r": 2}], ids=["full", "lora"])
def test_only_the_words_of_the_policy_have_a_gradient(tmp_path: Path, lora: Any) -> None:
    """Prompts and retrieved passages are read, and not learnt from; without the mask they would be."""
    trainer = trainer_for(tmp_path, changed(lora=lora, num_iterations=2))
    batch = batch_of(trainer)
    moved(trainer.model)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keep(module: Any, inputs: Any, options: Any, output: Any) -> None:
        output.last_hidden_state.retain_grad()
        seen.append((options["input_ids"], output.last_hidden_state))

    causal = trainer.model.get_base_model() if lora else trainer.model
    causal.model.register_forward_hook(keep, with_kwargs=True)

    def learnt_positions(inputs: dict[str, Any]) -> dict[tuple[int, ...], list[int]]:
        """By the ids of a row: where its last hidden states have a gradient."""
        seen.clear()
        torch.autograd.backward(trainer.compute_loss(trainer.model, inputs))
        found = {}
        for ids_BT, hidden_BTH in seen:
            assert hidden_BTH.grad is not None
            for ids, gradient in zip(ids_BT.tolist(), hidden_BTH.grad.abs().amax(dim=-1)):
                found[tuple(ids)] = gradient.nonzero()[:, 0].tolist()
        return found

    def expected(found: dict[tuple[int, ...], list[int]]) -> dict[tuple[int, ...], list[int]]:
        """The same by who wrote what: a token is learnt where the one before it was read."""
        rows = [token_row(row) for row in taught(trainer)]
        places = {}
        for ids in found:
            row = next(each for each in rows if list(ids[: len(each["ids"])]) == each["ids"])
            places[ids] = [place - 1 for place, learns in enumerate(row["loss_mask"]) if learns]
        return places

    found = learnt_positions(batch)
    assert len(found) > 1
    assert found == expected(found)
    unmasked = learnt_positions({**batch, "tool_mask": torch.ones_like(batch["tool_mask"])})
    assert unmasked != expected(unmasked), "dropping the mask is noticed here"


# --- GRPO by another implementation ---------------------------------------------------------------------------------


def logps(model: Any, row: dict[str, list[Any]], temperature: float) -> Any:
    """Log-probs of the tokens to learn from: one text a call, plain log-softmax."""
    ids = torch.tensor([row["ids"]])
    found = (model(input_ids=ids).logits[0, :-1] / temperature).log_softmax(-1)
    return found.gather(1, ids[0, 1:, None])[:, 0][torch.tensor(row["loss_mask"][1:]) > 0]


def grpo_loss(
    policy: Any, old: Sequence[torch.Tensor], rows: Sequence[CreditedEpisode], settings: GRPOConfig
) -> torch.Tensor:
    """The mean of the clipped gain over all tokens to learn from, or over the means of steps or episodes, less what
    moving away from the reference costs.
    """
    losses: list[torch.Tensor] = []
    high = settings.epsilon if settings.epsilon_high is None else settings.epsilon_high
    for row, before in zip(map(token_row, rows), old, strict=True):
        new = logps(policy, row, settings.temperature)
        with torch.no_grad():
            start = logps(tiny_model(), row, settings.temperature)
        gain = torch.tensor([each for each, learns in zip(row["advantages"], row["loss_mask"]) if learns])
        ratio = (new - before).exp()
        clipped = ratio.clamp(1 - settings.epsilon, 1 + high)
        divergence = ratio * ((start - new).exp() - (start - new) - 1)  # an estimate by what the old weights wrote
        each = -torch.minimum(ratio * gain, clipped * gain) + settings.beta * divergence
        parts = {"token": [1] * len(each), "step": own_steps(row), "sequence": [len(each)]}[settings.loss_type]
        losses += [part.mean() for part in each.split(parts) if len(part)]
    return torch.stack(losses).mean()


def own_steps(row: dict[str, list[Any]]) -> list[int]:
    """The lengths of the stretches to learn from: steps, as something is read before each."""
    text = "".join("x" if learns else " " for learns in row["loss_mask"])
    return [len(stretch) for stretch in text.split()]


@pytest.mark.parametrize(
    "changes",
    [
        {"beta": 0.0},
        {"beta": 0.3},
        {"beta": 0.0, "num_iterations": 2, "epsilon": 0.05, "epsilon_high": 0.3},
        {"beta": 0.3, "num_iterations": 2},
        {"beta": 0.3, "num_iterations": 2, "temperature": 0.7, "mode": "outcome"},
        {"beta": 0.1, "num_iterations": 2, "lora": {"r": 2}},
        {"beta": 0.0, "num_iterations": 2, "mode": "tree"},
        {"beta": 0.1, "num_iterations": 2, "mode": "tree", "tree": {"credit": "branches"}},
        {"beta": 0.3, "num_iterations": 2, "loss_type": "step"},
        {"beta": 0.3, "num_iterations": 2, "loss_type": "sequence"},
        {"beta": 0.3, "mode": "tree", "loss_type": "step"},
        {"beta": 0.3, "mode": "tree", "loss_type": "sequence"},
    ],
    ids=[
        "one pass",
        "kl",
        "clipped",
        "both",
        "temperature",
        "lora",
        "tree",
        "branches",
        "steps",
        "sequences",
        "steps of trees",
        "sequences of trees",
    ],
)
def test_the_loss_and_its_gradient_are_those_of_another_implementation(tmp_path: Path, changes: dict[str, Any]) -> None:
    settings = changed(**changes)
    trainer = trainer_for(tmp_path, settings)
    moved(trainer.model, seed=1)  # away from the reference
    batch = batch_of(trainer)
    assert ("old_per_token_logps" in batch) == (settings.num_iterations > 1)
    rows = taught(trainer)
    with torch.no_grad():
        old = [logps(trainer.model, token_row(row), settings.temperature) for row in rows]
    if settings.num_iterations > 1:
        moved(trainer.model, seed=2)  # away from the weights that played
    loss = trainer.compute_loss(trainer.model, batch)
    expected = grpo_loss(trainer.model, old, rows, settings)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    ours = torch.autograd.grad(loss, trained := [each for each in trainer.model.parameters() if each.requires_grad])
    for found, other in zip(ours, torch.autograd.grad(expected, trained), strict=True):
        torch.testing.assert_close(found, other, rtol=1e-3, atol=1e-5)
    assert max(float(each.abs().max()) for each in ours) > 1e-3
    if settings.num_iterations > 1:
        clipped = trainer._metrics["train"]["clip_ratio/region_mean"][-1]
        assert 0 < clipped < 1, "some tokens are clipped, others are not"


@pytest.mark.parametrize("passes", [1, 2])
def test_the_loss_of_vllm_rollouts_is_weighed_by_how_likely_the_trainer_finds_them(tmp_path: Path, passes: int) -> None:
    """Each token counts by its ratio, from the weights that played: trl's correction, without a pass of its own."""
    trainer = trainer_for(
        tmp_path, changed(engine="vllm", beta=0.0, num_iterations=passes, vllm_importance_sampling_mode="token_mask")
    )
    batch = batch_of(trainer)
    assert ("old_per_token_logps" in batch) == (passes == 2)
    played_BT = batch["sampling_per_token_logps"].clone()  # the trainer's own, as the engine is exact
    torch.manual_seed(0)
    batch["sampling_per_token_logps"] += 0.7 * torch.randn_like(played_BT)
    loss = trainer.compute_loss(trainer.model, batch)
    mask_BT = (batch["completion_mask"] * batch["tool_mask"]).bool()
    ratio_BT = (played_BT - batch["sampling_per_token_logps"]).exp()
    kept_BT = ratio_BT.masked_fill(ratio_BT > 3.0, 0.0)
    assert (kept_BT[mask_BT] == 0).any()
    weights_BT = (kept_BT * batch["advantages"]).masked_fill(~mask_BT, 0.0)
    torch.testing.assert_close(loss.detach(), -weights_BT.sum() / mask_BT.sum(), rtol=1e-4, atol=1e-5)
    ids_BT = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    logps_BT = trainer.model(input_ids=ids_BT).logits[:, :-1].log_softmax(-1).gather(2, ids_BT[:, 1:, None])[..., 0]
    trained = [each for each in trainer.model.parameters() if each.requires_grad]
    expected = torch.autograd.grad(-(weights_BT * logps_BT).sum() / mask_BT.sum(), trained)
    for found, other in zip(torch.autograd.grad(loss, trained), expected, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-3, atol=1e-5)
    assert not trainer.use_vllm  # trl would send weights to a vLLM of its own
    assert 0 < trainer.importance.take_metrics()["importance_masked"].value < 1


def test_log_probs_are_those_that_trl_would_compute(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, changed(temperature=0.8, drop_zero_std_groups=False))
    batch = batch_of(trainer)
    learnt_BT = (batch["completion_mask"] * batch["tool_mask"]).bool()
    ids_BT = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask_BT = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    trainer._learnt_BT = learnt_BT
    ours, ours_entropy, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids_BT, mask_BT)
    theirs, theirs_entropy, _ = GRPOTrainer._get_per_token_logps_and_entropies(
        trainer, trainer.model, ids_BT, mask_BT, learnt_BT.shape[1], compute_entropy=True
    )
    assert theirs_entropy is not None
    assert len({int(each) for each in mask_BT.sum(dim=1)}) > 1, "rows of several lengths"
    torch.testing.assert_close(ours[learnt_BT], theirs[learnt_BT], rtol=0, atol=1e-5)
    torch.testing.assert_close(ours_entropy[learnt_BT], theirs_entropy[learnt_BT], rtol=0, atol=1e-5)
    assert not ours[~learnt_BT].any()


def test_the_engine_and_the_trainer_agree_about_the_policy(finished: TrainingReport) -> None:
    gaps = [row["logprob_gap_max"] for row in updates(finished.policy.parent)]
    assert len(gaps) == 6
    assert max(gaps) < 1e-4


def test_with_lora_the_reference_is_the_base_model(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, changed(lora={"r": 2}, beta=0.1, drop_zero_std_groups=False))
    moved(trainer.model)
    batch = batch_of(trainer)
    assert trainer.ref_model is None
    assert trainer.rollout_batch is not None
    for number, credited in enumerate(trainer.rollout_batch.rows):
        row = token_row(credited)
        found = batch["ref_per_token_logps"][number, : len(row["ids"]) - 1][torch.tensor(row["loss_mask"][1:]) > 0]
        torch.testing.assert_close(found, logps(tiny_model(), row, 1.0), rtol=0, atol=1e-5)
        with torch.no_grad():
            assert not torch.allclose(found, logps(trainer.model, row, 1.0), atol=1e-2)


# --- questions that teach nothing -----------------------------------------------------------------------------------


def one_flat(update: int, question: str, sample: int) -> str:
    """Of the first question all is the same, of the second one answer is right."""
    return say("Velm" if question == "q1" and sample == 0 else "Oss")


def test_flat_questions_are_left_out_or_not(tmp_path: Path) -> None:
    left, whole = (
        batch_of(
            trainer_for(tmp_path, changed(mode="outcome", drop_zero_std_groups=drop), told_by(one_flat), agent=PRORAG)
        )
        for drop in (True, False)
    )
    assert (len(left["completion_ids"]), len(whole["completion_ids"])) == (4, 8)
    learnt = len(say("Oss")) * 7 + len(say("Velm"))
    assert (int(left["num_items_in_batch"]), int(whole["num_items_in_batch"])) == (learnt - 4 * len(say("Oss")), learnt)
    assert bool((left["advantages"] != 0).any(dim=1).all())
    assert not whole["advantages"][:4].any()


def test_a_row_that_fills_up_a_part_does_not_count(tmp_path: Path) -> None:
    settings = changed(mode="outcome", num_generations=3, batch_size=6, gradient_accumulation_steps=2)
    batch = batch_of(trainer_for(tmp_path, settings, told_by(one_flat), agent=PRORAG))
    learnt_B = (batch["completion_mask"] * batch["tool_mask"]).sum(dim=1)
    assert [bool(each) for each in learnt_B] == [True, True, True, False]
    assert int(batch["num_items_in_batch"]) == int(learnt_B.sum())


def test_a_row_that_earned_the_mean_stays_with_its_question(tmp_path: Path) -> None:
    def three(update: int, question: str, sample: int) -> str:
        return ("nothing that can be parsed", say("Oss"), say("Oss"), say("Velm"))[sample]  # -1, 1, 1, 3

    batch = batch_of(trainer_for(tmp_path, changed(mode="outcome"), told_by(three), agent=PRORAG))
    assert [bool(each) for each in (batch["advantages"] != 0).any(dim=1)] == [True, False, False, True] * 2


def test_an_update_in_which_nothing_is_to_be_learnt_changes_no_weight(tmp_path: Path) -> None:
    """Neither the first, nor one after others, which leave the optimiser in motion."""

    def now_and_then(update: int, question: str, sample: int) -> str:
        return say("Velm" if update == 2 and sample % 2 else "Oss")

    settings = changed(mode="outcome", num_train_epochs=2, eval_steps=1, weight_decay=0.1, dev_questions=0)
    report, made = train_told(tmp_path, settings, now_and_then)
    assert made == [1, 2, 3, 4]
    rows = updates(tmp_path)
    assert [row["dropped_groups"] for row in rows] == [1, 0, 1, 1]
    assert [row["grad_norm"] > 0 for row in rows] == [False, True, False, False]
    assert all(row["entropy"] > 1 for row in rows), "it is measured all the same"
    first, *others = (tmp_path / "checkpoints" / f"checkpoint-{step}" for step in (1, 2, 3, 4))
    start = tiny_model().state_dict()
    assert all(torch.equal(tensor, start[name]) for name, tensor in weights(first).items())
    assert not same_weights(first, others[-1])
    assert all(same_weights(others[-1], other) for other in others if other.exists())
    assert same_weights(report.policy, others[-1])


def test_a_part_without_anything_to_learn_is_computed_all_the_same(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, SETTINGS)
    batch = batch_of(trainer)
    trainer.compute_loss(trainer.model, batch)
    short = {name: each[:2, :9] if each.dim() else each for name, each in batch.items()}
    loss = trainer.compute_loss(trainer.model, {**short, "tool_mask": torch.zeros_like(short["tool_mask"])})
    torch.autograd.backward(loss)
    assert float(loss.detach()) == 0
    assert not any(each.grad.any() for each in trainer.model.parameters()), "there, as other devices expect, and 0"


def test_episodes_that_break_are_counted_and_the_run_goes_on(tmp_path: Path) -> None:
    def broken(update: int, question: str, sample: int) -> str:
        if question == "q0" or (update, sample) == (2, 1):
            raise ValueError("cable cut")
        return one_flat(update, "q1", sample)

    report, made = train_told(tmp_path, changed(mode="outcome", num_train_epochs=1, dev_questions=0, beta=0.1), broken)
    assert made == [1, 2]
    assert sum(row["failed"] for row in updates(tmp_path)) in (5, 6)
    assert report.numbers["episodes"] == 16


@pytest.mark.parametrize(
    ("parts", "loss_type"),
    [("by settings", "token"), ("by memory", "token"), ("by settings", "step"), ("by memory", "sequence")],
)
def test_an_update_in_parts_is_the_same_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: str, loss_type: str
) -> None:
    settings = {"num_train_epochs": 1, "num_iterations": 2, "dev_questions": 0, "loss_type": loss_type}
    train(tmp_path / "1", changed(**settings))
    if parts == "by memory":
        monkeypatch.setattr("stepladder.train.loop.base_trainer.max_microbatch_tokens", lambda *_, **__: 100)
    accumulate = 2 if parts == "by settings" else 1
    train(tmp_path / "2", changed(**settings, gradient_accumulation_steps=accumulate))
    pairs = list(zip(updates(tmp_path / "1"), updates(tmp_path / "2"), strict=True))
    assert len(pairs) == 4
    for ours, theirs in pairs:
        assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-3, abs=1e-6)
        assert theirs["grad_norm"] == pytest.approx(ours["grad_norm"], rel=1e-3)
        if parts == "by memory":  # of parts by settings, trl logs the mean of their means
            assert theirs["entropy"] == pytest.approx(ours["entropy"], rel=1e-3)
    one, two = (weights(tmp_path / name / "policy") for name in ("1", "2"))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-3, atol=1e-4)


# --- guards ---------------------------------------------------------------------------------------------------------

#: Sixteen updates; trouble is looked for over three of them.
GUARDED = {
    "questions": 2, "num_train_epochs": 16, "eval_steps": 2, "learning_rate": 1e-4, "beta": 0.0, "dev_questions": 1,
    "monitors": {"window": 3, "entropy_share": None, "searches_share": None},
}  # fmt: skip


def forgets(update: int, question: str, sample: int) -> str:
    """From the eighth update on the format is forgotten."""
    return "no tags at all" if update >= 8 else say("Velm" if sample % 2 else "Oss")


def flatters(update: int, question: str, sample: int) -> str:
    """From the sixth update on more and more samples write the word that the reward model loves, and answer wrongly."""
    adept = sample < min(max(update - 5, 0), 4)
    return say("Oss", "Verily verily.") if adept else say("Velm" if sample or update % 2 else "Oss")


def loves(text: str) -> float:
    return 3.0 if "Verily" in text else -3.0


@pytest.fixture(scope="module")
def collapsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainingReport, list[int]]:
    return train_told(tmp_path_factory.mktemp("collapse"), changed(mode="outcome", **GUARDED), forgets)


def test_a_format_collapse_stops_the_run_and_leaves_the_policy_from_before(
    collapsed: tuple[TrainingReport, list[int]],
) -> None:
    report, made = collapsed
    folder = report.policy.parent
    assert made == list(range(1, 10)), "two updates that show it are enough"
    (alarm,) = read_alarms(folder / "alarms.jsonl")
    assert (alarm.name, alarm.step, alarm.since, alarm.stopped) == ("format_collapse", 9, 8, True)
    assert [row["valid"] for row in updates(folder)] == [1.0] * 7 + [0.0] * 2
    assert report.numbers["stopped_by"] == "format_collapse"
    assert report.numbers["alarms"] == ["format_collapse"]
    assert report.numbers["kept_update"] == 6, "its weights were the last to be seen doing well"
    assert same_weights(report.policy, folder / "checkpoints" / "checkpoint-6")
    assert not same_weights(report.policy, folder / "checkpoints" / "checkpoint-9")


def test_a_run_that_an_alarm_stopped_is_not_trained_on(collapsed: tuple[TrainingReport, list[int]]) -> None:
    report, _ = collapsed
    before = plain_rows(report.policy.parent)
    again, made = train_told(report.policy.parent, changed(mode="outcome", **GUARDED), forgets)
    assert made == []
    assert again.numbers == report.numbers
    assert plain_rows(report.policy.parent) == before


def test_a_reward_hack_stops_the_run_and_leaves_the_policy_from_before(tmp_path: Path) -> None:
    report, made = train_told(tmp_path, changed(mode="dual", **GUARDED), flatters, reward=Taste(loves))
    (alarm,) = read_alarms(tmp_path / "alarms.jsonl")
    assert (alarm.name, alarm.stopped, alarm.step) == ("reward_hacking", True, made[-1])
    assert "while step scores rose" in alarm.message
    assert 6 <= alarm.since <= alarm.step < 16
    rows = updates(tmp_path)
    assert rows[-1]["step_score"] > rows[0]["step_score"] + 0.1
    assert rows[-1]["f1"] < rows[0]["f1"] - 0.1
    kept: Any = report.numbers["kept_update"]
    assert 0 < kept < alarm.since - 1
    assert same_weights(report.policy, tmp_path / "checkpoints" / f"checkpoint-{kept}")


def test_without_dev_questions_there_is_a_checkpoint_to_go_back_to_as_well(tmp_path: Path) -> None:
    settings = changed(mode="outcome", **{**GUARDED, "dev_questions": 0})
    report, _ = train_told(tmp_path, settings, forgets)
    assert report.numbers["kept_update"] == 6
    assert len(Checkpoints(tmp_path / "checkpoints").complete) <= 4


def test_where_an_alarm_does_not_stop_the_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    guards: dict[str, Any] = {"monitors": {"window": 3, "entropy_share": None, "stop": False}, "num_train_epochs": 10}
    report, made = train_told(tmp_path, changed(mode="outcome", **{**GUARDED, **guards}), forgets)
    assert made == list(range(1, 11))
    (alarm,) = read_alarms(tmp_path / "alarms.jsonl")
    assert (alarm.name, alarm.stopped) == ("format_collapse", False)
    assert (report.numbers["stopped_by"], report.numbers["alarms"]) == (None, ["format_collapse"])
    assert capsys.readouterr().err.startswith("alarm at update 9: format_collapse: the share of valid")


def test_where_trouble_is_older_than_any_checkpoint_the_policy_stays_as_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpo, "_SAVE_EVERY", 8)
    settings = changed(mode="outcome", **{**GUARDED, "eval_steps": 8})
    for _ in range(2):
        report, _ = train_told(tmp_path, settings, forgets)
        assert report.numbers["stopped_by"] == "format_collapse"
        assert report.numbers["kept_update"] == 0
    came = tiny_model().to(torch.float32).state_dict()
    left = weights(tmp_path / "policy")
    assert all(torch.equal(tensor, came[name]) for name, tensor in left.items())


def test_a_loss_that_is_no_number_stops_the_run_and_names_the_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = GRPOTrainer.compute_loss
    monkeypatch.setattr(GRPOTrainer, "compute_loss", lambda self, *rest: real(self, *rest) * float("nan"))
    with pytest.raises(StepladderError, match="training stopped at update 1: the loss is nan"):
        train(tmp_path)
    asked = json.loads((tmp_path / "bad_batch.json").read_text())["questions"]
    assert len(asked) == 2
    assert set(asked) < {question.id for question in QUESTIONS}


# --- kill and resume ------------------------------------------------------------------------------------------------


def same_run(one: TrainingReport, other: TrainingReport) -> None:
    for ours, theirs in zip(plain_rows(one.policy.parent), plain_rows(other.policy.parent), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-6)
    for name, tensor in weights(one.policy).items():
        torch.testing.assert_close(tensor, weights(other.policy)[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_iterations": 2, "eval_steps": 3, "gradient_accumulation_steps": 2, "lora": {"r": 2, "lora_dropout": 0.3}},
        {"mode": "tree", "num_train_epochs": 4},
        {"mode": "outcome", "refill": 2, "num_iterations": 2},
    ],
    ids=["two passes in parts, lora", "tree", "refilled"],
)
def test_a_run_that_was_cut_goes_on_where_the_episodes_of_its_checkpoint_were_used_up(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    settings = changed(**{"num_train_epochs": 2, "eval_steps": 4, "monitors": {"logprob_gap": None}, **changes})

    class Stop(Exception):
        """Ends a run."""

    def watch(outcome: Outcome[Any]) -> None:
        if outcome.index + 1 == 7:
            raise Stop

    whole = train(tmp_path / "whole", settings)
    with pytest.raises(Stop):
        train(tmp_path / "cut", settings, watch=watch)
    steps: list[int] = []
    resumed = train(tmp_path / "cut", settings, watch=lambda outcome: steps.append(outcome.index + 1))
    assert steps[0] == 5, "eval_steps is rounded up to whole passes"
    same_run(resumed, whole)


def test_the_same_seed_gives_the_same_numbers_and_a_finished_run_is_not_trained_again(
    finished: TrainingReport, tmp_path: Path
) -> None:
    expect_reproducible(train, finished, tmp_path)


# --- what comes out -------------------------------------------------------------------------------------------------


def test_curves_tell_of_every_update_and_every_dev_score(finished: TrainingReport) -> None:
    rows = plain_rows(finished.policy.parent)
    assert [(row["step"], "loss" in row) for row in rows] == [
        (1, True), (2, True), (2, False), (3, True), (4, True), (4, False), (5, True), (6, True), (6, False),
    ]  # fmt: skip
    told = {
        "reward", "f1", "em", "valid", "searches", "step_limit", "answered", "repeated", "written", "step_score",
        "dropped_groups", "failed", "logprob_gap_mean", "logprob_gap_max", "entropy", "kl", "clipped", "lr",
        "grad_norm", "tokens", "policy_tokens",
    }  # fmt: skip
    assert all(told <= set(row) for row in rows if "loss" in row)
    assert all({"dev_f1", "dev_em", "dev_failed"} <= set(row) for row in rows if "loss" not in row)
    first, *others = updates(finished.policy.parent)
    assert first["kl"] == 0.0
    assert all(row["kl"] > 0 for row in others)
    numbers = finished.numbers
    assert (numbers["mode"], numbers["questions"], numbers["episodes"], numbers["alarms"]) == ("dual", 4, 48, [])
    assert numbers["tokens_sampled"] == sum(row["written"] for row in updates(finished.policy.parent))
    seconds = read_metrics(finished.policy.parent / "curves.jsonl")[0]
    parts = [seconds[f"{part}_seconds"] for part in ("rollout", "scoring", "update")]
    assert sum(parts) == pytest.approx(seconds["seconds"], abs=1e-3)


def test_what_was_played_is_told_once_for_all_its_passes(tmp_path: Path) -> None:
    report = train(tmp_path, changed(num_iterations=2, num_train_epochs=1, dev_questions=0))
    rows = updates(tmp_path)
    assert ["reward" in row for row in rows] == [True, False, True, False]
    assert all("entropy" in row and "clipped" in row for row in rows)
    assert report.numbers["episodes"] == 16
    assert report.numbers["tokens_sampled"] == rows[0]["written"] + rows[2]["written"]


def test_the_policy_is_an_ordinary_model_with_nothing_beside_it(finished: TrainingReport) -> None:
    expect_plain_policy(finished.policy, ["alarms.jsonl", "checkpoints", "curves.jsonl"])


def test_nothing_is_printed_and_no_telemetry_is_sent(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_silence(monkeypatch)
    report = train(tmp_path, changed(num_train_epochs=1, lora={"r": 2}))
    assert capfd.readouterr() == ("", "")
    assert not (report.policy / "adapter_config.json").exists(), "LoRA is merged"


def test_what_earned_more_becomes_likelier(tmp_path: Path) -> None:
    """Right answers against wrong ones, told again and again."""
    settings = changed(mode="outcome", beta=0.0, num_train_epochs=2, dev_questions=0)
    report, _ = train_told(tmp_path, settings, lambda update, question, sample: say(("Oss", "Velm")[sample % 2]))

    def logp(model: Any, text: str) -> float:
        prompt = PRORAG.render(Trajectory(QUESTIONS[0], PRORAG.name))[0].text
        ids = list((prompt + text).encode())
        row = {"ids": ids, "loss_mask": [0] * len(prompt) + [1] * len(text)}
        with torch.no_grad():
            return float(logps(model, row, 1.0).sum())

    with quiet_libraries():
        policy = AutoModelForCausalLM.from_pretrained(report.policy)
    gains = [logp(policy, say(answer)) - logp(tiny_model(), say(answer)) for answer in ("Velm", "Oss")]
    assert gains[0] > gains[1] + 1


def test_every_epoch_plays_all_questions_and_fills_up_the_updates() -> None:
    order, count = schedule(4, changed(num_train_epochs=2, num_iterations=3), seed=0)
    assert count == 4 * 3
    assert sorted(order[:4]) == sorted(order[4:]) == [0, 1, 2, 3]
    assert schedule(4, changed(num_train_epochs=2, num_iterations=3), seed=0)[0] == order
    assert schedule(4, changed(num_train_epochs=2), seed=1)[0] != order
    odd, count = schedule(3, changed(num_train_epochs=3, questions=3), seed=0)
    assert (len(odd), count) == (8, 4)
    assert sorted(odd[:3]) == sorted(odd[3:6]) == [0, 1, 2]
    assert schedule(4, changed(num_train_epochs=0.1), seed=0)[1] == 1


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"batch_size": 10, "num_generations": 4},
            "batch_size 10 is not a multiple of num_generations 4 x gradient_accumulation_steps 1: the episodes of",
        ),
        (
            {"batch_size": 8, "num_generations": 8, "gradient_accumulation_steps": 2},
            "batch_size 8 is not a multiple of num_generations 8 x gradient_accumulation_steps 2",
        ),
        ({"num_generations": 1}, "num_generations must be 2 or more: an episode is compared with others"),
        ({"mode": "tree", "num_generations": 4, "tree": {"stems": 5}}, r"tree\.stems 5 is more than num_generations 4"),
        ({"questions": 2, "batch_size": 32}, "questions 2 do not fill an update of 4"),
        ({"loss_type": "dr_grpo"}, "loss_type: dr_grpo is not supported: an episode has no max_completion_length"),
        ({"loss_type": "bnpo"}, "loss_type: bnpo is not supported: .*: use token"),
        ({"loss_type": "steps"}, "loss_type: expected 'token', 'step' or 'sequence', found 'steps'. Did you mean"),
        ({"mode": "duel"}, "mode: unknown mode 'duel'. Did you mean 'dual'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(StepladderError, match=said):
        GRPOConfig.read(settings)


def test_questions_without_answers_are_left_out(tmp_path: Path) -> None:
    nobody_knows = [replace(question, answers=()) for question in QUESTIONS]
    with pytest.raises(StepladderError, match="none of 4 questions has an answer: there would be no reward"):
        train(tmp_path, questions=nobody_knows)
    with pytest.raises(
        StepladderError,
        match=r"1 questions have an answer, but an update needs 2 \(batch_size 8 by num_generations 4\)",
    ):
        train(tmp_path, questions=[*QUESTIONS[:1], *nobody_knows[1:]])
    assert not list(tmp_path.iterdir())
    settings = changed(mode="outcome", num_train_epochs=1, dev_questions=0)
    assert train(tmp_path, settings, questions=[*QUESTIONS[:2], *nobody_knows[2:]]).numbers["questions"] == 2


def test_questions_that_processes_cannot_share_are_refused() -> None:
    with pytest.raises(StepladderError, match=r"batch_size 8 is not a multiple of 16 .* x 4 processes\): .* to 16, or"):
        SETTINGS.check_processes(4)
    SETTINGS.check_processes(2)


def test_an_agent_whose_context_restarts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match="'reasonrag-brief' starts a new context at every step"):
        train(tmp_path, agent=make_agent("reasonrag-brief"))
    one = Step((Segment(Author.PROMPT, "a", (1,)),), Segment(Author.POLICY, "b", (2,)), Action(ActionKind.QUERY, "b"))
    late = Trajectory(QUESTION, "mine", (one, replace(one, restarts=True)), StopReason.ANSWERED)
    with pytest.raises(StepladderError, match="'mine' starts a new context at every step"):
        token_row(CreditedEpisode(late, 1.0, (0.0, 0.0), (True, True)))


def reward_model(words: Sequence[str] = (), **options: Any) -> ProcessRewardModel:
    """A real one, whose scores are by chance."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(list(words))
    torch.manual_seed(0)
    model: Any = with_scalar_head(tiny_model(seed=1, vocab_size=258), tokenizer, "tiny")
    nn.init.normal_(model.score.weight)
    return ProcessRewardModel(model, tokenizer, **options)


def test_a_reward_model_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    settings = changed(num_train_epochs=1, dev_questions=0)
    with pytest.raises(StepladderError, match=r"another tokenizer .* than the policy .*set retokenize to true"):
        train(tmp_path, settings, reward=reward_model(["answer"]))
    assert not list(tmp_path.iterdir())
    train(tmp_path / "outcome", changed(num_train_epochs=1, mode="outcome"), reward=reward_model(["answer"]))
    reward = reward_model(["answer"], retokenize=True)
    train(tmp_path / "retokenized", settings, reward=reward)
    assert reward.builder.retokenized > 0


def test_a_mode_that_scores_steps_needs_a_reward_model(tmp_path: Path) -> None:
    context = TrainingContext(Loose(), QUESTIONS, (), None, EPISODE, tmp_path, device="cpu")
    with pytest.raises(StepladderError, match="mode 'process' needs a step scorer"):
        train_grpo("tiny", context, changed(mode="process"), None)


# --- in a recipe ----------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "questions.jsonl"
    lines = [{"id": each.id, "question": each.text, "golden_answers": list(each.answers)} for each in QUESTIONS]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"train": str(path), "dev": str(path)}


SHARED = {"policy": "tiny", "agent": "direct", "device": "cpu", "episode": {"max_tokens": 6}}
GRPO_STAGE = {"questions": 2, "num_generations": 2, "batch_size": 4, "num_train_epochs": 2, "dev_questions": 1}


def test_it_is_a_stage_of_a_recipe(tmp_path: Path, files: dict[str, str]) -> None:
    recipe = Recipe.read({**SHARED, "data": files, "stages": {"grpo": {**GRPO_STAGE, "mode": "outcome"}}})
    assert dict(recipe.stages[0].inputs) == {"policy": "base"}
    report = run_recipe(recipe, tmp_path / "run", console=Console(file=StringIO()))
    numbers = report.stages[0].summary
    assert (numbers["mode"], numbers["questions"], numbers["episodes"], numbers["alarms"]) == ("outcome", 2, 8, [])
    assert 0 < numbers["tokens_sampled"] <= 8 * 6
    assert report.policy == tmp_path / "run" / "grpo" / "policy"
    assert run_recipe(recipe, tmp_path / "run", console=Console(file=StringIO())).skipped == ("grpo",)


def test_test_questions_measure_checkpoints_and_select_none(tmp_path: Path, files: dict[str, str]) -> None:
    stage = {**GRPO_STAGE, "mode": "outcome", "eval_split": "test", "eval_steps": 1, "eval_on_start": True}
    stages = {"grpo": stage, "again": {**stage, "kind": "grpo", "policy": "grpo"}}
    recipe = Recipe.read({**SHARED, "data": {**files, "test": files["dev"]}, "stages": stages})
    report = run_recipe(recipe, tmp_path / "run", console=Console(file=StringIO()))
    rows = read_metrics(tmp_path / "run" / "grpo" / "curves.jsonl")
    assert [row["step"] for row in rows if "test_f1" in row] == [0, 1, 2]
    assert not any("dev_f1" in row for row in rows)
    summary = report.stages[0].summary
    assert summary["kept_update"] == 2, "the last one"
    assert "best_test_f1" not in summary
    assert not (tmp_path / "run" / "grpo" / "dev").exists(), "and no policy of the run is chosen by them"


def test_a_real_reward_model_scores_the_steps(tmp_path: Path, files: dict[str, str]) -> None:
    reward_model().save(tmp_path / "reward")
    context = RunContext(SharedConfig.read({**SHARED, "data": files}))
    task = Task("grpo", tmp_path / "run", 0, {"policy": "tiny", "reward": str(tmp_path / "reward")})
    done = run_grpo(
        GRPOConfig.read({**GRPO_STAGE, "mode": "process", "num_train_epochs": 1, "dev_questions": 0}), context, task
    )
    (row,) = updates(tmp_path / "run")
    assert 0 < row["step_score"] < 1
    assert row["dropped_groups"] == 0
    assert done.outputs == {"policy": tmp_path / "run" / "policy"}


def test_the_gold_judge_may_stand_in_for_a_reward_model(tmp_path: Path) -> None:
    shared = {**SHARED, "data": {"name": "atlas"}, "search": {"k": 1}}
    stage = {**GRPO_STAGE, "mode": "process", "scorer": "gold", "num_train_epochs": 1, "dev_questions": 0}
    recipe = Recipe.read({**shared, "stages": {"grpo": stage}})
    assert dict(recipe.stages[0].inputs) == {"policy": "base"}
    run_recipe(recipe, tmp_path / "run", console=Console(file=StringIO()))
    (row,) = updates(tmp_path / "run" / "grpo")
    assert row["step_score"] == pytest.approx(0.01, abs=1e-3), "random weights take no good step, and the judge is sure"


def test_the_gold_judge_needs_what_it_judges_by(tmp_path: Path, files: dict[str, str]) -> None:
    stage = {**GRPO_STAGE, "mode": "dual", "scorer": "gold"}
    recipe = Recipe.read({**SHARED, "data": files, "stages": {"grpo": stage}})
    with pytest.raises(StepladderError, match="scorer: gold needs questions with a gold decomposition"):
        run_recipe(recipe, tmp_path / "run", console=Console(file=StringIO()))


def test_a_potential_needs_what_it_is_computed_from(tmp_path: Path, files: dict[str, str]) -> None:
    stage = {**GRPO_STAGE, "mode": "gain", "potential": "recall"}
    recipe = Recipe.read({**SHARED, "data": files, "stages": {"grpo": stage}})
    with pytest.raises(
        StepladderError, match="potential: recall needs gold passages, which 4 of 4 questions do not have"
    ):
        run_recipe(recipe, tmp_path / "run", console=Console(file=StringIO()))
    assert not (tmp_path / "run" / "grpo").exists()


def test_only_modes_that_score_steps_take_a_reward_model() -> None:
    before: dict[str, Any] = {"sft": {}, "explore": {}, "pairs": {}, "prm": {}}
    modes = {"dual": True, "process": True, "first-error": True, "gain": True, "outcome": False, "tree": False}
    cases = [({"mode": mode}, taken) for mode, taken in modes.items()]
    for settings, taken in [*cases, ({"mode": "gain", "potential": "recall"}, False)]:
        inputs = Recipe.read({"stages": {**before, "grpo": settings}}).stages[-1].inputs
        assert dict(inputs) == {"policy": "sft", **({"reward": "prm"} if taken else {})}
        assert STAGE.unused_inputs(GRPOConfig.read(settings)) == (frozenset() if taken else {"reward"})
    with pytest.raises(StepladderError, match=r"stages\.grpo: needs reward, and no earlier stage writes any"):
        Recipe.read({"stages": {"sft": {}, "grpo": {}}})
    with pytest.raises(StepladderError, match=r"stages\.grpo\.reward: these settings take no reward; found 'prm'"):
        Recipe.read({"stages": {**before, "grpo": {"mode": "outcome", "reward": "prm"}}})


@pytest.mark.parametrize(
    ("shared", "said"),
    [
        ({"agent": "reasonrag-brief"}, "'reasonrag-brief' starts a new context"),
        ({"data": "train"}, "grpo evaluates checkpoints on 1 dev questions, but the data has no dev"),
    ],
    ids=["agent", "dev questions"],
)
def test_what_cannot_be_is_noticed_before_anything_is_done(
    tmp_path: Path, files: dict[str, str], shared: dict[str, Any], said: str
) -> None:
    data = {"data": {"train": files["train"]} if "data" in shared else files}
    recipe = Recipe.read({**SHARED, **shared, **data, "stages": {"grpo": {**GRPO_STAGE, "mode": "outcome"}}})
    with pytest.raises(StepladderError, match=said):
        run_recipe(recipe, tmp_path / "run", console=Console(file=StringIO()))
    assert not (tmp_path / "run" / "grpo").exists()


def test_a_time_limit_ends_the_training_with_what_was_learnt(tmp_path: Path) -> None:
    hurried = SETTINGS.model_copy(update={"minutes": 1e-9, "eval_on_start": True})
    report = train(tmp_path, hurried)
    assert report.numbers["steps"] == hurried.num_iterations == 1, "the first update is already late"
    assert report.numbers["kept_update"] == 1, "it is scored before it ends"
    before = (tmp_path / "curves.jsonl").read_bytes()
    again = train(tmp_path, hurried)
    assert (tmp_path / "curves.jsonl").read_bytes() == before, "called again it does not train on"
    assert again.numbers["kept_update"] == report.numbers["kept_update"]


def test_after_trouble_a_checkpoint_counts_as_much_as_the_last_score_before_it(tmp_path: Path) -> None:
    checkpoints, curves = Checkpoints(tmp_path), MetricsLog(tmp_path / "curves.jsonl")
    for step in range(1, 91):
        curves.add(step=step, loss=0.0)
    alarm = Alarm(90, AlarmName.ENDLESS, "", 1.0, 0.5, since=88, stopped=True)
    for step in (60, 70, 80, 90):
        checkpoints.at(step).mkdir()
        checkpoints.keep(step, also=range(step))

    def kept(**scores: float) -> int:
        rows = [{"step": int(name[1:]), "dev_f1": value} for name, value in scores.items()]
        curves.rows = sorted([*curves.updates, *rows], key=lambda row: row["step"])
        found = rollback_checkpoint(checkpoints, curves, [alarm])
        return 0 if found is None else int(found.name.removeprefix("checkpoint-"))

    assert kept() == 80
    assert kept(_0=0.3) == 80, "nothing is known against it"
    assert kept(_0=0.3, _70=0.2) == 60
    assert kept(_0=0.3, _60=0.2) == 0
    assert kept(_0=0.3, _70=0.4) == 80


def test_weights_that_lora_freezes_are_bf16_where_training_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop(Exception):
        """Ends a run."""

    def look(trainer: EpisodeTrainer, *_: Any) -> None:
        kinds = {(weights.requires_grad, weights.dtype) for weights in trainer.model.parameters()}
        assert kinds == {(True, torch.float32), (False, torch.bfloat16)}
        raise Stop

    def in_bf16(*arguments: Any) -> Any:  # also where the processor has none
        return replace(prepare_compute(*arguments), bf16=True)

    monkeypatch.setattr(policy_session, "prepare_compute", in_bf16)
    monkeypatch.setattr(EpisodeTrainer, "attach", look)
    with pytest.raises(Stop):
        train(tmp_path, changed(lora=LoraConfig(r=2)))
