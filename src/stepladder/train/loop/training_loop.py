"""The training loop around a loss: trainer arguments, resuming, and the best checkpoint.

In: settings and a function that makes a `BaseTrainer` from transformers' arguments. Out: the metrics log and the folder
of the selected checkpoint: the best by dev score, or the last without dev data. With `eval_on_start` the initial model
is evaluated too; if no checkpoint is as good, none is selected. After a kill the same call resumes from the newest
checkpoint whose files are all there, and ends with the same weights.
"""

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers import TrainingArguments

from stepladder.core.errors import StepladderError
from stepladder.driver import OutcomeCallback
from stepladder.driver.progress import Progress
from stepladder.train.launch.sharding import check_resumable
from stepladder.train.loop.base_trainer import BaseTrainer, DevScore, TrainerHooks
from stepladder.train.loop.checkpoints import Checkpoints
from stepladder.train.loop.compute import Compute
from stepladder.train.loop.config import PolicyTrainingConfig, TrainingConfig
from stepladder.train.loop.context import TrainingContext
from stepladder.train.loop.live_console import LiveConsole
from stepladder.train.loop.metrics_log import MetricsLog
from stepladder.train.loop.trackers import tracking


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """The result of training a policy."""

    #: A model folder.
    policy: Path
    #: Counts and metrics, as in the stage's summary.
    numbers: dict[str, Any]

    def __repr__(self) -> str:
        return report_line(self.policy, self.numbers)


def report_line(folder: Path, numbers: dict[str, Any]) -> str:
    """The result of a training run in one line.

    >>> report_line(Path("runs/sft/policy"), {"steps": 84, "first_loss": 2.13, "last_loss": 0.41, "best_dev_f1": 0.6})
    'runs/sft/policy: 84 updates, loss 2.13 -> 0.41, best dev_f1 0.6'
    """
    best = [f"best {name.removeprefix('best_')} {value:.3g}" for name, value in numbers.items() if "best_dev" in name]
    loss = f"loss {numbers['first_loss']:.3g} -> {numbers['last_loss']:.3g}"
    return f"{folder}: " + ", ".join([f"{numbers['steps']:,} updates", loss, *best])


def run_training(
    make_trainer: Callable[[TrainingArguments], BaseTrainer],
    lengths: Sequence[int] | None,
    config: TrainingConfig,
    model: Any,
    context: TrainingContext,
    compute: Compute,
    *,
    dev_eval: Callable[[], DevScore] | None,
    best_by: str = "dev_f1",
    updates: int | None = None,
    updates_per_epoch: int | None = None,
    save_steps: int | None = None,
    arguments: type[TrainingArguments] = TrainingArguments,
    **more: Any,
) -> tuple[MetricsLog, Path | None]:
    """Train from the newest checkpoint to the end. `more` is passed to the arguments.

    `lengths`: of the examples. A trainer that generates its examples has none; its `updates` and `updates_per_epoch`
    are given instead. With `save_steps`, checkpoints are at multiples of it, and dev evaluations at some of these.
    """
    if lengths is not None:
        updates_per_epoch = math.ceil(len(lengths) / config.batch_size)
        updates = math.ceil(config.num_train_epochs * updates_per_epoch)
    else:
        more["max_steps"] = updates
    assert updates is not None
    assert updates_per_epoch is not None
    folder = context.folder
    checkpoints = usable_checkpoints(folder, compute)
    done = max(checkpoints.complete, default=0)
    is_writer = compute.processes.is_main_process
    # Without a checkpoint training starts again, including the evaluation of the initial model.
    metrics = MetricsLog(folder / "curves.jsonl", done or -1, best_by=best_by, is_writer=is_writer)
    if len(metrics.updates) != done:
        raise StepladderError(
            f"{metrics.path} has {len(metrics.updates):,} of the {done:,} updates up to the newest checkpoint, so the "
            f"best is not known. Restore the file, or delete {checkpoints.folder} to train again"
        )
    if 0 < done < updates:
        check_resumable(checkpoints.at(done))
    if done < updates:  # otherwise the trainer would continue an epoch of which only a part was requested
        eval_steps = config.eval_steps or updates_per_epoch
        if save_steps is not None:
            eval_steps = math.ceil(eval_steps / save_steps) * save_steps
        eval_on_start = isinstance(config, PolicyTrainingConfig) and config.eval_on_start
        made = arguments(
            **_arguments(config, compute),
            output_dir=str(checkpoints.folder),
            learning_rate=learning_rate_for(config, model),
            use_cache=model.config.get_text_config().use_cache,  # the trainer writes it into the model's configuration
            warmup_steps=min(math.ceil(updates * config.warmup_ratio), updates - 1),  # the first update has rate 0
            eval_strategy="no" if dev_eval is None else "steps",
            eval_steps=eval_steps,
            eval_on_start=eval_on_start and dev_eval is not None and not done,
            save_steps=save_steps or eval_steps,
            project=context.project,
            run_name=f"{context.project}/{folder.name}",
            **more,
        )
        if made.n_gpu > 1:
            made._n_gpu = 1  # one process, one GPU: the trainer would use nn.DataParallel on all of them
        shown = is_writer and context.watch is None
        with (
            tracking(compute.trackers if is_writer else (), folder, context.project, done) as callbacks,
            LiveConsole(folder.name, updates, done, split=context.dev_split) if shown else nullcontext() as console,
        ):
            trainer = make_trainer(made)
            bad_batch = folder / "bad_batch.json"
            hooks = TrainerHooks(metrics, checkpoints, bad_batch, console, context.watch, dev_eval, context.dev_split)
            trainer.attach(lengths, hooks)
            for callback in callbacks:
                trainer.add_callback(callback)
            trainer.train(resume_from_checkpoint=str(checkpoints.at(done)) if done else None)
    return metrics, best_checkpoint(checkpoints, metrics)


