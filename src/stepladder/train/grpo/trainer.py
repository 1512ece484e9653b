"""GRPO with step-level advantages (ProRAG, stage 4), and its baselines: outcome only, process only, trees.

In: a policy, a `TrainingContext` with answered questions, and a step scorer if steps are scored. Out, in one folder:

    curves.jsonl    one row per update (loss, reward, F1, entropy, searches, seconds by part ...) and per dev evaluation
    alarms.jsonl    the alarms of the monitors
    checkpoints/    the newest and the best, to resume from, and one to roll back to after an alarm
    policy/         the best by dev F1 (or the initial policy), or the last; after an alarm that stopped the run, one
                    from before the failure

Each update runs several episodes per question with the current policy and reinforces those with more reward than the
others of their question. `credit/` assigns credit, `rollouts.py` generates, `trl_trainer.py` updates.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl
from datasets import Dataset  # type: ignore[import-untyped]
from transformers import TrainingArguments

from stepladder.core.errors import StepladderError
from stepladder.core.io.records import dumps
from stepladder.core.seeding import seed_of
from stepladder.core.step_scorer import StepScorer
from stepladder.core.trace import Question
from stepladder.data.sampling import sample_questions
from stepladder.driver import Driver
from stepladder.judges.prm.reward_model import ProcessRewardModel, check_same_tokenizer
from stepladder.train.grpo.answer_likelihood import AnswerLikelihood
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.credit.base import Need
from stepladder.train.grpo.credit.requirements import check_questions
from stepladder.train.grpo.monitors import ALARMS, Alarm, read_alarms
from stepladder.train.grpo.refill import Refills
from stepladder.train.grpo.rollback import rollback_checkpoint
from stepladder.train.grpo.rollouts import Rollouts
from stepladder.train.grpo.trl_trainer import BEFORE_UPDATE, EpisodeTrainer, out_of_time, out_of_tokens
from stepladder.train.loop.base_trainer import BaseTrainer
from stepladder.train.loop.context import TrainingContext
from stepladder.train.loop.metrics_log import MetricsLog, Row
from stepladder.train.loop.policy_session import PolicySession, open_policy
from stepladder.train.loop.policy_weights import peft_config
from stepladder.train.loop.public_trainer import PublicTrainer
from stepladder.train.loop.training_loop import (
    TrainingReport,
    best_checkpoint,
    run_training,
    training_numbers,
    usable_checkpoints,
)

#: The most batches of episodes between checkpoints: what a kill loses, and the granularity of a rollback.
_SAVE_EVERY = 5


@dataclass
class GRPOTrainer(PublicTrainer[GRPOConfig, TrainingReport]):
    """GRPO: `GRPOTrainer(policy, scorer="runs/nano/prm/reward", args=GRPOConfig(num_generations=8)).train()`."""

    #: A step scorer, or the folder of a PRM, for modes that score steps, such as `dual`.
    scorer: str | os.PathLike[str] | StepScorer | None = None

    kind = "grpo"
    config_class = GRPOConfig

    def _train(self, policy: str, context: TrainingContext, config: GRPOConfig) -> TrainingReport:
        scorer = None
        if config.scores_steps:
            options = {"retokenize": config.retokenize, "derived": config.derived}
            scorer = self._open_scorer(self.scorer, config.scorer, **options)
        return train_grpo(policy, context, config, scorer)


def train_grpo(
    policy: str | Path, context: TrainingContext, config: GRPOConfig, scorer: StepScorer | None
) -> TrainingReport:
    """Train a policy on its own episodes. `scorer`: for modes that score steps."""
    with open_policy(policy, context, config, "grpo", trl_adds_lora=True, vllm=config.vllm_settings) as session:
        if config.needs_reward_model and isinstance(scorer, ProcessRewardModel):
            check_same_tokenizer(session.engine.encoding, scorer)
        questions = _choose_questions(context, config)
        rollouts = Rollouts(
            Driver(session.engine, context.retriever),
            context.agent,
            context.episode,
            config,
            scorer,
            generating=session.generating,
            scoring=lambda: session.compute.autocast,
            likelihood=_answer_likelihood(session, context, config),
        )
        order, updates = schedule(len(questions), config, context.seed)
        refills = Refills(questions, order, config.batch_size // config.num_generations, context.seed)
        dev_eval = session.dev_evaluator(config.dev_questions, keep_cache=True)

        def trainer(arguments: TrainingArguments) -> BaseTrainer:
            reference = None
            if config.lora is None and (config.beta or session.policy.is_small):
                with torch.random.fork_rng():
                    reference = session.reference_model()
            return EpisodeTrainer(
                session.policy.model,
                args=arguments,
                rollouts=rollouts,
                reference=reference,
                refills=refills,
                train_dataset=Dataset.from_dict({"prompt": [dumps(questions[index]) for index in order]}),
                eval_dataset=Dataset.from_dict({"prompt": [dumps(questions[0])]}),  # only its presence matters
                processing_class=session.policy.tokenizer,
                peft_config=None if config.lora is None else peft_config(config.lora, "CAUSAL_LM"),
            )

        checkpoints = usable_checkpoints(context.folder, session.compute, context.folder / ALARMS)
        alarms = read_alarms(context.folder / ALARMS)
        metrics = MetricsLog(context.folder / "curves.jsonl", last_step=max(checkpoints.complete, default=0))
        ended = any(alarm.stopped for alarm in alarms) or out_of_time(metrics, config) or out_of_tokens(metrics, config)
        if checkpoints.complete and ended:
            # An earlier call reached this end and was killed after it.
            checkpoint = best_checkpoint(checkpoints, metrics)
        else:
            metrics, checkpoint = run_training(
                trainer,
                None,
                config,
                session.policy.model,
                context,
                session.compute,
                updates=updates,
                updates_per_epoch=max(len(questions) * config.num_generations // config.batch_size, 1)
                * config.num_iterations,
                save_steps=_save_steps(config),
                dev_eval=dev_eval,
                arguments=trl.GRPOConfig,  # type: ignore[attr-defined]
                **_grpo_arguments(config),
            )
            alarms = read_alarms(context.folder / ALARMS)
        stopped = [alarm for alarm in alarms if alarm.stopped]
        if stopped:
            checkpoint = rollback_checkpoint(checkpoints, metrics, stopped)
        session.save(checkpoint)
    return TrainingReport(context.folder / "policy", _numbers(metrics, config, len(questions), alarms, checkpoint))


def _answer_likelihood(session: PolicySession, context: TrainingContext, config: GRPOConfig) -> AnswerLikelihood | None:
    """For the potential of that name."""
    if Need.ANSWER_LOGPS not in config.needs:
        return None
    if session.compute.is_sharded:
        raise StepladderError(
            "potential: likelihood reads the policy in every process, which sharded weights do not allow: use another "
            "potential, such as monte-carlo, or train without sharding"
        )
    agent = context.agent.in_single_context()
    return AnswerLikelihood(session.policy.model, session.engine, agent, lambda: session.compute.autocast)


def schedule(questions: int, config: GRPOConfig, seed: int) -> tuple[list[int], int]:
    """The indices of the questions, update by update, and the number of updates.

    Every epoch is a shuffle of its own; questions that do not fill an update come in the next one.
    """
    per_update = config.batch_size // config.num_generations
    batches = max(math.floor(config.num_train_epochs * questions / per_update), 1)
    rng = np.random.default_rng(seed_of(seed, "order"))
    order: list[int] = []
    while len(order) < batches * per_update:
        order += rng.permutation(questions).tolist()
    return order[: batches * per_update], batches * config.num_iterations


def _save_steps(config: GRPOConfig) -> int:
    """Updates between checkpoints: whole batches of episodes, and at every dev evaluation."""
    batches = math.ceil(config.eval_steps / config.num_iterations) if config.eval_steps else _SAVE_EVERY
    return min(batches, _SAVE_EVERY) * config.num_iterations


def _choose_questions(context: TrainingContext, config: GRPOConfig) -> list[Question]:
    answerable = [question for question in context.questions if question.answers]
    if not answerable:
        raise StepladderError(f"none of {len(context.questions):,} questions has an answer: there would be no reward")
    chosen = sample_questions(answerable, config.questions, context.seed, balance=config.balance)
    check_questions(chosen, config)
    per_update = config.batch_size // config.num_generations
    if len(chosen) < per_update:
        raise StepladderError(
            f"{len(chosen)} questions have an answer, but an update needs {per_update} (batch_size "
            f"{config.batch_size} by num_generations {config.num_generations}); lower batch_size or raise "
            "num_generations"
        )
    return chosen


def _grpo_arguments(config: GRPOConfig) -> dict[str, Any]:
    """trl's arguments beyond those of every trainer."""
    same = {"num_generations", "num_iterations", "temperature", "epsilon", "epsilon_high"}
    return {
        **config.model_dump(include=same),
        "generation_batch_size": config.batch_size,
        "shuffle_dataset": False,  # `schedule` made the order: the same after a resume
        "beta": config.beta if config.lora is not None else 0.0,  # without LoRA the reference is ours
        "loss_type": "dapo",  # the mean over all tokens of the update, which `token_rows.py` gives weights
        "max_completion_length": None,  # nothing is truncated: the episode has its own limits
    }


