"""DPO on pairs of steps: the loss is on the step alone, the reference stays what it was, and a kill loses little."""

import json
import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from peft import PeftModel
from rich.console import Console
from transformers import AutoModelForCausalLM
from trl import DPOConfig as TrlDPOConfig  # type: ignore[attr-defined]

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Author, Pair, Segment
from stepladder.driver import Outcome
from stepladder.models.loading import quiet_libraries
from stepladder.models.tiny import tiny_model
from stepladder.pipeline import run_recipe
from stepladder.pipeline.recipe import Recipe
from stepladder.preferences.pair_checks import PairCheck
from stepladder.train.dpo import trainer as dpo
from stepladder.train.dpo.config import DPOConfig
from stepladder.train.dpo.trainer import TrainingReport
from stepladder.train.dpo.trl_trainer import PairRow, PairTrainer, collate_pairs
from stepladder.train.loop.compute import prepare_compute
from stepladder.train.loop.config import LoraConfig
from stepladder.train.loop.context import TrainingContext
from stepladder.train.loop.policy_session import PolicySession
from stepladder.train.loop.policy_weights import load_policy
from stepladder.train.transcripts.tokenized import Example
from tests.support.dpo_training import AGENT, ENCODING, EPISODE, HELD_OUT, PAIRS, QUESTIONS, SETTINGS, train
from tests.support.training_runs import (
    expect_plain_policy,
    expect_reproducible,
    expect_silence,
    plain_rows,
    updates,
    weights,
)

SHORT = PAIRS[:3]


def changed(**changes: Any) -> DPOConfig:
    return DPOConfig(**{**SETTINGS.model_dump(exclude_unset=True), **changes})


@pytest.fixture(scope="module")
def made() -> list[PairTrainer]:
    """The trainers of the runs below, to look into."""
    return []


@pytest.fixture(scope="module")
def finished(made: list[PairTrainer], tmp_path_factory: pytest.TempPathFactory) -> Iterable[TrainingReport]:
    real = dpo._make_trainer

    def noting(*arguments: Any) -> PairTrainer:
        made.append(real(*arguments))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dpo, "_make_trainer", noting)
        yield train(tmp_path_factory.mktemp("dpo"))


# --- DPO by another implementation ---------------------------------------------------------------------------------


def logp(model: Any, prompt: Sequence[int], step: Sequence[int]) -> float:
    """Log-probability of a step in its state: one text a call, plain log-softmax."""
    with torch.no_grad():
        logprobs_TV = model(torch.tensor([[*prompt, *step]])).logits[0].log_softmax(-1)
    return sum(logprobs_TV[len(prompt) + place - 1, token].item() for place, token in enumerate(step))


def ids(pair: Pair) -> tuple[list[int], list[int], list[int]]:
    prompt = [token for segment in pair.context for token in segment.tokens]
    return prompt, list(pair.chosen.written.tokens), list(pair.rejected.written.tokens)


def dpo_loss(policy: Any, reference: Any, pairs: Sequence[Pair], settings: DPOConfig) -> float:
    total = 0.0
    for prompt, chosen, rejected in map(ids, pairs):
        gains = [logp(policy, prompt, side) - logp(reference, prompt, side) for side in (chosen, rejected)]
        if settings.loss_type == "ipo":
            total += (gains[0] / len(chosen) - gains[1] / len(rejected) - 1 / (2 * settings.beta)) ** 2
        else:
            total += math.log1p(math.exp(-settings.beta * (gains[0] - gains[1])))
    return total / len(pairs)


def loaded(policy: Path) -> Any:
    with quiet_libraries():
        return AutoModelForCausalLM.from_pretrained(policy).eval()


@pytest.mark.parametrize(
    "changes",
    [{"beta": 0.3}, {"loss_type": "ipo", "beta": 0.1}, {"beta": 0.05, "lora": LoraConfig(r=2)}],
    ids=["sigmoid", "ipo", "lora"],
)
def test_the_loss_is_dpo_s_against_the_policy_as_it_came(tmp_path: Path, changes: dict[str, Any]) -> None:
    """The first update begins at the reference, where nothing is told apart; the second is one update away from it."""
    settings = changed(
        batch_size=3, num_train_epochs=1, learning_rate=1e-3, lr_scheduler_type="constant", dev_questions=0, **changes
    )
    one = train(tmp_path / "one", settings, pairs=SHORT, held_out=())
    train(tmp_path / "two", settings.model_copy(update={"num_train_epochs": 2}), pairs=SHORT, held_out=())
    first, second = updates(tmp_path / "two")
    start = math.log(2) if settings.loss_type == "sigmoid" else (1 / (2 * settings.beta)) ** 2
    assert first["loss"] == pytest.approx(start, abs=1e-4)
    expected = dpo_loss(loaded(one.policy), tiny_model(), SHORT, settings)
    assert abs(expected - start) > 1e-2, "the policy has moved"
    assert second["loss"] == pytest.approx(expected, rel=1e-4)