def usable_checkpoints(folder: Path, compute: Compute, *later: Path) -> Checkpoints:
    """The checkpoints in a folder that training can resume from; the others are removed.

    If one of them was damaged, the files `later`, which tell of updates after it, are removed too.
    """
    checkpoints = Checkpoints(folder / "checkpoints")
    with compute.processes.main_first():
        if (damage := checkpoints.remove_unusable()) is not None:
            for file in later:
                file.unlink(missing_ok=True)
            newest = max(checkpoints.complete, default=0)
            how = f"resumes from update {newest:,}" if newest else "starts again"
            print(f"{damage}. It was removed. Training {how}; the result will be the same", file=sys.stderr)
    return checkpoints


def best_checkpoint(checkpoints: Checkpoints, metrics: MetricsLog) -> Path | None:
    """The best by dev score, or the last without dev scores; None if the initial model was the best."""
    best = metrics.best
    step = best["step"] if best is not None else max(checkpoints.complete, default=0)
    return checkpoints.at(step) if step else None


def _arguments(config: TrainingConfig, compute: Compute) -> dict[str, Any]:
    """The settings as the trainer's arguments."""
    parts = config.gradient_accumulation_steps * compute.processes.num_processes
    constant = config.lr_scheduler_type == "constant"
    same = {"gradient_accumulation_steps", "num_train_epochs", "weight_decay", "max_grad_norm", "optim"}
    same |= {"gradient_checkpointing"}
    return {
        **config.model_dump(include=same),
        "per_device_train_batch_size": config.batch_size // parts,
        "lr_scheduler_type": "constant_with_warmup" if constant else config.lr_scheduler_type,
        "bf16": compute.bf16,
        "use_cpu": compute.device.type == "cpu",
        "seed": compute.seed,
        "save_strategy": "steps",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "remove_unused_columns": False,
        "ddp_find_unused_parameters": False,
        "ddp_broadcast_buffers": False,  # in every forward pass, of which GRPO makes more on one process than another
        "report_to": "none",
        "disable_tqdm": True,
        "log_level": "error",
        "log_level_replica": "error",  # of the other processes
    }


def learning_rate_for(config: TrainingConfig, model: nn.Module) -> float:
    """The configured learning rate; auto: the config's `auto_lora_rate`, or one of its `auto_rates` by model size."""
    if config.learning_rate != "auto":
        return config.learning_rate
    if config.lora is not None:
        return config.auto_lora_rate
    parameters = sum(weights.numel() for weights in model.parameters())
    small, medium, large = config.auto_rates
    return small if parameters < 20e6 else medium if parameters < 1e9 else large


def progress(watch: OutcomeCallback | None, label: str, total: int) -> AbstractContextManager[OutcomeCallback]:
    """The caller's callback, or a progress bar."""
    return nullcontext(watch) if watch is not None else Progress(label, total)


def training_numbers(metrics: MetricsLog) -> dict[str, float]:
    """The metrics log of a whole training run in a few numbers."""
    updates = metrics.updates
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
    best = metrics.best
    if best is not None:
        numbers |= {f"best_{metrics.best_by}": best[metrics.best_by], "best_step": best["step"]}
    return numbers
