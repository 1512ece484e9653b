"""Supervised fine-tuning on demonstrations of an agent, with weighted tags (ProRAG, stage 1): the warm-up.

In: a model, a `TrainingContext`, settings. Out, in one folder:

    transcripts.jsonl   the demonstrations; dropped.json counts what was dropped, by reason
    curves.jsonl        one row per update and per dev evaluation
    checkpoints/        the newest and the best, to resume from
    policy/             the best by dev score: an ordinary transformers model with its tokenizer

The loss is the weighted mean of -log p over the policy's tokens. After a kill the same call resumes from the newest
checkpoint and ends with the same weights.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from stepladder.data.sampling import sample_questions
from stepladder.train.loop.context import TrainingContext, Trees
from stepladder.train.loop.policy_session import open_policy
from stepladder.train.loop.public_trainer import PublicTrainer
from stepladder.train.loop.training_loop import TrainingReport, progress
from stepladder.train.sft.config import SFTConfig
from stepladder.train.sft.demonstrations import demonstrations_exist, load_or_make
from stepladder.train.sft.weak_decomposition import decompose_questions
from stepladder.train.transcripts.fine_tune import fine_tune


@dataclass
class SFTTrainer(PublicTrainer[SFTConfig, TrainingReport]):
    """Supervised fine-tuning: `SFTTrainer("nano", "prorag-brief", args=SFTConfig(questions=48)).train()`."""

    #: For the source `trees`.
    trees: Trees | None = None

    kind = "sft"
    config_class = SFTConfig

    def _train(self, policy: str, context: TrainingContext, config: SFTConfig) -> TrainingReport:
        return train_sft(policy, context, config, self.trees)


def train_sft(
    policy: str | Path, context: TrainingContext, config: SFTConfig, trees: Trees | None = None
) -> TrainingReport:
    """Fine-tune a model on demonstrations. `trees`: for the source `trees`."""
    questions, seed = context.questions, context.seed
    with open_policy(policy, context, config, "sft") as session:
        if config.source == "mined" and not demonstrations_exist(context.folder):
            # First of all: balancing needs the number of searches of each question.
            with progress(context.watch, "Decompositions", len(questions)) as watch:
                questions = decompose_questions(questions, context.retriever, context.episode.k, watch)
        chosen = sample_questions(questions, config.questions, seed, balance=config.balance)
        episodes = len(chosen) * (1 if config.source in ("gold", "mined") else config.num_generations)
        with (
            session.compute.processes.main_first(),
            progress(context.watch, "Demonstrations", episodes) as watch,
            session.generating(),
        ):
            made = load_or_make(config, replace(context, watch=watch), session.engine, chosen, trees)
        numbers = fine_tune(session, made.kept, config)
    counts = {
        "transcripts": len(made.kept),
        "asked": made.requested,
        **{f"dropped_{reason}": count for reason, count in made.dropped.items()},
    }
    return TrainingReport(context.folder / "policy", {**counts, **numbers})
