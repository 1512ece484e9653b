"""Direct preference optimisation on pairs of steps (ReasonRAG): make the better of two steps from one state likelier.

In: a policy, pairs, dev questions. Out, in one folder:

    curves.jsonl    one row an update (loss, accuracy, rewards) and one a dev score (F1, held-out pairs, KL)
    checkpoints/    the newest and the best, to resume from
    policy/         the best by dev F1, which may be the policy as it came: an ordinary transformers model

The state of a pair goes in as the policy saw it, token for token, and only the step is in the loss. The reference is
the policy as it came: with LoRA the same weights without the adapter, else a second copy.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset  # type: ignore[import-untyped]
from torch import nn
from transformers import TrainingArguments

from stepladder.agents.base import Agent
from stepladder.core.trace import Pair, Question, Trajectory
from stepladder.driver import OutcomeCallback
from stepladder.explore.episode import EpisodeConfig
from stepladder.models.length_batches import context_window
from stepladder.models.loading import DTYPES, load_model, pick_dtype, quiet_libraries
from stepladder.retrieval.base import Retriever
from stepladder.train.dpo.config import DPOConfig
from stepladder.preferences.pair_checks import PairCheck
from stepladder.train.dpo.trl_trainer import PairRow, PairTrainer, collate_pairs
from stepladder.train.loop.config import LoraConfig
from stepladder.train.loop.policy import Policy, check_target_modules, load_policy, peft_config, write_policy
from stepladder.train.loop.rollout_engine import make_rollout_engine
from stepladder.train.loop.training_loop import Compute, training_numbers, fit, prepare_compute
from stepladder.train.loop.base_trainer import DevScore, BaseTrainer
from stepladder.data.sampling import sample_questions
from stepladder.train.transcripts.fine_tune import dev_player
from stepladder.train.transcripts.tokenized import tokenize_trajectory


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """What came of the training."""

    #: A model folder.
    policy: Path
    numbers: dict[str, object]


def train_dpo(
    model: str | Path,
    agent: Agent,
    pairs: Iterable[Pair],
    held_out: Iterable[Pair],
    questions: Sequence[Question],
    dev: Sequence[Question],
    retriever: Retriever | None,
    episode: EpisodeConfig,
    settings: DPOConfig,
    folder: Path,
    *,
    seed: int,
    device: str = "auto",
    dtype: str = "auto",
    max_batch: int = 64,
    watch: OutcomeCallback | None = None,
) -> TrainingReport:
    """Train a policy on pairs; the same call goes on where an earlier one was killed.

    `questions` are those that the pairs are about, to see whether the agent still renders them in the same words.
    """
    place = prepare_compute(settings, seed, device, "dpo")
    pick_dtype(dtype, place.device)
    with quiet_libraries():
        policy = load_policy(model, None, bf16=place.bf16 and settings.lora is not None, device=place.device)
        if settings.lora is not None:
            check_target_modules(policy.model, settings.lora, model)
        engine, playing = make_rollout_engine(policy, place, max_batch)
        check = PairCheck(agent, questions, engine.encoding, engine.context_limit)
        usable, checked = check.sift(pairs), check.sift(held_out)
        usable.expect_some("the pairs to train on")
        rows, dev_rows = _rows(usable.pairs), _rows(checked.pairs)
        trainers: list[PairTrainer] = []

        def look(played: Sequence[Trajectory]) -> DevScore:
            examples = [example for trajectory in played for example in tokenize_trajectory(trajectory, engine, {})]
            return {"kl": trainers[0].divergence(examples)}

        asked = sample_questions(dev, settings.dev_questions, seed)
        play = dev_player(engine, agent, asked, retriever, episode, seed, playing, look)

        def dev_score() -> DevScore:
            return play() if play is not None else {}

        def trainer(arguments: TrainingArguments) -> BaseTrainer:
            trainers.append(_trainer(policy, rows, dev_rows, settings, arguments, place))
            return trainers[0]

        curves, checkpoint = fit(
            trainer,
            [len(row["prompt_ids"]) + max(len(row["chosen_ids"]), len(row["rejected_ids"])) for row in rows],
            settings,
            settings.learning_rate if settings.learning_rate != "auto" else _lr_for(policy.model, settings.lora),
            folder,
            place,
            dev_score=dev_score if play is not None or dev_rows else None,
            eval_on_start=settings.eval_on_start,
            best_by="dev_f1" if play is not None else "dev_loss",
            watch=watch,
            arguments=trl.DPOConfig,  # type: ignore[attr-defined]
            beta=settings.beta,
            loss_type=[settings.loss_type],
            max_length=None,  # what does not fit was refused; nothing is cut
            gradient_checkpointing=False,
            use_cache=policy.model.config.use_cache,  # the trainer puts it into the policy's configuration
        )
        if place.processes.is_main_process:
            write_policy(folder / "policy", policy, checkpoint, DTYPES.get(dtype, policy.dtype))
        place.processes.wait_for_everyone()
    counts: dict[str, object] = {
        "pairs": len(rows),
        "held_out_pairs": len(dev_rows),
        "refused": dict((usable.refused + checked.refused).most_common()),
        "questions": len(Counter(row["question_id"] for row in rows)),
    }
    best = {name: value for name, value in (curves.best or {}).items() if name not in ("step", "dev_seconds")}
    return TrainingReport(folder / "policy", {**counts, **best, **training_numbers(curves)})


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


def _trainer(
    policy: Policy,
    rows: Sequence[PairRow],
    held_out: Sequence[PairRow],
    settings: DPOConfig,
    arguments: Any,
    place: Compute,
) -> PairTrainer:
    reference: Any = None
    if settings.lora is None:
        reference, _ = load_model(policy.source, policy.tokenizer, torch.float32)
        reference.to(place.device).eval()
    made = PairTrainer(
        policy.model,
        ref_model=reference,
        args=arguments,
        data_collator=partial(collate_pairs, window=context_window(policy.model)),
        train_dataset=Dataset.from_list(list(rows)),
        eval_dataset=Dataset.from_list(list(held_out or rows[:1])),  # only asked whether it is there
        processing_class=policy.tokenizer,
        peft_config=None if settings.lora is None else peft_config(settings.lora, "CAUSAL_LM"),
    )
    made.held_out = held_out
    return made


def _lr_for(model: nn.Module, lora: LoraConfig | None) -> float:
    """Far smaller steps than those of fine-tuning: a pair pushes two steps apart without end."""
    if lora is not None:
        return 5e-6
    parameters = sum(weights.numel() for weights in model.parameters())
    return 5e-5 if parameters < 20e6 else 5e-6 if parameters < 1e9 else 1e-6
