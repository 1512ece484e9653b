"""Direct preference optimization on pairs of steps (ReasonRAG): make the better of two steps from one state likelier.

In: a policy, a `TrainingContext`, pairs. Out, in one folder:

    curves.jsonl    one row per update (loss, accuracy, rewards) and per dev evaluation (F1, held-out pairs, KL)
    checkpoints/    the newest and the best, to resume from
    policy/         the best by dev F1, or the initial policy: an ordinary transformers model

The state of a pair is read token by token as the policy saw it, and only the step is in the loss. The reference is the
initial policy: with LoRA the same weights without the adapter, else a second copy.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trl
from datasets import Dataset  # type: ignore[import-untyped]
from transformers import TrainingArguments

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Pair, Question, Trajectory
from stepladder.data import DataSet
from stepladder.models.length_batches import context_window
from stepladder.preferences.pair_checks import PairCheck, read_pairs
from stepladder.train.dpo.config import DPOConfig
from stepladder.train.dpo.trl_trainer import PairRow, PairTrainer, collate_pairs
from stepladder.train.loop.base_trainer import BaseTrainer, DevScore
from stepladder.train.loop.context import TrainingContext
from stepladder.train.loop.policy_session import PolicySession, open_policy
from stepladder.train.loop.policy_weights import peft_config
from stepladder.train.loop.public_trainer import PublicTrainer, all_questions
from stepladder.train.loop.training_loop import TrainingReport, run_training, training_numbers
from stepladder.train.transcripts.tokenized import tokenize_trajectory


@dataclass
class DPOTrainer(PublicTrainer[DPOConfig, TrainingReport]):
    """Step-level DPO: `DPOTrainer(policy, pairs="runs/nano/pairs/pairs").train()`."""

    #: Pairs, or a folder or file of them. `held_out` is used with a sequence of pairs.
    pairs: Sequence[Pair] | str | os.PathLike[str] | None = None
    held_out: Sequence[Pair] = ()

    kind = "dpo"
    config_class = DPOConfig

    def _questions(self, data: DataSet) -> tuple[Question, ...]:
        return all_questions(data)

    def _train(self, policy: str, context: TrainingContext, config: DPOConfig) -> TrainingReport:
        if self.pairs is None:
            raise StepladderError("DPO needs pairs")
        return train_dpo(policy, context, config, *read_pairs(self.pairs, self.held_out))


def train_dpo(
    policy: str | Path, context: TrainingContext, config: DPOConfig, pairs: Iterable[Pair], held_out: Iterable[Pair]
) -> TrainingReport:
    """Train a policy on pairs. `context.questions`: those of the pairs, to check that prompts are still the same."""
    with open_policy(policy, context, config, "dpo", trl_adds_lora=True) as session:
        engine, model = session.engine, session.policy.model
        checker = PairCheck(
            context.agent, context.questions, engine.encoding, engine.context_limit, reencode=config.reencode
        )
        accepted, dev, counts = checker.check_splits(pairs, held_out)
        rows, dev_rows = _rows(accepted), _rows(dev)
        trainers: list[PairTrainer] = []

        def divergence(trajectories: Sequence[Trajectory]) -> DevScore:
            examples = [example for each in trajectories for example in tokenize_trajectory(each, engine, {})]
            return {"kl": trainers[0].divergence(examples)}

        def trainer(arguments: TrainingArguments) -> BaseTrainer:
            trainers.append(_make_trainer(session, config, arguments, rows, dev_rows))
            return trainers[0]

        dev_episodes = session.dev_evaluator(config.dev_questions, divergence)
        metrics, checkpoint = run_training(
            trainer,
            [len(row["prompt_ids"]) + max(len(row["chosen_ids"]), len(row["rejected_ids"])) for row in rows],
            config,
            model,
            context,
            session.compute,
            dev_eval=dev_episodes or (dict if dev_rows else None),  # the trainer adds the held-out pairs
            best_by="dev_f1" if dev_episodes is not None else "dev_loss",
            arguments=trl.DPOConfig,  # type: ignore[attr-defined]
            beta=config.beta,
            loss_type=[config.loss_type],
            max_length=None,  # pairs that are too long were refused; nothing is truncated
        )
        session.save(checkpoint)
    questions = len({row["question_id"] for row in rows})
    best = {name: value for name, value in (metrics.best or {}).items() if name not in ("step", "dev_seconds")}
    numbers = {**counts, "questions": questions, **best, **training_numbers(metrics)}
    return TrainingReport(context.folder / "policy", numbers)


def _rows(pairs: Sequence[Pair]) -> list[PairRow]:
    return [
        PairRow(
            question_id=pair.question_id,
            prompt_ids=[token for segment in pair.context for token in segment.tokens],
            chosen_ids=list(pair.chosen.written.tokens),
            rejected_ids=list(pair.rejected.written.tokens),
        )
        for pair in pairs
    ]


def _make_trainer(
    session: PolicySession, config: DPOConfig, arguments: Any, rows: Sequence[PairRow], held_out: Sequence[PairRow]
) -> PairTrainer:
    model = session.policy.model
    made = PairTrainer(  # type: ignore[call-arg]
        model,
        ref_model=session.reference_model() if config.lora is None else None,
        args=arguments,
        data_collator=partial(collate_pairs, max_length=context_window(model)),
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(held_out or rows[:1]),  # only its presence matters
        processing_class=session.policy.tokenizer,
        peft_config=None if config.lora is None else peft_config(config.lora, "CAUSAL_LM"),
    )
    made.held_out = held_out
    return made
