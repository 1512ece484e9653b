"""Fine-tuning on transcripts: the weighted mean of -log p over the policy's tokens, each transcript read in one pass.

In: a policy, transcripts, a function that plays dev questions. Out: the curves and the checkpoint that counts. Warm-up
(`sft.py`) and refinement (`rft.py`) differ only in where the transcripts come from.

It is `transformers.Trainer` and not trl's SFTTrainer: that one takes a `datasets.Dataset` of labels alone, puts its own
forward pass and its own loss into the model, and has no place for token weights; nothing of what it adds would be left.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainingArguments

from stepladder.agents.base import Agent
from stepladder.core.errors import StepladderError
from stepladder.core.trace import Question, Trajectory
from stepladder.driver import Driver, OutcomeCallback
from stepladder.engines.transformers.in_process import InProcessEngine
from stepladder.evaluate.evaluator import evaluate
from stepladder.explore.episode import EpisodeConfig
from stepladder.models.length_batches import context_window
from stepladder.retrieval.base import Retriever
from stepladder.train.loop.metrics_log import MetricsLog
from stepladder.train.loop.microbatches import in_parts
from stepladder.train.loop.policy import Policy
from stepladder.train.loop.training_loop import Compute, Precision, training_numbers, fit, lr_for
from stepladder.train.loop.base_trainer import DevScore, BaseTrainer
from stepladder.train.sft.config import TranscriptTrainingConfig
from stepladder.train.transcripts.collate import collate
from stepladder.train.transcripts.token_loss import weight_of, weighted_nll
from stepladder.train.transcripts.tokenized import Example, tokenize_trajectory


class TranscriptTrainer(BaseTrainer):
    """Trains a policy on examples."""

    def weight_of(self, batch: Any) -> float:
        """What the tokens to predict weigh together."""
        return float(weight_of(batch))

    def policy_tokens_of(self, batch: Any) -> float:
        """Tokens with any weight."""
        return float((batch["weights"] > 0).sum())

    def parts_of(self, batch: Any) -> Iterator[Any]:
        """Some rows after the other."""
        rows, width = batch["input_ids"].shape
        return in_parts(batch, torch.full((rows,), width), self.at_once)

    def summed_loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Weighted, over the policy's tokens."""
        return weighted_nll(model, batch)


def fine_tune(
    policy: Policy,
    engine: InProcessEngine,
    transcripts: Sequence[Trajectory],
    settings: TranscriptTrainingConfig,
    folder: Path,
    place: Compute,
    *,
    dev_score: Callable[[], DevScore] | None,
    watch: OutcomeCallback | None = None,
) -> tuple[dict[str, float], Path | None]:
    """Train the policy; `engine` plays it. What came of it in numbers, and the checkpoint that is the new policy.

    There is none where the policy was best as it came.
    """
    engine.reset_prefix_cache()  # training needs the memory
    examples, too_long = _fitting(transcripts, engine, settings)
    curves, checkpoint = _fit(policy, examples, settings, folder, place, dev_score, watch)
    return {"skipped_too_long": too_long, "examples": len(examples), **training_numbers(curves)}, checkpoint


def _fit(
    policy: Policy,
    examples: Sequence[Example],
    settings: TranscriptTrainingConfig,
    folder: Path,
    place: Compute,
    dev_score: Callable[[], DevScore] | None,
    watch: OutcomeCallback | None,
) -> tuple[MetricsLog, Path | None]:
    def trainer(arguments: TrainingArguments) -> BaseTrainer:
        # A trainer that evaluates wants an eval_dataset; ours is inside dev_score.
        held_out: Any = [None] if dev_score else None
        together: Any = partial(collate, window=context_window(policy.model))
        return TranscriptTrainer(policy.model, arguments, together, train_dataset=list(examples), eval_dataset=held_out)

    return fit(
        trainer,
        [len(example.tokens) for example in examples],
        settings,
        settings.learning_rate if settings.learning_rate != "auto" else lr_for(policy.model, settings.lora),
        folder,
        place,
        dev_score=dev_score,
        eval_on_start=settings.eval_on_start,
        watch=watch,
        use_cache=policy.model.config.use_cache,  # the trainer puts it into the policy's configuration
    )


def dev_player(
    engine: InProcessEngine,
    agent: Agent,
    questions: Sequence[Question],
    retriever: Retriever | None,
    episode: EpisodeConfig,
    seed: int,
    playing: Precision,
    look: Callable[[Sequence[Trajectory]], DevScore] = lambda _: {},
    *,
    plays_on: bool = False,
) -> Callable[[], DevScore] | None:
    """Plays the dev questions greedily with the model as it is; None without questions.

    `playing` makes the context in which it writes. `look` may find out more from what was played. `plays_on`: whether
    the engine has more to play soon; else training gets its memory.
    """
    if not questions:
        return None
    greedy = replace(episode, sampling=replace(episode.sampling, temperature=0.0))

    def score() -> DevScore:
        with playing():
            result = evaluate(Driver(engine, retriever), agent, questions, greedy, seed=seed)
        if plays_on:
            engine.on_idle()
        else:
            engine.reset_prefix_cache()
        if result.stopped_by is not None:
            raise result.stopped_by
        failures = [row.failure for row in result.scores if row.failure]
        if len(failures) == len(questions):
            raise StepladderError(f"every dev episode failed; the first: {failures[0]}")
        f1 = sum(row.f1 for row in result.scores) / len(questions)
        em = sum(row.em for row in result.scores) / len(questions)
        return {
            "f1": f1,
            "em": em,
            "failed": len(failures),
            **look([played for played in result.trajectories if played is not None]),
        }

    return score


def _fitting(
    transcripts: Sequence[Trajectory], engine: InProcessEngine, settings: TranscriptTrainingConfig
) -> tuple[list[Example], int]:
    """Examples that fit into the model's window, and how many do not."""
    examples = [each for trajectory in transcripts for each in tokenize_trajectory(trajectory, engine, settings.tag_weights)]
    window = engine.context_limit
    fitting = [example for example in examples if len(example.tokens) <= window]
    lengths = [len(example.tokens) for example in examples]
    too_long = len(examples) - len(fitting)
    if not fitting:
        raise StepladderError(
            f"none of {len(examples):,} transcripts fits into the model's window of {window:,} tokens: they have "
            f"{min(lengths):,} to {max(lengths):,}. Take a model with a longer window, or fewer passages a search (k)"
        )
    if too_long:
        print(
            f"{too_long:,} of {len(examples):,} transcripts are longer than the model's window of {window:,} tokens "
            f"(up to {max(lengths):,}) and are left out",
            file=sys.stderr,
        )
    return fitting, too_long