def test_log_probabilities_and_rewards_are_those_of_the_step_alone(finished: TrainingReport) -> None:
    row = plain_rows(finished.policy.parent)[-1]
    policy, reference = loaded(finished.policy), tiny_model()
    assert row["step"] == finished.numbers["best_step"]
    for side, place in (("chosen", 1), ("rejected", 2)):
        ours = [logp(policy, ids(pair)[0], ids(pair)[place]) for pair in HELD_OUT]
        theirs = [logp(reference, ids(pair)[0], ids(pair)[place]) for pair in HELD_OUT]
        assert row[f"dev_logp_{side}"] == pytest.approx(sum(ours) / 2, rel=1e-4)
        assert row[f"dev_reward_{side}"] == pytest.approx(SETTINGS.beta * (sum(ours) - sum(theirs)) / 2, rel=1e-3)
    assert row["dev_loss"] == pytest.approx(dpo_loss(policy, reference, HELD_OUT, SETTINGS), rel=1e-3)


# --- what is in the loss -------------------------------------------------------------------------------------------


def trainer_for(folder: Path, lora: LoraConfig | None = None, pairs: Sequence[Pair] = PAIRS) -> PairTrainer:
    """A trainer that has done nothing yet."""
    settings = changed(lora=lora)
    context = TrainingContext(AGENT, QUESTIONS, (), None, EPISODE, folder, device="cpu")
    place = prepare_compute(settings, context, "dpo")
    arguments = TrlDPOConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, gradient_checkpointing=False, max_length=None,
        remove_unused_columns=False, report_to="none", disable_tqdm=True, beta=settings.beta,
    )  # fmt: skip
    with quiet_libraries():
        policy = load_policy("tiny", None, bf16=False, device=place.device)
        session = PolicySession(policy, cast(Any, None), nullcontext, place, context)
        return dpo._make_trainer(session, settings, arguments, dpo._rows(pairs), ())


def moved(trainer: PairTrainer) -> PairTrainer:
    """The same trainer, with weights that are no longer those of the reference."""
    torch.manual_seed(0)
    with torch.no_grad():
        for tensor in trainer.model.parameters():
            if tensor.requires_grad:
                tensor += 0.02 * torch.randn_like(tensor)
    return trainer


def test_the_states_are_the_tokens_that_the_policy_saw(finished: TrainingReport, made: list[PairTrainer]) -> None:
    rows: Any = made[0].train_dataset
    assert [(row["prompt_ids"], row["chosen_ids"], row["rejected_ids"]) for row in rows] == list(map(ids, PAIRS))
    assert finished.numbers["tokens"] == 2 * sum(
        2 * len(prompt) + len(chosen) + len(rejected) for prompt, chosen, rejected in map(ids, PAIRS)
    )
    assert finished.numbers["policy_tokens"] == 2 * sum(
        len(chosen) + len(rejected) for _, chosen, rejected in map(ids, PAIRS)
    )


def test_a_batch_has_all_chosen_steps_first_and_marks_the_steps() -> None:
    rows = [PairRow(question_id="a", prompt_ids=[1, 2, 3], chosen_ids=[4, 5], rejected_ids=[6]),
            PairRow(question_id="b", prompt_ids=[7], chosen_ids=[8], rejected_ids=[9, 10])]  # fmt: skip
    batch = collate_pairs(rows)
    ids, steps, read = (batch[name][:, :5].tolist() for name in ("input_ids", "completion_mask", "attention_mask"))
    assert ids == [[1, 2, 3, 4, 5], [7, 8, 0, 0, 0], [1, 2, 3, 6, 0], [7, 9, 10, 0, 0]]
    assert steps == [[0, 0, 0, 1, 1], [0, 1, 0, 0, 0], [0, 0, 0, 1, 0], [0, 1, 1, 0, 0]]
    assert read == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]
    assert not any(batch[name][:, 5:].any() for name in ("input_ids", "completion_mask", "attention_mask"))
    assert batch["question_ids"] == ["a", "b"]


