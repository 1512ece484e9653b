"""transformers' trainer with a metrics log, dev evaluation, crash-safe checkpoints and a stop at non-finite losses.

In: a model, examples, a function that evaluates the model on dev data. Out: checkpoints, the metrics log and, if a loss
or a gradient is not finite, an error with the questions of that batch on disk.

Subclasses define the loss and add further metrics of a batch to `batch_metrics`. `attach` completes a trainer after its
construction, so that it works for subclasses of trl's trainers as well.
"""

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from accelerate.data_loader import prepare_data_loader  # type: ignore[import-untyped]
from accelerate.utils import (  # type: ignore[import-untyped]
    DistributedType,
    FullyShardedDataParallelPlugin,
    gather_object,
)
from peft import PeftModel
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl.models.utils import prepare_deepspeed, prepare_fsdp

from stepladder.core.errors import StepladderError
from stepladder.core.io import launch
from stepladder.core.io.files import atomic_file
from stepladder.core.io.interrupts import check_interrupt
from stepladder.driver import Outcome, OutcomeCallback
from stepladder.engines.paged.fused_norms import fuse_norms
from stepladder.models.length_batches import LengthGroupedSampler
from stepladder.train.launch.batches import IS_FILLER, SharedBatches, WithFiller, collate_with_filler
from stepladder.train.launch.sharding import load_whole_models
from stepladder.train.loop.checkpoints import Checkpoints
from stepladder.train.loop.fused_lora import fuse_lora
from stepladder.train.loop.live_console import LiveConsole
from stepladder.train.loop.metrics_log import MetricsLog
from stepladder.train.loop.microbatches import max_microbatch_tokens
from stepladder.train.loop.policy_weights import skip_lora_input_casts

#: Metrics on dev data, by name.
DevScore = Mapping[str, float]
#: transformers' `num_items_in_batch`: the sum of `loss_weight` over the update. None outside of training.
BatchItems = torch.Tensor | int | None


@dataclass(frozen=True, slots=True)
class TrainerHooks:
    """What a trainer reports to."""

    metrics: MetricsLog
    checkpoints: Checkpoints
    #: Where the questions of a batch with a non-finite loss are written.
    bad_batch: Path
    #: Shows every update, and is called after it; each may be None.
    console: LiveConsole | None
    watch: OutcomeCallback | None
    #: Evaluates the current model; None without dev data.
    dev_eval: Callable[[], DevScore] | None
    #: The split that it evaluates on.
    dev_split: str = "dev"

    def alarm(self, message: str) -> None:
        """Tell the user."""
        if self.console is not None:
            self.console.alarm(message)
        else:
            print(message, file=sys.stderr)


