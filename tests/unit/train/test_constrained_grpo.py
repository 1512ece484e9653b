"""GRPO on constrained episodes, against exact enumeration of all that the grammar allows."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset  # type: ignore[import-untyped]
from trl import GRPOConfig as TrlGRPOConfig  # type: ignore[attr-defined]

from stepladder.agents import make_agent
from stepladder.agents.formats.play import Format, Play
from stepladder.core.errors import StepladderError
from stepladder.core.grammars.grammar import Constraint
from stepladder.core.io.records import dumps
from stepladder.core.requests import Sampling
from stepladder.core.trace import Action, ActionKind, Author, Segment, Step, StopReason, Trajectory
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.explore.episode import EpisodeConfig
from stepladder.models.loading import quiet_libraries
from stepladder.train.grpo import trainer as grpo
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.credit.base import CreditedEpisode
from stepladder.train.grpo.rollouts import RolloutBatch
from stepladder.train.grpo.trainer import train_grpo
from stepladder.train.grpo.trl_trainer import EpisodeTrainer
from stepladder.train.loop.context import TrainingContext
from stepladder.train.loop.training_loop import TrainingReport
from tests.support import finite_language as finite
from tests.support.grpo_training import QUESTIONS, SETTINGS
from tests.support.samples import QUESTION, WordRetriever
from tests.support.training_runs import plain_rows, same_weights, updates

PROMPT = (2, 3)
ALL = list(finite.completions())
CONSTRAINT = Constraint(finite.GRAMMAR, finite.MAX_TOKENS).dumps()


def reward(tokens: tuple[int, ...]) -> float:
    """Any function of the text."""
    return float(sum((place + 1) * token for place, token in enumerate(tokens)) % 7) - 2


def episode_of(tokens: tuple[int, ...], advantage: float, grammar: str = CONSTRAINT) -> CreditedEpisode:
    """An episode of one step."""
    read, written = Segment(Author.PROMPT, "ab", PROMPT), Segment(Author.POLICY, "?", tokens, grammar=grammar)
    step = Step((read,), written, Action(ActionKind.ANSWER, "?"))
    return CreditedEpisode(Trajectory(QUESTION, "x", (step,), StopReason.ANSWERED), 0.0, (advantage,), (True,))


def trainer_for(folder: Path, rows: Callable[[Any], list[CreditedEpisode]], **changes: Any) -> EpisodeTrainer:
    """A trainer whose update has these rows, of the policy that it has then."""
    settings = GRPOConfig.read(
        {"mode": "outcome", "questions": 1, "num_generations": len(ALL), "batch_size": len(ALL),
         "drop_zero_std_groups": False, **changes}
    )  # fmt: skip
    model, tokenizer = finite.model(), finite.tokenizer()
    engine = TransformersEngine(model, tokenizer)
    rollouts = SimpleNamespace(
        config=settings,
        generate=lambda *_, **__: RolloutBatch(tuple(rows(model)), {}),
        grammar_masks=engine.grammar_masks,
    )
    with quiet_libraries():
        trainer = EpisodeTrainer(
            model,
            args=TrlGRPOConfig(
                output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", disable_tqdm=True,
                remove_unused_columns=False, per_device_train_batch_size=len(ALL), gradient_checkpointing=False,
                **grpo._grpo_arguments(settings),
            ),
            rollouts=rollouts,
            reference=finite.model().requires_grad_(False) if settings.beta else None,
            train_dataset=Dataset.from_dict({"prompt": [dumps(QUESTION)]}),
            processing_class=tokenizer,
        )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer


def batch_of(trainer: EpisodeTrainer) -> dict[str, Any]:
    return trainer._generate_and_score_completions([{"prompt": dumps(QUESTION)}] * len(ALL))


def test_where_no_prompt_fits_the_window_that_is_told(tmp_path: Path) -> None:
    nothing = CreditedEpisode(Trajectory(QUESTION, "x", (), StopReason.CONTEXT_LIMIT), 0.0, (), ())
    with pytest.raises(StepladderError, match="no sampled episode has a step: the prompts fill the context window"):
        batch_of(trainer_for(tmp_path, lambda _: [nothing] * len(ALL)))


def all_texts(grammar: str = CONSTRAINT) -> Callable[[Any], list[CreditedEpisode]]:
    """Every text of the grammar once, its reward weighted with its probability: what sampling estimates, exactly."""

    def rows(model: Any) -> list[CreditedEpisode]:
        with torch.no_grad():
            probabilities = [float(finite.logps(model, PROMPT, tokens).sum().exp()) for tokens in ALL]
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)
        return [episode_of(tokens, p * reward(tokens), grammar) for tokens, p in zip(ALL, probabilities)]

    return rows


def expected_reward(model: Any) -> torch.Tensor:
    total = torch.zeros(())
    for tokens in ALL:
        total = total + finite.logps(model, PROMPT, tokens).sum().exp() * reward(tokens)
    return total


def gradients(loss: torch.Tensor, model: Any) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("num_iterations", [1, 2])
def test_the_gradient_of_the_loss_is_that_of_the_expected_reward(tmp_path: Path, num_iterations: int) -> None:
    """The loss is a mean over tokens; the expectation over all texts is differentiated directly, without a log."""
    trainer = trainer_for(tmp_path, all_texts(), num_iterations=num_iterations)
    batch = batch_of(trainer)
    found = gradients(trainer.compute_loss(trainer.model, batch) * sum(map(len, ALL)), trainer.model)
    expected = gradients(-expected_reward(trainer.model), trainer.model)
    for ours, other in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-3, atol=1e-5)
    assert max(float(each.abs().max()) for each in expected) > 1e-2


def test_without_the_grammar_the_gradient_would_be_another(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, all_texts(grammar=""))
    found = gradients(trainer.compute_loss(trainer.model, batch_of(trainer)) * sum(map(len, ALL)), trainer.model)
    expected = gradients(-expected_reward(trainer.model), trainer.model)
    assert any(not torch.allclose(ours, other, rtol=0.1, atol=1e-2) for ours, other in zip(found, expected))


def test_ratios_are_1_at_the_first_update_and_the_kl_is_0(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, all_texts(), num_iterations=2, beta=0.1)
    batch = batch_of(trainer)
    in_loss = (batch["completion_mask"] * batch["tool_mask"]).bool()
    trainer.compute_loss(trainer.model, batch)
    assert trainer._logps_BT is not None
    ratios = (trainer._logps_BT - batch["old_per_token_logps"])[in_loss].exp()
    assert ratios.tolist() == [1.0] * len(ratios)
    assert batch["ref_per_token_logps"][in_loss].tolist() == pytest.approx(trainer._logps_BT[in_loss].tolist())
    assert trainer._metrics["train"]["kl"] == [pytest.approx(0, abs=1e-7)]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_and_entropies_are_those_over_the_allowed_tokens(tmp_path: Path, temperature: float) -> None:
    trainer = trainer_for(tmp_path, all_texts(), temperature=temperature)
    trainer.compute_loss(trainer.model, batch_of(trainer))
    assert trainer._logps_BT is not None
    entropies = []
    for logps_T, tokens in zip(trainer._logps_BT, ALL):
        with torch.no_grad():
            expected = finite.logps(trainer.model, PROMPT, tokens, temperature)
            entropies += entropies_of(trainer.model, tokens, temperature)
        assert logps_T[1 : len(tokens) + 1].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    (found,) = trainer._metrics["train"]["entropy"]
    assert found == pytest.approx(sum(entropies) / len(entropies), abs=1e-5)


def entropies_of(model: Any, tokens: tuple[int, ...], temperature: float) -> list[float]:
    logits_TV = model(input_ids=torch.tensor([[*PROMPT, *tokens]])).logits[0, len(PROMPT) - 1 : -1] / temperature
    found, text = [], ""
    for logits_V, token in zip(logits_TV, tokens):
        found.append(float(torch.distributions.Categorical(logits=logits_V[finite.allowed_after(text)]).entropy()))
        text += finite.PIECES[token].replace("Ċ", "\n") if token != finite.END else ""
    return found


def test_rows_keep_their_grammar_when_groups_are_dropped_and_microbatches_split(tmp_path: Path) -> None:
    """Half of the rows teach nothing, a third of the others was sampled freely, and few fit into a microbatch."""
    half = len(ALL) // 2
    free = range(half, len(ALL), 3)

    def rows(_: Any) -> list[CreditedEpisode]:
        return [
            episode_of(tokens, reward(tokens) if number >= half else 0.0, "" if number in free else CONSTRAINT)
            for number, tokens in enumerate(ALL)
        ]

    trainer = trainer_for(tmp_path, rows, num_generations=half, questions=2, drop_zero_std_groups=True)
    trainer.max_tokens, trainer._is_limited = 40, True
    batch = batch_of(trainer)
    assert len(batch["row_index"]) == half
    trainer.model.zero_grad()
    trainer.accelerator.backward(trainer.compute_loss(trainer.model, batch))
    expected = torch.zeros(())
    for number, tokens in enumerate(ALL[half:], start=half):
        logps_T = finite.logps(trainer.model, PROMPT, tokens)
        if number in free:
            logits_TV = trainer.model(input_ids=torch.tensor([[*PROMPT, *tokens]])).logits[0, len(PROMPT) - 1 : -1]
            logps_T = logits_TV.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])
        expected = expected - reward(tokens) * logps_T.sum() / sum(map(len, ALL[half:]))
    for weights, other in zip(trainer.model.parameters(), gradients(expected, trainer.model), strict=True):
        torch.testing.assert_close(weights.grad, other, rtol=1e-3, atol=1e-6)


class Stop(Exception):
    """Ends a run."""


def train_constrained(folder: Path, epochs: int, watch: Callable[[Any], None] = lambda _: None) -> TrainingReport:
    """A run of one update per epoch, with a checkpoint after each."""
    agent = make_agent("search-r1-brief").playing(replace(Play.of(Format.CONSTRAINED), force_answer=False))
    episode = EpisodeConfig(max_steps=2, k=1, sampling=Sampling(max_tokens=80))
    changes = {"mode": "outcome", "questions": 2, "num_train_epochs": epochs, "eval_steps": 1}
    settings = GRPOConfig.read({**SETTINGS.model_dump(exclude_unset=True), **changes})
    context = TrainingContext(
        agent, QUESTIONS, QUESTIONS[:1], WordRetriever(), episode, folder, device="cpu", watch=watch
    )
    return train_grpo("tiny", context, settings, None)


def test_a_constrained_run_has_no_slips_and_the_engine_and_the_trainer_agree(tmp_path: Path) -> None:
    train_constrained(tmp_path, 1)
    rows = updates(tmp_path)
    assert [row["valid"] for row in rows] == [1.0]
    assert max(row["logprob_gap_max"] for row in rows) < 1e-4


@pytest.mark.slow
def test_a_constrained_run_that_was_interrupted_ends_with_the_same_weights(tmp_path: Path) -> None:
    def watch(outcome: Any) -> None:
        if outcome.index + 1 == 2 and isinstance(outcome.value, float):
            raise Stop

    whole = train_constrained(tmp_path / "whole", 2)
    with pytest.raises(Stop):
        train_constrained(tmp_path / "cut", 2, watch)
    resumed = train_constrained(tmp_path / "cut", 2)
    assert plain_rows(tmp_path / "cut") == plain_rows(tmp_path / "whole")
    assert same_weights(resumed.policy, whole.policy)