def _numbers(
    metrics: MetricsLog, config: GRPOConfig, questions: int, alarms: Sequence[Alarm], checkpoint: Path | None
) -> dict[str, object]:
    rows = metrics.updates
    fresh = rows[:: config.num_iterations]  # the other updates use the same episodes
    window = min(5, max(len(fresh) // 2, 1))  # single updates are noisy: their questions differ
    refilled = round(sum(row.get("refilled", 0) for row in fresh))
    episodes = len(fresh) * config.batch_size + refilled * config.num_generations

    def mean(name: str, some: Sequence[Row]) -> float:
        return float(np.mean([row[name] for row in some]))

    numbers: dict[str, object] = {
        "mode": config.mode,
        "questions": min(questions, episodes // config.num_generations),  # with refills, at most
        "episodes": episodes,
        "tokens_sampled": round(sum(row["written"] for row in fresh)),
        # Not counted in the rows of earlier versions.
        "tokens_read": round(sum(row["read"] for row in fresh)) if all("read" in row for row in fresh) else None,
        **{
            name: round(sum(row.get(name, 0) for row in fresh))
            for name in ("continuations", "scored_tokens")
            if any(name in row for row in fresh)
        },
        "alarms": [alarm.name for alarm in alarms],
        "stopped_by": next((alarm.name for alarm in alarms if alarm.stopped), None),
        "out_of_time": out_of_time(metrics, config),
        "out_of_tokens": out_of_tokens(metrics, config),
        "kept_update": 0 if checkpoint is None else int(checkpoint.name.removeprefix("checkpoint-")),
        "dropped_groups": mean("dropped_groups", fresh),
        "refilled_groups": refilled,
    }
    for name in ("reward", "f1"):
        numbers |= {f"first_{name}": mean(name, fresh[:window]), f"last_{name}": mean(name, fresh[-window:])}
    for part in (*BEFORE_UPDATE, "update"):
        numbers[f"{part}_seconds"] = round(sum(row[f"{part}_seconds"] for row in rows), 2)
    return {**numbers, **training_numbers(metrics)}