class BaseTrainer(Trainer):
    """A trainer whose batches have `question_ids` and an `attention_mask`."""

    #: The loss is normalized over the whole update, whatever the number of microbatches.
    loss_is_scaled_for_ga = True
    #: Limit of tokens per microbatch, None is unlimited; and whether it was determined.
    max_tokens: int | None = None
    _is_limited = False

    def attach(self, lengths: Sequence[int] | None, hooks: TrainerHooks) -> None:
        """Complete the trainer; `lengths` are those of its examples, if they exist before training."""
        self.remove_callback(PrinterCallback)
        self.add_callback(_InterruptCallback)
        self.hooks = hooks
        assert isinstance(self.model, nn.Module)
        if self.args.bf16:
            skip_lora_input_casts(self.model)
        if self.args.device.type == "cuda" and self.is_unsharded:
            fuse_norms(self.model)
            fuse_lora(self.model)
        if lengths is not None:
            arguments = self.args
            # Ordered by updates, not by microbatches: the number of microbatches does not change what is in an update.
            update = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
            update *= arguments.world_size
            self.order = LengthGroupedSampler(lengths, update, arguments.seed)
            self.add_callback(_EpochCallback(self.order, math.ceil(len(lengths) / update)))
        #: The current update: its question ids, its tokens, its loss weight, its metrics, its start time.
        self.questions: list[str] = []
        self.tokens = self.policy_tokens = 0
        self.divisor = 1.0
        self.batch_metrics: Counter[str] = Counter()
        self.started = 0.0

    def create_accelerator_and_postprocess(self) -> None:
        """accelerate shards weights on GPUs only; on CPUs it is told to. Gradients are added in fp32, and outputs not
        rounded to bf16, also if the sharded weights are gathered in bf16.
        """
        super().create_accelerator_and_postprocess()
        load_whole_models()
        if self.accelerator.distributed_type is DistributedType.MULTI_CPU and launch.sharding() == "FSDP":
            PartialState().distributed_type = self.accelerator.state.distributed_type = DistributedType.FSDP
            self.accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin()
            self.is_fsdp_enabled = True
        if self.is_fsdp_enabled and self.args.bf16:
            policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
            self.accelerator.state.fsdp_plugin.mixed_precision_policy = policy

    @property
    def is_unsharded(self) -> bool:
        """Whether every process has all weights."""
        return self.accelerator.distributed_type not in (DistributedType.FSDP, DistributedType.DEEPSPEED)

    def loss_weight(self, batch: Any) -> float:
        """The weight of a batch in its update: the loss of the update is divided by the sum."""
        raise NotImplementedError

    def count_policy_tokens(self, batch: Any) -> float:
        """How many tokens of a batch are in the loss."""
        raise NotImplementedError

    def summed_loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """The loss of a batch, summed over what `loss_weight` counts."""
        raise NotImplementedError

    def microbatches(self, batch: Any) -> Iterator[Any]:
        """The batch in parts that fit into memory; their losses add up to that of the batch."""
        yield batch

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: BatchItems = None
    ) -> torch.Tensor:
        """This batch's share of the update's loss: its sum, divided by the weight of the whole update."""
        assert not return_outputs
        assert num_items_in_batch is not None
        # Gradients are averaged over processes, but every process has only its share: hence the factor.
        factor = 0 if inputs[IS_FILLER] else self.accelerator.num_processes
        before = self.batch_metrics.copy()
        loss = self.accumulate(
            inputs, lambda microbatch: self.summed_loss(model, microbatch) / num_items_in_batch * factor
        )
        if inputs[IS_FILLER]:  # the same names as in the other processes, which gather them together
            self.batch_metrics = Counter({name: before[name] for name in self.batch_metrics})
        return loss

    def accumulate(self, batch: Any, loss_of: Callable[[Any], torch.Tensor]) -> torch.Tensor:
        """The loss of a batch. All microbatches but the last have been through the backward pass."""
        if not self._is_limited:
            # Determined at the first update, when the engine has allocated its memory.
            assert isinstance(self.model, nn.Module)
            limit = max_microbatch_tokens(
                self.model, self.args.device, gradient_checkpointing=self.args.gradient_checkpointing
            )
            if limit is not None:
                limit = int(self.gathered({"limit": limit})["limit"].min())
            self.max_tokens, self._is_limited = limit, True
        parts = list(self.microbatches(batch)) if torch.is_grad_enabled() else [batch]
        if self.max_tokens is not None:
            # Gradients are exchanged in every backward pass, and sharded weights in every forward pass as well: all
            # processes need the same number of them.
            count = int(self.gathered({"parts": len(parts)})["parts"].max())
            if missing := count - len(parts):
                parts = [self.without_loss(parts[0])] * missing + parts
        before = [self._backward(loss_of(part)) for part in parts[:-1]]
        return loss_of(parts[-1]) + sum(before)

    def without_loss(self, microbatch: Any) -> Any:
        """A microbatch that counts nothing, of the same shape; for trainers that have several."""
        raise NotImplementedError

    def _backward(self, loss: torch.Tensor) -> torch.Tensor:
        """As the trainer does with the returned loss, except that DeepSpeed does not step yet."""
        deepspeed = self.accelerator.distributed_type is DistributedType.DEEPSPEED
        state, options = self.accelerator.gradient_state, {"scale_wrt_gas": False} if deepspeed else {}
        is_last = state.sync_gradients
        state._set_sync_gradients(is_last and not deepspeed)
        self.accelerator.backward(loss, **options)
        state._set_sync_gradients(is_last)
        return loss.detach()

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Batches of similar length, in an order that depends on the seed and the epoch."""
        arguments, own = self.args, cast(Any, self.data_collator)
        collate = collate_with_filler(own)
        batches = SharedBatches(
            self.order, arguments.per_device_train_batch_size, arguments.process_index, arguments.world_size
        )
        loader = DataLoader(WithFiller(self.train_dataset), batch_sampler=batches, collate_fn=collate)
        prepared: DataLoader[Any] = prepare_data_loader(  # as the accelerator does, which would share it once more
            loader, device=self.accelerator.device, num_processes=1, process_index=0, put_on_device=True
        )
        return prepared

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], torch.Tensor]:
        """The batches of one update, and their total loss weight on all devices."""
        self.start_update()
        batches = [batch for _, batch in zip(range(num_batches), epoch_iterator)]
        own = [batch for batch in batches if not batch[IS_FILLER]]
        self.questions = [question for batch in own for question in batch["question_ids"]]
        counts = torch.tensor(
            [
                [0.0, 0.0, 0.0],
                *(
                    [self.loss_weight(batch), float(batch["attention_mask"].sum()), self.count_policy_tokens(batch)]
                    for batch in own
                ),
            ],
            dtype=torch.float64,
            device=device,
        ).sum(dim=0, keepdim=True)
        self.divisor, tokens, policy_tokens = self.accelerator.gather(counts).sum(dim=0).tolist()
        self.tokens, self.policy_tokens = int(tokens), int(policy_tokens)
        return batches, torch.tensor(self.divisor, dtype=torch.float32, device=device)

    def start_update(self) -> None:
        """Reset what is measured per update."""
        self.started = time.monotonic()
        self.batch_metrics.clear()

    def update_metrics(self, logs: Mapping[str, float]) -> dict[str, float]:  # noqa: ARG002
        """Further metrics of an update: those of its batches, divided by their total weight."""
        return {name: float(values.sum()) / self.divisor for name, values in self.gathered(self.batch_metrics).items()}

    def gathered(self, metrics: Mapping[str, float]) -> dict[str, torch.Tensor]:
        """The metrics of all processes, by name."""
        names = sorted(metrics)
        values = torch.tensor([[metrics[name] for name in names]], dtype=torch.float64, device=self.args.device)
        return dict(zip(names, self.accelerator.gather(values).unbind(dim=1))) if names else {}

    def reported_metrics(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """What trackers and the console get of the `update_metrics`, besides the trainer's own logs."""
        return metrics

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """One row per update. The trainer logs before it evaluates or saves, so a broken model is never saved."""
        if "loss" not in logs:  # the trainer's own summary at the end
            return
        step, loss, gradient = self.state.global_step, logs["loss"], logs.get("grad_norm", 0.0)
        if not (math.isfinite(loss) and math.isfinite(gradient)):
            self._stop_at_bad_batch(step, loss, gradient)
        metrics = self.update_metrics(logs)
        # Of the slowest process: all must agree on when the time is up.
        seconds = round(float(self.gathered({"seconds": time.monotonic() - self.started})["seconds"].max()), 4)
        counts = {"tokens": self.tokens, "policy_tokens": self.policy_tokens}
        self.hooks.metrics.add(
            step=step,
            epoch=round(self.state.epoch or 0.0, 4),
            loss=loss,
            **metrics,
            lr=logs["learning_rate"],
            grad_norm=gradient,
            **counts,
            seconds=seconds,
        )
        speed = {"seconds": seconds, "tokens_per_second": self.tokens / max(seconds, 1e-9)}
        measured = {name: value for name, value in logs.items() if value is not None}  # trl logs None for NaN
        self._report({**measured, **self.reported_metrics(metrics), **counts, **speed}, start_time)
        if self.hooks.watch is not None:
            self.hooks.watch(Outcome(step - 1, value=loss))

    def _report(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """To the trackers, by transformers' own `log`, and to the console."""
        Trainer.log(self, logs, start_time)
        if self.hooks.console is not None:
            self.hooks.console.show(self.state.global_step, logs)

    def _stop_at_bad_batch(self, step: int, loss: float, gradient: float) -> None:
        questions = gather_object(self.questions)
        record = {"step": step, "loss": str(loss), "grad_norm": str(gradient), "questions": questions}
        bad_batch = self.hooks.bad_batch
        if self.is_world_process_zero():
            with atomic_file(bad_batch) as file:
                json.dump(record, file, indent=2)
        self.hooks.metrics.save()
        raise StepladderError(
            f"training stopped at update {step}: the loss is {loss} and the gradient norm {gradient}. The questions of "
            f"that batch are in {bad_batch}; the last checkpoint is kept. Try a lower learning_rate or precision fp32"
        )

    def _save_checkpoint(self, *arguments: Any) -> None:
        """Mark a written checkpoint as complete and remove older ones. The metrics log first: it has all its rows."""
        with self.hooks.checkpoints.saving(self.state.global_step):
            super()._save_checkpoint(*arguments)
        self.accelerator.wait_for_everyone()  # until all have written their files
        if self.is_world_process_zero():
            self.hooks.metrics.save()
            best = self.hooks.metrics.best
            self.hooks.checkpoints.keep(self.state.global_step, also=[best["step"]] if best is not None else [])

    def dev_metrics(self) -> DevScore:
        """Metrics on dev data."""
        assert self.hooks.dev_eval is not None
        return self.hooks.dev_eval()

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Evaluate the current model on dev data."""
        started = time.monotonic()
        found = self.dev_metrics()
        seconds = round(time.monotonic() - started, 4)
        scores = {f"{self.hooks.dev_split}_{name}": value for name, value in {**found, "seconds": seconds}.items()}
        self.hooks.metrics.add(step=self.state.global_step, **scores)
        named = {f"eval_{name}": value for name, value in found.items()}
        self._report({**named, "eval_runtime": seconds})
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, named)
        return named


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Within, a model is in its evaluation mode."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


class TRLOverrides:
    """What our subclasses of trl's trainers share. It comes before trl's class in their bases."""

    #: Our losses are normalized over the whole update.
    loss_is_scaled_for_ga = True
    model: Any
    ref_model: Any
    accelerator: Any

    def _send_telemetry(self) -> None:
        """Off: training makes no network requests."""

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Off: the run folder documents the training."""

    def prepared(self, reference: nn.Module) -> Any:
        """A reference model, sharded like the model in training."""
        if self.accelerator.distributed_type is DistributedType.FSDP:
            return prepare_fsdp(reference, self.accelerator)
        if self.accelerator.distributed_type is DistributedType.DEEPSPEED:
            return prepare_deepspeed(reference, self.accelerator)
        return self.accelerator.prepare_model(reference, evaluation_mode=True)

    @contextmanager
    def local_metrics(self) -> Iterator[None]:
        """Within, trl's metrics are of this process. trl would gather rows as if all processes had as many."""
        accelerator = self.accelerator
        accelerator.gather = accelerator.gather_for_metrics = lambda rows, *_, **__: rows
        try:
            yield
        finally:
            del accelerator.gather, accelerator.gather_for_metrics  # the methods of its class are back

    @contextmanager
    def reference(self) -> Iterator[Any]:
        """The reference: a frozen copy, or the model without its adapter; None without either."""
        if self.ref_model is None and isinstance(self.model, PeftModel):
            with self.model.disable_adapter():
                yield self.model
        else:
            yield self.ref_model


class _InterruptCallback(TrainerCallback):
    """Ends training after an interrupt that a library has dropped."""

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        check_interrupt()


class _EpochCallback(TrainerCallback):
    """Gives every epoch its own order, also one that is resumed in the middle."""

    def __init__(self, order: LengthGroupedSampler, updates_per_epoch: int) -> None:
        self.order = order
        self.updates_per_epoch = updates_per_epoch

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:  # noqa: ARG002
        self.order.epoch = state.global_step // self.updates_per_epoch
