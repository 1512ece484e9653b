"""transformers' trainer, watched: curves, dev scores, checkpoints that hold, the bad batch. Losses are subclasses.

In: a model, examples, a function that scores the model on what was held out. Out: checkpoints (complete or removed),
curves and, when a loss or a gradient is not a number, an end with the questions of that batch on disk.

A subclass has the loss, and puts what else it measured of a batch into `noted`. `attach` completes a trainer after
its construction, so that one of trl's can be watched in the same way.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType  # type: ignore[import-untyped]
from torch import nn
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.driver import Outcome, OutcomeCallback
from stepladder.engines.paged.fused_norms import fuse_norms
from stepladder.models.length_batches import LengthGroupedSampler
from stepladder.train.loop.checkpoints import Checkpoints
from stepladder.train.loop.fused_lora import fuse_lora
from stepladder.train.loop.metrics_log import MetricsLog
from stepladder.train.loop.microbatches import max_microbatch_tokens
from stepladder.train.loop.policy import skip_lora_input_casts

#: Where a layer's weights are all there whenever it is asked for.
_WHOLE = (DistributedType.NO, DistributedType.MULTI_GPU)
#: What was found on held-out data, by name.
DevScore = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TrainerHooks:
    """What a training is watched with."""

    curves: MetricsLog
    checkpoints: Checkpoints
    #: Where the questions of a batch that breaks are written.
    bad_batch: Path
    #: Is told of every update.
    watch: OutcomeCallback
    #: Scores the model as it is; None where nothing was held out.
    dev_score: Callable[[], DevScore] | None


class BaseTrainer(Trainer):
    """A trainer whose batches have `question_ids`, and tokens by `attention_mask`."""

    #: The loss is normalised over the whole update, in however many parts it is computed.
    loss_is_scaled_for_ga = True
    #: Tokens that are computed at once with gradients, None is any number; and whether that was found out.
    at_once: int | None = None
    _measured = False

    def attach(self, lengths: Sequence[int] | None, watching: TrainerHooks) -> None:
        """Complete the trainer; `lengths` are those of its examples, if it has any before it begins."""
        self.remove_callback(PrinterCallback)
        self.watching = watching
        assert isinstance(self.model, nn.Module)
        if self.args.bf16:
            skip_lora_input_casts(self.model)
        if self.args.device.type == "cuda" and self.accelerator.distributed_type in _WHOLE:
            fuse_norms(self.model)
            fuse_lora(self.model)
        self.add_callback(_Keeper(watching))
        if lengths is not None:
            arguments = self.args
            # Ordered by updates, not by their parts: in how many parts an update is computed does not change what is
            # in it.
            update = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
            update *= arguments.world_size
            self.order = LengthGroupedSampler(lengths, update, arguments.seed)
            self.add_callback(_Orderer(self.order, math.ceil(len(lengths) / update)))
        #: The update under way: its question ids, its tokens, what it is divided by, what was noted, when it began.
        self.questions: list[str] = []
        self.tokens = self.policy_tokens = 0
        self.divisor = 1.0
        self.noted: Counter[str] = Counter()
        self.began = 0.0

    def weight_of(self, batch: Any) -> float:
        """What a batch counts in its update: the loss of the update is divided by the sum."""
        raise NotImplementedError

    def policy_tokens_of(self, batch: Any) -> float:
        """How many tokens of a batch the policy wrote, and are learnt from."""
        raise NotImplementedError

    def summed_loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """The loss of a batch, summed over what `weight_of` counts."""
        raise NotImplementedError

    def parts_of(self, batch: Any) -> Iterator[Any]:
        """A batch in parts, whose losses add up to its own, each with no more than there is memory for."""
        yield batch

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """This batch's share of the update's loss: its sum over the weight of the whole update."""
        assert not return_outputs
        return self.in_parts(inputs, lambda part: self._share(model, part, num_items_in_batch))

    def _share(self, model: nn.Module, batch: Any, of: torch.Tensor | int | None) -> torch.Tensor:
        assert of is not None
        # Gradients are averaged over processes, while each of them has only its share: hence times their number.
        loss: torch.Tensor = self.summed_loss(model, batch) / of * self.accelerator.num_processes
        return loss

    def in_parts(self, batch: Any, loss_of: Callable[[Any], torch.Tensor]) -> torch.Tensor:
        """The loss of a batch; the gradients of all parts but the last are already there, and their memory is free."""
        if not self._measured:
            # Now, when what plays has taken its memory. Processes must go through the same parts together, and what is
            # free differs from one to the other.
            assert isinstance(self.model, nn.Module)
            alone = self.accelerator.num_processes == 1
            self.at_once, self._measured = max_microbatch_tokens(self.model, self.args.device) if alone else None, True
        parts = list(self.parts_of(batch)) if torch.is_grad_enabled() else [batch]
        before = [self._learnt(loss_of(part)) for part in parts[:-1]]
        return loss_of(parts[-1]) + sum(before)

    def _learnt(self, loss: torch.Tensor) -> torch.Tensor:
        self.accelerator.backward(loss)  # as the trainer does with what it is given
        return loss.detach()

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Batches of like length, in the order of the seed and the epoch."""
        size = self.args.per_device_train_batch_size
        examples: Any = self.train_dataset
        prepared: DataLoader[Any] = self.accelerator.prepare(
            DataLoader(examples, size, sampler=self.order, collate_fn=self.data_collator)
        )
        return prepared

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], torch.Tensor]:
        """The batches of one update, and what they weigh together, on all devices."""
        self._begin()
        batches = [batch for _, batch in zip(range(num_batches), epoch_iterator)]
        self.questions = [question for batch in batches for question in batch["question_ids"]]
        counts = torch.tensor(
            [
                [self.weight_of(batch), float(batch["attention_mask"].sum()), self.policy_tokens_of(batch)]
                for batch in batches
            ],
            dtype=torch.float64,
            device=device,
        ).sum(dim=0, keepdim=True)
        self.divisor, tokens, policy_tokens = self.accelerator.gather(counts).sum(dim=0).tolist()
        self.tokens, self.policy_tokens = int(tokens), int(policy_tokens)
        return batches, torch.tensor(self.divisor, dtype=torch.float32, device=device)

    def _begin(self) -> None:
        self.began = time.monotonic()
        self.noted.clear()

    def measures(self, logs: Mapping[str, float]) -> dict[str, float]:  # noqa: ARG002
        """What else is known of an update: what was noted of its batches, by the weight of them all."""
        if not self.noted:
            return {}
        names = sorted(self.noted)
        sums = torch.tensor([[self.noted[name] for name in names]], dtype=torch.float64, device=self.args.device)
        together = self.accelerator.gather(sums).sum(dim=0).tolist()
        return {name: value / self.divisor for name, value in zip(names, together)}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:  # noqa: ARG002
        """One row an update. It comes before the update is evaluated or saved, so what is broken is never saved."""
        if "loss" not in logs:  # the trainer's own summary at the end
            return
        step, loss, gradient = self.state.global_step, logs["loss"], logs.get("grad_norm", 0.0)
        if not (math.isfinite(loss) and math.isfinite(gradient)):
            self._stop_at_bad_batch(step, loss, gradient)
        self.watching.curves.add(
            step=step,
            epoch=round(self.state.epoch or 0.0, 4),
            loss=loss,
            **self.measures(logs),
            lr=logs["learning_rate"],
            grad_norm=gradient,
            tokens=self.tokens,
            policy_tokens=self.policy_tokens,
            seconds=round(time.monotonic() - self.began, 4),
        )
        self.watching.watch(Outcome(step - 1, value=loss))

    def _stop_at_bad_batch(self, step: int, loss: float, gradient: float) -> None:
        found = {"step": step, "loss": str(loss), "grad_norm": str(gradient), "questions": self.questions}
        bad_batch = self.watching.bad_batch
        with atomic_file(bad_batch) as file:
            json.dump(found, file, indent=2)
        self.watching.curves.save()
        raise StepladderError(
            f"training stopped at update {step}: the loss is {loss} and the gradient's norm {gradient}. The questions "
            f"of that batch are in {bad_batch}; the checkpoint before it is kept. Try a lower lr or precision fp32"
        )

    def dev_numbers(self) -> DevScore:
        """What is found on held-out data."""
        assert self.watching.dev_score is not None
        return self.watching.dev_score()

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Score the model as it is on what was held out."""
        began = time.monotonic()
        found = self.dev_numbers()
        seconds = round(time.monotonic() - began, 4)
        scores = {f"dev_{name}": value for name, value in found.items()}
        self.watching.curves.add(step=self.state.global_step, **scores, dev_seconds=seconds)
        named = {f"eval_{name}": value for name, value in found.items()}
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, named)
        return named


class _Orderer(TrainerCallback):
    """Sees to the order of an epoch."""

    def __init__(self, order: LengthGroupedSampler, updates_an_epoch: int) -> None:
        self.order = order
        self.updates_an_epoch = updates_an_epoch

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:  # noqa: ARG002
        """Every epoch has its own order, also one that is resumed in its middle."""
        self.order.epoch = state.global_step // self.updates_an_epoch


class _Keeper(TrainerCallback):
    """Sees to what is left of a checkpoint after the trainer has written it."""

    def __init__(self, watching: TrainerHooks) -> None:
        self.watching = watching

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:  # noqa: ARG002
        """MetricsLog first: a complete checkpoint has all its rows."""
        if state.is_world_process_zero:
            self.watching.curves.save()
            best = self.watching.curves.best
            self.watching.checkpoints.keep(state.global_step, also=[best["step"]] if best is not None else [])
