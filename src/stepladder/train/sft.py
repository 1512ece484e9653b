"""The warm-up: supervised fine-tuning on transcripts of an agent, with weighted tags (ProRAG, stage 1).

In: a model, an agent, questions, an index, settings. Out, in one folder:

    transcripts.jsonl   what was trained on; dropped.json counts what was not, by reason
    curves.jsonl        one row an update and one a dev score
    checkpoints/        the newest and the best, to resume from
    policy/             the best by dev score: an ordinary transformers model with its tokenizer

The loss is the weighted mean of -log p over the policy's tokens, each transcript read whole, in one pass. After a kill
the same call goes on from the newest checkpoint and ends with the same weights. A folder belongs to one set of inputs:
what it holds is not compared with those of a later call (a run's fingerprints do that).
"""

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from torch import nn
from transformers import TrainingArguments, set_seed

from stepladder.agents.base import Agent
from stepladder.driver import Driver, Watcher
from stepladder.engines.loading import DTYPES, pick_device, pick_dtype, quiet_libraries
from stepladder.engines.transformers import TransformersEngine
from stepladder.errors import StepladderError
from stepladder.evaluate.runner import evaluate
from stepladder.explore.episode import EpisodeSettings
from stepladder.progress import Progress
from stepladder.retrieval.base import Retriever
from stepladder.seeding import seed_of
from stepladder.trace import Question, Trajectory
from stepladder.train.checkpoints import Checkpoints
from stepladder.train.curves import Curves
from stepladder.train.examples import Example, examples_of
from stepladder.train.policy import Policy, load_policy, write_policy
from stepladder.train.sft_settings import LoraSettings, SFTSettings
from stepladder.train.sources import transcripts_in
from stepladder.train.trainer import DevScore, TranscriptTrainer
from stepladder.train.transcripts import Transcripts, pick

__all__ = ["LoraSettings", "SFTReport", "SFTSettings", "train_sft"]


@dataclass(frozen=True, slots=True)
class SFTReport:
    """What came of a warm-up."""

    #: A model folder.
    policy: Path
    numbers: dict[str, float]

    def summary(self) -> dict[str, float]:
        """Plain numbers by name."""
        return dict(self.numbers)


def train_sft(
    model: str | Path,
    agent: Agent,
    questions: Sequence[Question],
    dev: Sequence[Question],
    retriever: Retriever | None,
    episode: EpisodeSettings,
    settings: SFTSettings,
    folder: Path,
    *,
    seed: int,
    device: str = "auto",
    dtype: str = "auto",
    watch: Watcher | None = None,
) -> SFTReport:
    """Train a model on transcripts; the same call goes on where an earlier one was killed.

    `dtype`: of the weights in `policy/`, fp32 or bf16; auto is that of the model's own files. `watch` is told of every
    episode that becomes a transcript and of every update; without one, progress is shown on standard error.
    """
    where = _training_device(device)
    bf16 = pick_dtype(settings.precision, where) is torch.bfloat16
    pick_dtype(dtype, where)  # a wrong name should not wait until the end
    # Started by torchrun or accelerate, every process trains its share; the first one alone writes.
    processes = PartialState(cpu=where.type == "cpu")
    where = processes.device if processes.num_processes > 1 else where
    with quiet_libraries():
        set_seed(_short(seed))
        policy = load_policy(model, settings.lora, bf16=bf16, device=where)
        engine = TransformersEngine(policy.model, policy.tokenizer)
        chosen = pick(questions, settings.questions, seed, balance=settings.balance)
        episodes = len(chosen) * (1 if settings.source == "gold" else settings.samples)
        with (
            processes.main_process_first(),
            _shown(watch, "Transcripts", episodes) as shown,
            torch.autocast(where.type, torch.bfloat16, enabled=bf16),
        ):
            transcripts = transcripts_in(
                folder, settings, engine, agent, chosen, retriever, episode, seed=seed, watch=shown
            )
        engine.forget()  # training needs the memory
        examples, too_long = _fitting(transcripts.kept, engine, settings)
        dev_set = pick(dev, settings.dev_questions, seed)
        score = _dev_score(engine, agent, dev_set, retriever, episode, seed) if dev_set else None
        curves, checkpoint = _train(policy, examples, score, settings, folder, _short(seed), where, bf16, watch)
        if processes.is_main_process:
            write_policy(folder / "policy", policy, checkpoint, DTYPES.get(dtype, policy.dtype))
        processes.wait_for_everyone()
    return SFTReport(folder / "policy", _numbers(transcripts, examples, too_long, curves))


