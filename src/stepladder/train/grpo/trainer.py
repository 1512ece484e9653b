"""Reinforcement learning with graded steps (ProRAG, stage 4), and its rivals: the answer alone, steps alone, trees.

In: a policy, questions with answers, and a reward model where steps are scored by one. Out, in one folder:

    curves.jsonl    one row an update (loss, reward, F1, entropy, searches, seconds by part ...), one a dev score
    alarms.jsonl    what the guards noticed
    checkpoints/    the newest and the best, to resume from, and one to go back to after an alarm
    policy/         the best by dev F1, which may be the policy as it came, or the last; after an alarm that stopped
                    the run, one from before the trouble

Each update plays some questions several times with the policy as it is and makes likelier what earned more than the
other episodes of its question did. `credit.py` says what is earned, `rollouts.py` plays, `grpo_trainer.py` updates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl
from datasets import Dataset  # type: ignore[import-untyped]
from torch import nn
from transformers import TrainingArguments

from stepladder.agents.base import Agent
from stepladder.core.errors import StepladderError
from stepladder.core.seeding import seed_of
from stepladder.core.step_scorer import StepScorer
from stepladder.core.trace import Question
from stepladder.driver import Driver, OutcomeCallback
from stepladder.explore.episode import EpisodeConfig
from stepladder.judges.prm.reward_model import ProcessRewardModel, check_same_tokenizer
from stepladder.models.loading import DTYPES, load_model, pick_dtype, quiet_libraries
from stepladder.retrieval.base import Retriever
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.monitors import ALARMS, Alarm, read_alarms
from stepladder.train.grpo.rollback import rollback_checkpoint
from stepladder.train.grpo.rollouts import Rollouts
from stepladder.train.grpo.trl_trainer import EpisodeTrainer, out_of_time
from stepladder.train.loop.checkpoints import Checkpoints
from stepladder.train.loop.config import LoraConfig
from stepladder.train.loop.metrics_log import MetricsLog, Row
from stepladder.train.loop.policy import Policy, check_target_modules, load_policy, peft_config, write_policy
from stepladder.train.loop.rollout_engine import make_rollout_engine
from stepladder.train.loop.training_loop import Compute, best_checkpoint, training_numbers, fit, prepare_compute
from stepladder.train.loop.base_trainer import BaseTrainer
from stepladder.data.sampling import sample_questions
from stepladder.train.transcripts.fine_tune import dev_player

#: Most batches of episodes between checkpoints: what a kill loses, and how closely an alarm can be gone back on.
_SAVE_EVERY = 5


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """What came of the training."""

    #: A model folder.
    policy: Path
    numbers: dict[str, object]


def train_grpo(
    model: str | Path,
    agent: Agent,
    questions: Sequence[Question],
    dev: Sequence[Question],
    retriever: Retriever | None,
    episode: EpisodeConfig,
    reward: StepScorer | None,
    settings: GRPOConfig,
    folder: Path,
    *,
    seed: int,
    device: str = "auto",
    dtype: str = "auto",
    max_batch: int = 64,
    watch: OutcomeCallback | None = None,
) -> TrainingReport:
    """Train a policy by its own episodes; the same call goes on where an earlier one was killed."""
    place = prepare_compute(settings, seed, device, "grpo")
    pick_dtype(dtype, place.device)
    with quiet_libraries():
        policy = load_policy(model, None, bf16=place.bf16 and settings.lora is not None, device=place.device)
        if settings.lora is not None:
            check_target_modules(policy.model, settings.lora, model)
        engine, playing = make_rollout_engine(
            policy, place, max_batch, vllm_gpu_memory_utilization=settings.vllm_gpu_memory_utilization if settings.engine == "vllm" else None
        )
        if settings.needs_reward_model and isinstance(reward, ProcessRewardModel):
            check_same_tokenizer(engine.encoding, reward)
        chosen = _chosen(questions, settings, seed, place.processes.num_processes)
        rollouts = Rollouts(
            Driver(engine, retriever),
            agent,
            episode,
            settings,
            reward,
            playing=playing,
            scoring=lambda: place.autocast,
        )
        order, updates = schedule(len(chosen), settings, seed)
        asked = sample_questions(dev, settings.dev_questions, seed)
        play = dev_player(engine, agent, asked, retriever, episode, seed, playing, plays_on=True)

        def trainer(arguments: TrainingArguments) -> BaseTrainer:
            return EpisodeTrainer(
                policy.model,
                args=arguments,
                rollouts=rollouts,
                reference=_reference(policy, settings, place),
                questions={question.id: question for question in chosen},
                train_dataset=Dataset.from_dict({"prompt": [chosen[place].id for place in order]}),
                eval_dataset=Dataset.from_dict({"prompt": [chosen[0].id]}),  # only asked whether it is there
                processing_class=policy.tokenizer,
                peft_config=None if settings.lora is None else peft_config(settings.lora, "CAUSAL_LM"),
            )

        alarms = _alarms(folder)
        checkpoints = Checkpoints(folder / "checkpoints")
        curves = MetricsLog(folder / "curves.jsonl", upto=max(checkpoints.complete, default=0))
        if checkpoints.complete and (any(alarm.stopped for alarm in alarms) or out_of_time(curves, settings)):
            # An earlier call came to this end, and was killed behind it.
            checkpoint = best_checkpoint(checkpoints, curves)
        else:
            curves, checkpoint = fit(
                trainer,
                None,
                settings,
                settings.learning_rate if settings.learning_rate != "auto" else _lr_for(policy.model, settings.lora),
                folder,
                place,
                updates=updates,
                an_epoch=max(len(chosen) * settings.num_generations // settings.batch_size, 1) * settings.num_iterations,
                save_every=_save_every(settings),
                dev_score=play,
                eval_on_start=settings.eval_on_start,
                watch=watch,
                arguments=trl.GRPOConfig,  # type: ignore[attr-defined]
                **_grpo_arguments(settings, policy),
            )
            alarms = _alarms(folder)
        kept = checkpoint
        stopped = [alarm for alarm in alarms if alarm.stopped]
        if stopped:
            kept = rollback_checkpoint(checkpoints, curves, stopped)
        if place.processes.is_main_process:
            write_policy(folder / "policy", policy, kept, DTYPES.get(dtype, policy.dtype))
        place.processes.wait_for_everyone()
    return TrainingReport(folder / "policy", _numbers(curves, settings, len(chosen), alarms, kept))


def schedule(questions: int, settings: GRPOConfig, seed: int) -> tuple[list[int], int]:
    """Which questions are played, update by update, and how many updates that makes.

    Every epoch is a shuffle of its own; what does not fill an update comes in the next one.
    """
    an_update = settings.batch_size // settings.num_generations
    batches = max(math.floor(settings.num_train_epochs * questions / an_update), 1)
    rng = np.random.default_rng(seed_of(seed, "order"))
    order: list[int] = []
    while len(order) < batches * an_update:
        order += rng.permutation(questions).tolist()
    return order[: batches * an_update], batches * settings.num_iterations


def _save_every(settings: GRPOConfig) -> int:
    """Updates between checkpoints: whole batches of episodes, and at every dev score."""
    scored = math.ceil(settings.eval_steps / settings.num_iterations) if settings.eval_steps else _SAVE_EVERY
    return min(scored, _SAVE_EVERY) * settings.num_iterations


def _chosen(questions: Sequence[Question], settings: GRPOConfig, seed: int, processes: int) -> list[Question]:
    answerable = [question for question in questions if question.answers]
    if not answerable:
        raise StepladderError(f"none of {len(questions):,} questions has an answer: nothing could be earned")
    chosen = sample_questions(answerable, settings.questions, seed, balance=settings.balance)
    an_update = settings.batch_size // settings.num_generations
    if an_update % processes:
        raise StepladderError(
            f"an update plays {an_update} questions (batch {settings.batch_size} by samples {settings.num_generations}), which "
            f"{processes} processes cannot share: take a batch that is a multiple of {settings.num_generations * processes}"
        )
    if len(chosen) < an_update:
        raise StepladderError(
            f"{len(chosen)} questions have an answer, but an update plays {an_update} (batch {settings.batch_size} by "
            f"samples {settings.num_generations}); lower batch or raise samples"
        )
    return chosen


def _reference(policy: Policy, settings: GRPOConfig, place: Compute) -> nn.Module | None:
    """The policy as it came, if it is held to that. With LoRA it is what is left without the adapter."""
    if not settings.beta or settings.lora is not None:
        return None
    model, _ = load_model(policy.source, policy.tokenizer, torch.float32)
    return model.to(place.device).eval()


def _grpo_arguments(settings: GRPOConfig, policy: Policy) -> dict[str, Any]:
    """What trl's configuration has beyond the trainer's."""
    return {
        "num_generations": settings.num_generations,
        "generation_batch_size": settings.batch_size,
        "num_iterations": settings.num_iterations,
        "shuffle_dataset": False,  # the order is made above: the same after a resume
        "temperature": settings.temperature,
        "beta": settings.beta if settings.lora is not None else 0.0,  # else the reference is ours
        "epsilon": settings.epsilon,
        "epsilon_high": settings.epsilon_high,
        "loss_type": "dapo",  # the mean over all tokens of the update
        "max_completion_length": None,  # nothing is cut: limits are the episode's
        "gradient_checkpointing": False,
        "use_cache": policy.model.config.use_cache,  # the trainer puts it into the policy's configuration
    }


def _alarms(folder: Path) -> list[Alarm]:
    path = folder / ALARMS
    return read_alarms(path) if path.exists() else []


def _numbers(
    curves: MetricsLog, settings: GRPOConfig, questions: int, alarms: Sequence[Alarm], kept: Path | None
) -> dict[str, object]:
    rows = curves.updates
    played = rows[:: settings.num_iterations]  # the other updates learnt from the same episodes
    window = min(5, max(len(played) // 2, 1))  # single updates say little: their questions differ

    def mean(name: str, some: Sequence[Row]) -> float:
        return float(np.mean([row[name] for row in some]))

    numbers: dict[str, object] = {
        "mode": settings.mode,
        "questions": min(questions, len(played) * settings.batch_size // settings.num_generations),
        "episodes": len(played) * settings.batch_size,
        "tokens_sampled": round(sum(row["written"] for row in played)),
        "alarms": [alarm.name for alarm in alarms],
        "stopped_by": next((alarm.name for alarm in alarms if alarm.stopped), None),
        "out_of_time": out_of_time(curves, settings),
        "kept_update": 0 if kept is None else int(kept.name.removeprefix("checkpoint-")),
        "dropped_groups": mean("dropped_groups", played),
    }
    for name in ("reward", "f1"):
        numbers |= {f"first_{name}": mean(name, played[:window]), f"last_{name}": mean(name, played[-window:])}
    for part in ("rollout", "scoring", "update"):
        numbers[f"{part}_seconds"] = round(sum(row[f"{part}_seconds"] for row in rows), 2)
    return {**numbers, **training_numbers(curves)}


def _lr_for(model: nn.Module, lora: LoraConfig | None) -> float:
    """Small steps: the episodes of an update say little, and the next ones come from what they left."""
    if lora is not None:
        return 1e-5
    parameters = sum(weights.numel() for weights in model.parameters())
    return 1e-4 if parameters < 20e6 else 1e-5 if parameters < 1e9 else 1e-6