@pytest.mark.parametrize("lora", [None, LoraConfig(r=2)], ids=["full", "lora"])
def test_only_the_words_of_the_step_have_a_gradient(tmp_path: Path, lora: LoraConfig | None) -> None:
    """Prompt, earlier steps and what was retrieved are read, and not learnt from."""
    trainer = moved(trainer_for(tmp_path, lora))
    hidden: list[torch.Tensor] = []

    def keep(module: Any, inputs: Any, output: Any) -> None:
        if output.last_hidden_state.requires_grad:  # what the reference computes has none
            output.last_hidden_state.retain_grad()
            hidden.append(output.last_hidden_state)

    causal = trainer.model.get_base_model() if lora is not None else trainer.model
    causal.model.register_forward_hook(keep)
    batch = collate_pairs(dpo._rows(PAIRS))
    trainer.compute_loss(trainer.model, batch).backward()
    (hidden_BTH,) = hidden
    assert hidden_BTH.grad is not None
    learnt_BT = hidden_BTH.grad.abs().amax(dim=-1)
    predicts_BT = torch.zeros_like(batch["completion_mask"])
    predicts_BT[:, :-1] = batch["completion_mask"][:, 1:]
    assert torch.equal(learnt_BT > 0, predicts_BT > 0), "where the next token is one of the step, and nowhere else"


def test_without_the_mask_the_loss_would_be_another(tmp_path: Path) -> None:
    trainer = moved(trainer_for(tmp_path))
    batch = collate_pairs(dpo._rows(PAIRS))
    with torch.no_grad():
        right = float(trainer.compute_loss(trainer.model, batch))
        unmasked = {**batch, "completion_mask": torch.ones_like(batch["completion_mask"])}
        wrong = float(trainer.compute_loss(trainer.model, unmasked))
    assert right == pytest.approx(dpo_loss(trainer.model, tiny_model(), PAIRS, SETTINGS), rel=1e-4)
    assert wrong != pytest.approx(right, rel=1e-2)


def test_who_wrote_the_state_does_not_matter() -> None:
    """Tokens of the policy in the state count as little as those of a passage: with other authors all is the same."""
    disowned = [
        replace(
            pair,
            context=(pair.context[0], *(replace(each, author=Author.ENVIRONMENT) for each in pair.context[1:])),
        )
        for pair in PAIRS
    ]
    assert disowned != PAIRS
    usable = PairCheck(AGENT, QUESTIONS, ENCODING, 4096).check(disowned).pairs
    assert dpo._rows(usable) == dpo._rows(PAIRS)


# --- the reference -------------------------------------------------------------------------------------------------


def test_the_reference_is_not_trained(finished: TrainingReport, made: list[PairTrainer]) -> None:
    reference: Any = made[0].ref_model
    before = tiny_model().state_dict()
    assert all(torch.equal(tensor, before[name]) for name, tensor in reference.state_dict().items())
    assert not all(torch.equal(tensor, before[name]) for name, tensor in made[0].model.state_dict().items())


def example(pair: Pair) -> Example:
    prompt, chosen, _ = ids(pair)
    policy = (*(False for _ in prompt), *(True for _ in chosen))
    return Example(pair.question_id, (*prompt, *chosen), tuple(map(float, policy)))


@pytest.mark.parametrize("lora", [None, LoraConfig(r=2)], ids=["full", "lora"])
def test_the_divergence_is_nothing_at_first_and_then_that_of_another_implementation(
    tmp_path: Path, lora: LoraConfig | None
) -> None:
    trainer = trainer_for(tmp_path, lora)
    examples = [example(pair) for pair in PAIRS]
    assert trainer.divergence(examples) == pytest.approx(0.0, abs=1e-6)
    moved(trainer)
    total, count = 0.0, 0
    for each in examples:
        with torch.no_grad():
            ours, theirs = (
                model(input_ids=torch.tensor([each.tokens])).logits[0].log_softmax(-1)
                for model in (trainer.model.eval(), tiny_model())
            )
        for place in (place for place, mine in enumerate(each.weights) if mine):
            total += (ours[place - 1].exp() * (ours[place - 1] - theirs[place - 1])).sum().item()
            count += 1
    assert trainer.divergence(examples) == pytest.approx(total / count, rel=1e-4)
    assert total / count > 1e-3
    assert trainer.divergence([]) == 0.0


# --- what comes out ------------------------------------------------------------------------------------------------


def test_what_was_chosen_becomes_likelier(finished: TrainingReport) -> None:
    policy, reference = loaded(finished.policy), tiny_model()
    for prompt, chosen, rejected in map(ids, [*PAIRS, *HELD_OUT]):
        gains = [logp(policy, prompt, side) - logp(reference, prompt, side) for side in (chosen, rejected)]
        assert gains[0] > gains[1]
    assert finished.numbers["dev_accuracy"] == 1.0