def _train(
    policy: Policy,
    examples: Sequence[Example],
    dev_score: Callable[[], DevScore] | None,
    settings: SFTSettings,
    folder: Path,
    seed: int,
    device: torch.device,
    bf16: bool,
    watch: Watcher | None,
) -> tuple[Curves, Path]:
    """Train from the newest checkpoint on, to the end. The curves, and the checkpoint that is the policy."""
    an_epoch = math.ceil(len(examples) / settings.batch)
    updates = math.ceil(settings.epochs * an_epoch)
    checkpoints = Checkpoints(folder / "checkpoints")
    processes = PartialState()
    with processes.main_process_first():
        checkpoints.remove_incomplete()
    done = max(checkpoints.complete, default=0)
    curves = Curves(folder / "curves.jsonl", upto=done, writes=processes.is_main_process)
    if len(curves.updates) != done:
        raise StepladderError(
            f"{curves.path} has {len(curves.updates):,} of the {done:,} updates up to the newest checkpoint: without "
            f"them the best is not known. Put the file back, or delete {checkpoints.folder} to train again"
        )
    if done < updates:  # the trainer itself would begin the rest of an epoch of which only a part was wanted
        every = settings.eval_every or an_epoch
        lr = settings.lr if settings.lr != "auto" else _lr_for(policy.model, settings.lora)
        arguments = _arguments(settings, lr, checkpoints.folder, every, dev_score is not None, seed, device, bf16)
        arguments.use_cache = policy.model.config.use_cache  # the trainer puts it into the policy's configuration
        with _shown(watch, "Training", updates - done) as shown:
            trainer = TranscriptTrainer(
                policy.model,
                arguments,
                examples,
                dev_score=dev_score,
                curves=curves,
                checkpoints=checkpoints,
                bad_batch=folder / "bad_batch.json",
                watch=shown,
            )
            trainer.train(resume_from_checkpoint=str(checkpoints.at(done)) if done else None)
    best = curves.best
    return curves, checkpoints.at(best["step"] if best is not None else updates)


def _lr_for(model: nn.Module, lora: LoraSettings | None) -> float:
    """A learning rate that suits the size of a model: small ones take large steps."""
    if lora is not None:
        return 2e-4
    parameters = sum(weights.numel() for weights in model.parameters())
    return 5e-4 if parameters < 20e6 else 1e-4 if parameters < 1e9 else 2e-5


def _arguments(
    settings: SFTSettings,
    learning_rate: float,
    folder: Path,
    every: int,
    scored: bool,
    seed: int,
    device: torch.device,
    bf16: bool,
) -> TrainingArguments:
    """Our settings as the trainer wants them."""
    parts = settings.accumulate * PartialState().num_processes
    if settings.batch % parts:
        raise StepladderError(f"a batch of {settings.batch} cannot be shared by {parts} parts (accumulate x processes)")
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=settings.batch // parts,
        gradient_accumulation_steps=settings.accumulate,
        num_train_epochs=settings.epochs,
        learning_rate=learning_rate,
        lr_scheduler_type="constant_with_warmup" if settings.schedule == "constant" else settings.schedule,
        warmup_steps=settings.warmup,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        bf16=bf16,
        use_cpu=device.type == "cpu",
        seed=seed,
        eval_strategy="steps" if scored else "no",
        eval_steps=every,
        save_strategy="steps",
        save_steps=every,
        logging_steps=1,
        logging_nan_inf_filter=False,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        report_to="none",
        disable_tqdm=True,
        log_level="error",
    )
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # one process, one GPU: the trainer would spread the model over all by nn.DataParallel
    return arguments


def _dev_score(
    engine: TransformersEngine,
    agent: Agent,
    questions: Sequence[Question],
    retriever: Retriever | None,
    episode: EpisodeSettings,
    seed: int,
) -> Callable[[], DevScore]:
    """Plays the dev questions greedily with the model as it is."""
    greedy = replace(episode, sampling=replace(episode.sampling, temperature=0.0))

    def score() -> DevScore:
        result = evaluate(Driver(engine, retriever), agent, questions, greedy, seed=seed)
        engine.forget()
        if result.stopped_by is not None:
            raise result.stopped_by
        failures = [row.failure for row in result.scores if row.failure]
        if len(failures) == len(questions):
            raise StepladderError(f"every dev episode failed; the first: {failures[0]}")
        f1 = sum(row.f1 for row in result.scores) / len(questions)
        em = sum(row.em for row in result.scores) / len(questions)
        return f1, em, len(failures)

    return score


def _fitting(
    transcripts: Sequence[Trajectory], engine: TransformersEngine, settings: SFTSettings
) -> tuple[list[Example], int]:
    """Examples that fit into the model's window, and how many do not."""
    examples = [each for trajectory in transcripts for each in examples_of(trajectory, engine, settings.tag_weights)]
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


def _numbers(transcripts: Transcripts, examples: Sequence[Example], too_long: int, curves: Curves) -> dict[str, float]:
    updates = curves.updates
    seconds = sum(row["seconds"] for row in updates)
    tokens = sum(row["tokens"] for row in updates)
    best = curves.best
    numbers: dict[str, float] = {
        "transcripts": len(transcripts.kept),
        "asked": transcripts.asked,
        **{f"dropped_{reason}": count for reason, count in transcripts.dropped.items()},
        "skipped_too_long": too_long,
        "examples": len(examples),
        "steps": len(updates),
        "tokens": tokens,
        "policy_tokens": sum(row["policy_tokens"] for row in updates),
        "seconds": round(seconds, 2),
        "tokens_per_second": round(tokens / max(seconds, 1e-9), 1),
        "first_loss": updates[0]["loss"],
        "last_loss": updates[-1]["loss"],
    }
    if best is not None:
        numbers |= {"best_dev_f1": best["dev_f1"], "best_step": best["step"]}
    return numbers


def _training_device(name: str) -> torch.device:
    device = pick_device(name)
    if device.index:
        raise StepladderError(
            f"training uses the first GPU that it sees, not '{name}'; set CUDA_VISIBLE_DEVICES={device.index}"
        )
    return device


def _shown(watch: Watcher | None, label: str, total: int) -> AbstractContextManager[Watcher]:
    """The caller's watcher, or a progress bar of our own."""
    return nullcontext(watch) if watch is not None else Progress(label, total)


def _short(seed: int) -> int:
    """A seed of as many bits as NumPy's global generator takes."""
    return seed_of(seed, "sft") % 2**32
