"""What every training has around its loss: a place to compute, the trainer's arguments, resuming, the best checkpoint.

In: settings and a function that makes a `BaseTrainer` from transformers' arguments. Out: the curves, and the folder
of the checkpoint that counts: the best by dev score, or the last where nothing was held out. A policy that could play
before is scored before, too, and where no checkpoint is as good there is none that counts. After a kill the same call
goes on from the newest checkpoint and ends with the same weights.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from torch import nn
from transformers import TrainingArguments, set_seed

from stepladder.core.errors import StepladderError
from stepladder.core.seeding import seed_of
from stepladder.driver import OutcomeCallback
from stepladder.driver.progress import Progress
from stepladder.models.gpu_memory import apply_gpu_share
from stepladder.models.loading import pick_device, pick_dtype
from stepladder.train.loop.checkpoints import Checkpoints
from stepladder.train.loop.config import LoraConfig, TrainingConfig
from stepladder.train.loop.metrics_log import MetricsLog
from stepladder.train.loop.base_trainer import DevScore, BaseTrainer, TrainerHooks

#: Makes a context within which models compute in some precision.
Precision = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Compute:
    """Where a training computes, and how."""

    device: torch.device
    bf16: bool
    #: Of as many bits as NumPy's global generator takes.
    seed: int
    #: Started by torchrun or accelerate, every process trains its share; the first one alone writes.
    processes: Any

    @property
    def autocast(self) -> torch.autocast:
        """Within, models compute in the precision that was asked for."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)


def prepare_compute(settings: TrainingConfig, seed: int, device: str, kind: str) -> Compute:
    """The device that was asked for, made ready. All that is drawn from global generators follows from the seed."""
    where = pick_device(device)
    if where.index:
        raise StepladderError(
            f"training uses the first GPU that it sees, not '{device}'; set CUDA_VISIBLE_DEVICES={where.index}"
        )
    bf16 = pick_dtype(settings.precision, where) is torch.bfloat16
    processes = PartialState(cpu=where.type == "cpu")
    where = apply_gpu_share(processes.device) if processes.num_processes > 1 else where
    short = seed_of(seed, kind) % 2**32
    set_seed(short)
    return Compute(where, bf16, short, processes)


def fit(
    make_trainer: Callable[[TrainingArguments], BaseTrainer],
    lengths: Sequence[int] | None,
    settings: TrainingConfig,
    lr: float,
    folder: Path,
    place: Compute,
    *,
    dev_score: Callable[[], DevScore] | None,
    eval_on_start: bool = False,
    best_by: str = "dev_f1",
    updates: int | None = None,
    an_epoch: int | None = None,
    save_every: int | None = None,
    arguments: type[TrainingArguments] = TrainingArguments,
    watch: OutcomeCallback | None = None,
    **more: Any,
) -> tuple[MetricsLog, Path | None]:
    """Train from the newest checkpoint on, to the end. `more` goes to the arguments.

    `eval_on_start`: the model as it came has a dev score as well, and where that is the best no checkpoint is returned.
    `lengths`: of the examples. A trainer that makes its own examples has none; its `updates`, and those of an epoch,
    are given instead. With `save_every` there are checkpoints at multiples of that, and dev scores only at such.
    """
    if lengths is not None:
        an_epoch = math.ceil(len(lengths) / settings.batch_size)
        updates = math.ceil(settings.num_train_epochs * an_epoch)
    else:
        more["max_steps"] = updates
    assert updates is not None
    assert an_epoch is not None
    checkpoints = Checkpoints(folder / "checkpoints")
    with place.processes.main_process_first():
        checkpoints.remove_incomplete()
    done = max(checkpoints.complete, default=0)
    writes = place.processes.is_main_process
    # Without a checkpoint all begins again, with the score of the model as it came.
    curves = MetricsLog(folder / "curves.jsonl", upto=done or -1, best_by=best_by, writes=writes)
    if len(curves.updates) != done:
        raise StepladderError(
            f"{curves.path} has {len(curves.updates):,} of the {done:,} updates up to the newest checkpoint: without "
            f"them the best is not known. Put the file back, or delete {checkpoints.folder} to train again"
        )
    if done < updates:  # the trainer itself would begin the rest of an epoch of which only a part was wanted
        every = settings.eval_steps or an_epoch
        if save_every is not None:
            every = math.ceil(every / save_every) * save_every
        made = arguments(
            **_arguments(settings, lr, checkpoints.folder, every, save_every or every, dev_score is not None, place),
            warmup_steps=min(math.ceil(updates * settings.warmup_ratio), updates - 1),  # the first has a rate of 0
            eval_on_start=eval_on_start and dev_score is not None and not done,
            **more,
        )
        if made.n_gpu > 1:
            made._n_gpu = 1  # one process, one GPU: the trainer would spread the model over all by nn.DataParallel
        with shown(watch, "Training", updates - done) as told:
            trainer = make_trainer(made)
            trainer.attach(lengths, TrainerHooks(curves, checkpoints, folder / "bad_batch.json", told, dev_score))
            trainer.train(resume_from_checkpoint=str(checkpoints.at(done)) if done else None)
    return curves, best_checkpoint(checkpoints, curves)