def test_curves_tell_of_every_update_and_every_dev_score(finished: TrainingReport) -> None:
    rows = plain_rows(finished.policy.parent)
    assert [(row["step"], "loss" in row) for row in rows] == [
        (1, True), (2, True), (3, True), (3, False), (4, True), (5, True), (6, True), (6, False),
    ]  # fmt: skip
    update = {"loss", "accuracy", "reward_gap", "reward_chosen", "reward_rejected", "logp_chosen", "logp_rejected"}
    assert all(update | {"lr", "grad_norm", "tokens"} <= set(row) for row in rows if "loss" in row)
    held_out = {f"dev_{name}" for name in update}
    scored = [row for row in rows if "loss" not in row]
    assert all(held_out | {"dev_f1", "dev_em", "dev_kl"} <= set(row) for row in scored)
    assert (rows[0]["accuracy"], rows[0]["reward_gap"]) == (0.0, 0.0)
    assert 0 < scored[0]["dev_kl"] < scored[1]["dev_kl"]
    numbers = finished.numbers
    assert (numbers["pairs"], numbers["held_out_pairs"], numbers["questions"], numbers["refused"]) == (5, 2, 1, {})
    assert numbers["steps"] == 6


def test_the_policy_is_an_ordinary_model_with_nothing_beside_it(finished: TrainingReport) -> None:
    expect_plain_policy(finished.policy, ["checkpoints", "curves.jsonl"])