def best_checkpoint(checkpoints: Checkpoints, curves: MetricsLog) -> Path | None:
    """The best by dev score, or the last where there is none; None where the model was at its best as it came."""
    best = curves.best
    step = best["step"] if best is not None else max(checkpoints.complete, default=0)
    return checkpoints.at(step) if step else None


def _arguments(
    settings: TrainingConfig, lr: float, folder: Path, every: int, save_every: int, scored: bool, place: Compute
) -> dict[str, Any]:
    """Our settings as the trainer wants them."""
    parts = settings.gradient_accumulation_steps * place.processes.num_processes
    if settings.batch_size % parts:
        raise StepladderError(f"a batch of {settings.batch_size} cannot be shared by {parts} parts (accumulate x processes)")
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": settings.batch_size // parts,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "num_train_epochs": settings.num_train_epochs,
        "learning_rate": lr,
        "lr_scheduler_type": "constant_with_warmup" if settings.lr_scheduler_type == "constant" else settings.lr_scheduler_type,
        "weight_decay": settings.weight_decay,
        "max_grad_norm": settings.max_grad_norm,
        "bf16": place.bf16,
        "use_cpu": place.device.type == "cpu",
        "seed": place.seed,
        "eval_strategy": "steps" if scored else "no",
        "eval_steps": every,
        "save_strategy": "steps",
        "save_steps": save_every,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "remove_unused_columns": False,
        "ddp_find_unused_parameters": False,
        "report_to": "none",
        "disable_tqdm": True,
        "log_level": "error",
    }


def lr_for(model: nn.Module, lora: LoraConfig | None) -> float:
    """A learning rate that suits the size of a model: small ones take large steps."""
    if lora is not None:
        return 2e-4
    parameters = sum(weights.numel() for weights in model.parameters())
    return 5e-4 if parameters < 20e6 else 1e-4 if parameters < 1e9 else 2e-5


def shown(watch: OutcomeCallback | None, label: str, total: int) -> AbstractContextManager[OutcomeCallback]:
    """The caller's watcher, or a progress bar of our own."""
    return nullcontext(watch) if watch is not None else Progress(label, total)


def training_numbers(curves: MetricsLog) -> dict[str, float]:
    """What the curves of a whole training tell in a few numbers."""
    updates = curves.updates
    seconds = sum(row["seconds"] for row in updates)
    tokens = sum(row["tokens"] for row in updates)
    numbers: dict[str, float] = {
        "steps": len(updates),
        "tokens": tokens,
        "policy_tokens": sum(row["policy_tokens"] for row in updates),
        "seconds": round(seconds, 2),
        "tokens_per_second": round(tokens / max(seconds, 1e-9), 1),
        "first_loss": updates[0]["loss"],
        "last_loss": updates[-1]["loss"],
    }
    best = curves.best
    if best is not None:
        numbers |= {f"best_{curves.best_by}": best[curves.best_by], "best_step": best["step"]}
    return numbers