def test_nothing_is_printed_and_no_telemetry_is_sent(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_silence(monkeypatch)
    train(tmp_path, changed(num_train_epochs=1, lora=LoraConfig(r=2)), pairs=SHORT)
    assert capfd.readouterr() == ("", "")


def test_lora_is_merged_into_an_ordinary_model(tmp_path: Path) -> None:
    report = train(
        tmp_path, changed(learning_rate=1e-3, lora=LoraConfig(r=2), dev_questions=0), pairs=SHORT, held_out=()
    )
    assert not (report.policy / "adapter_config.json").exists()
    assert "best_step" not in report.numbers
    with quiet_libraries():
        adapted = PeftModel.from_pretrained(tiny_model(), str(tmp_path / "checkpoints" / "checkpoint-4"))
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        merged = loaded(report.policy)(tokens).logits
        torch.testing.assert_close(merged, adapted(tokens).logits, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(merged, tiny_model()(tokens).logits, atol=1e-2)


def test_an_update_in_parts_is_the_same_update(tmp_path: Path) -> None:
    """Every pair counts the same, also in a part that has fewer of them."""
    for accumulate in (1, 2):
        settings = changed(batch_size=4, learning_rate=1e-3, gradient_accumulation_steps=accumulate, dev_questions=0)
        train(tmp_path / str(accumulate), settings, pairs=SHORT, held_out=())
    for ours, theirs in zip(updates(tmp_path / "2"), updates(tmp_path / "1"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)


def test_without_dev_questions_held_out_pairs_decide(tmp_path: Path) -> None:
    report = train(tmp_path, changed(dev_questions=0), pairs=SHORT)
    losses = {row["step"]: row["dev_loss"] for row in plain_rows(tmp_path) if "dev_loss" in row}
    assert report.numbers["best_step"] == min(losses, key=lambda step: losses[step])
    assert report.numbers["best_dev_loss"] == min(losses.values())


# --- kill and resume -----------------------------------------------------------------------------------------------


def test_an_adapter_is_resumed_and_its_reference_with_it(tmp_path: Path) -> None:
    settings = changed(
        batch_size=1, learning_rate=1e-3, lora=LoraConfig(r=2, lora_dropout=0.3), dev_questions=0, eval_steps=2
    )
    whole = train(tmp_path / "whole", settings, pairs=SHORT, held_out=())

    class Stop(Exception):
        """Ends a run."""

    def watch(outcome: Outcome[Any]) -> None:
        if outcome.index + 1 == 3:
            raise Stop

    with pytest.raises(Stop):
        train(tmp_path / "cut", settings, watch=watch, pairs=SHORT, held_out=())
    resumed = train(tmp_path / "cut", settings, pairs=SHORT, held_out=())
    for ours, theirs in zip(updates(tmp_path / "cut"), updates(tmp_path / "whole"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)
    for name, tensor in weights(resumed.policy).items():
        torch.testing.assert_close(tensor, weights(whole.policy)[name], rtol=1e-4, atol=1e-5)


def test_the_same_seed_gives_the_same_numbers_and_a_finished_run_is_not_trained_again(
    finished: TrainingReport, tmp_path: Path
) -> None:
    expect_reproducible(train, finished, tmp_path)


# --- pairs that cannot be used -------------------------------------------------------------------------------------


def spoilt() -> list[Pair]:
    """One pair for every reason to refuse it."""
    first = PAIRS[0]
    foreign = replace(first.chosen.written, vocabulary="another")
    other = replace(first.context[0], text="Question: Who else?\n")
    return [
        replace(first, agent="prorag"),
        replace(first, chosen=replace(first.chosen, written=foreign)),
        replace(first, context=(other,)),
        replace(first, context=(replace(first.context[0], tokens=first.context[0].tokens[1:]),)),
        replace(first, rejected=replace(first.rejected, written=Segment(Author.POLICY, "so " * 2000))),
    ]


REASONS = ("other agent", "other vocabulary", "other prompt", "other tokens", "too long")


def test_pairs_that_do_not_fit_are_refused_and_counted(tmp_path: Path) -> None:
    settings = changed(num_train_epochs=1, dev_questions=0)
    report = train(tmp_path, settings, pairs=[*spoilt(), *SHORT], held_out=[*HELD_OUT, spoilt()[0]])
    assert report.numbers["pairs"] == 3
    assert report.numbers["held_out_pairs"] == 2
    assert report.numbers["refused"] == {**dict.fromkeys(REASONS, 1), "other agent": 2}


def test_where_no_pair_is_left_the_reasons_are_told(tmp_path: Path) -> None:
    counts = ", ".join(f"{reason} 1" for reason in REASONS)
    with pytest.raises(StepladderError, match=rf"no pair of the pairs to train on can be used \({counts}\)\. Make"):
        train(tmp_path / "run", pairs=spoilt())
    with pytest.raises(StepladderError, match="it is empty"):
        train(tmp_path / "run", pairs=())
    assert not (tmp_path / "run" / "policy").exists()


def test_pairs_of_text_alone_are_encoded_as_the_model_reads_them() -> None:
    def bare(segment: Segment) -> Segment:
        return Segment(segment.author, segment.text)

    texts = [
        replace(
            pair,
            context=tuple(bare(segment) for segment in pair.context),
            chosen=replace(pair.chosen, written=bare(pair.chosen.written)),
            rejected=replace(pair.rejected, written=bare(pair.rejected.written)),
        )
        for pair in PAIRS
    ]
    usable = PairCheck(AGENT, QUESTIONS, ENCODING, 4096).check(texts).pairs
    assert dpo._rows(usable) == dpo._rows(PAIRS)


# --- in a recipe ---------------------------------------------------------------------------------------------------


def test_published_pairs_are_trained_on_in_a_recipe(tmp_path: Path) -> None:
    record = {
        "instruction": "You answer by searching.",
        "chosen": "<query>Who built Orm Tower?</query>",
        "rejected": "<answer>Nobody</answer>",
        "chosen_action_type": "Query Generation",
        "chosen_content": "Who built Orm Tower?",
        "rejected_action_type": "Answer Generation",
        "rejected_content": "Nobody",
        "layer": 0,
    }
    published = tmp_path / "published.json"
    published.write_text(json.dumps([{**record, "input": f"Question {number}"} for number in range(5)]))
    recipe = Recipe.read(
        {
            "policy": "tiny",
            "agent": "reasonrag",
            "device": "cpu",
            "episode": {"max_tokens": 4, "max_steps": 2},
            "stages": {
                "theirs": {"kind": "pairs-file", "path": str(published), "dev_share": 0.2},
                "dpo": {"batch_size": 2, "learning_rate": 1e-3, "dev_questions": 1},
            },
        }
    )
    assert dict(recipe.stages[1].inputs) == {"policy": "base", "pairs": "theirs"}
    report = run_recipe(recipe, tmp_path / "run", console=Console(file=StringIO()))
    numbers = report.stages[1].summary
    assert (numbers["pairs"], numbers["held_out_pairs"], numbers["refused"], numbers["steps"]) == (4, 1, {}, 2)
    assert numbers["dev_accuracy"] == 1.0
    assert report.policy == tmp_path / "run" / "dpo" / "policy"


def test_a_recipe_without_pairs_is_refused() -> None:
    with pytest.raises(StepladderError, match=r"stages\.dpo: needs pairs, and no earlier stage writes any"):
        Recipe.read({"stages": {"sft": {}, "dpo": {}}})
