"""transformers' trainer, where training on transcripts differs: the loss, the batches, the dev score, the bad batch.

In: a model, examples, a function that scores the model on dev questions. Out: checkpoints (complete or removed), curves
and, when a loss or a gradient is not a number, an end with the questions of that batch on disk.

It is `transformers.Trainer` and not trl's SFTTrainer: that one takes a `datasets.Dataset` of labels alone, puts its own
forward pass and its own loss into the model, and has no place for token weights; nothing of what it adds would be left.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from stepladder.driver import Outcome, Watcher
from stepladder.errors import StepladderError
from stepladder.files import atomic_file
from stepladder.train.batches import Batch, SimilarLengths, collate
from stepladder.train.checkpoints import Checkpoints
from stepladder.train.curves import Curves
from stepladder.train.examples import Example
from stepladder.train.loss import weight_of, weighted_nll

#: Mean F1, mean EM, and how many episodes failed.
DevScore = tuple[float, float, int]


class TranscriptTrainer(Trainer):
    """Trains a policy on examples. `dev_score`, where there is one, plays the model in training on dev questions."""

    #: The loss below is normalised over the whole update already.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: nn.Module,
        arguments: TrainingArguments,
        examples: Sequence[Example],
        *,
        dev_score: Callable[[], DevScore] | None,
        curves: Curves,
        checkpoints: Checkpoints,
        bad_batch: Path,
        watch: Watcher,
    ) -> None:
        # A trainer that evaluates wants an eval_dataset; ours is inside dev_score.
        super().__init__(model, arguments, train_dataset=list(examples), eval_dataset=[None] if dev_score else None)
        self.remove_callback(PrinterCallback)
        # Ordered by updates, not by their parts: in how many parts an update is computed does not change what is in it.
        update = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
        self.order = SimilarLengths([len(example.tokens) for example in examples], update, arguments.seed)
        self.dev_score = dev_score
        self.curves = curves
        self.bad_batch = bad_batch
        self.watch = watch
        self.add_callback(_Keeper(self.order, curves, checkpoints, math.ceil(len(examples) / update)))
        #: The update under way: its question ids, its tokens, and when it began.
        self.questions: list[str] = []
        self.tokens = self.policy_tokens = 0
        self.began = 0.0

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Batches of like length, in the order of the seed and the epoch."""
        size = self.args.per_device_train_batch_size
        examples: Any = self.train_dataset
        prepared: DataLoader[Any] = self.accelerator.prepare(
            DataLoader(examples, size, sampler=self.order, collate_fn=collate)
        )
        return prepared

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], torch.Tensor]:
        """The batches of one update, and what their tokens weigh together, on all devices."""
        self.began = time.monotonic()
        batches = [batch for _, batch in zip(range(num_batches), epoch_iterator)]
        self.questions = [question for batch in batches for question in batch["question_ids"]]
        counts = torch.tensor(
            [
                [
                    float(weight_of(batch)),
                    float(batch["attention_mask"].sum()),
                    float((batch["weights"] > 0).sum()),
                ]
                for batch in batches
            ],
            dtype=torch.float64,
            device=device,
        ).sum(dim=0, keepdim=True)
        weight, tokens, policy_tokens = self.accelerator.gather(counts).sum(dim=0).tolist()
        self.tokens, self.policy_tokens = int(tokens), int(policy_tokens)
        return batches, torch.tensor(weight, dtype=torch.float32, device=device)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """This batch's share of the update's loss: its weighted sum over the weight of the whole update."""
        assert not return_outputs
        assert num_items_in_batch is not None
        # Gradients are averaged over processes, while each of them has only its share: hence times their number.
        loss: torch.Tensor = weighted_nll(model, inputs) / num_items_in_batch * self.accelerator.num_processes
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:  # noqa: ARG002
        """One row an update. It comes before the update is evaluated or saved, so what is broken is never saved."""
        if "loss" not in logs:  # the trainer's own summary at the end
            return
        step, loss, gradient = self.state.global_step, logs["loss"], logs.get("grad_norm", 0.0)
        if not (math.isfinite(loss) and math.isfinite(gradient)):
            self._stop_at_bad_batch(step, loss, gradient)
        self.curves.add(
            step=step,
            epoch=round(self.state.epoch or 0.0, 4),
            loss=loss,
            lr=logs["learning_rate"],
            grad_norm=gradient,
            tokens=self.tokens,
            policy_tokens=self.policy_tokens,
            seconds=round(time.monotonic() - self.began, 4),
        )
        self.watch(Outcome(step - 1, value=loss))

    def _stop_at_bad_batch(self, step: int, loss: float, gradient: float) -> None:
        found = {"step": step, "loss": str(loss), "grad_norm": str(gradient), "questions": self.questions}
        with atomic_file(self.bad_batch) as file:
            json.dump(found, file, indent=2)
        self.curves.save()
        raise StepladderError(
            f"training stopped at update {step}: the loss is {loss} and the gradient's norm {gradient}. The questions "
            f"of that batch are in {self.bad_batch}; the checkpoint before it is kept. Try a lower lr or precision fp32"
        )

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Play the model as it is on the dev questions."""
        assert self.dev_score is not None
        began = time.monotonic()
        f1, em, failed = self.dev_score()
        seconds = round(time.monotonic() - began, 4)
        self.curves.add(step=self.state.global_step, dev_f1=f1, dev_em=em, dev_failed=failed, dev_seconds=seconds)
        scores = {"eval_f1": f1, "eval_em": em}
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, scores)
        return scores


class _Keeper(TrainerCallback):
    """Sees to the order of an epoch and to what is left of a checkpoint after the trainer has written it."""

    def __init__(self, order: SimilarLengths, curves: Curves, checkpoints: Checkpoints, updates_an_epoch: int) -> None:
        self.order = order
        self.curves = curves
        self.checkpoints = checkpoints
        self.updates_an_epoch = updates_an_epoch

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:  # noqa: ARG002
        """Every epoch has its own order, also one that is resumed in its middle."""
        self.order.epoch = state.global_step // self.updates_an_epoch

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:  # noqa: ARG002
        """Curves first: a complete checkpoint has all its rows."""
        if state.is_world_process_zero:
            self.curves.save()
            best = self.curves.best
            self.checkpoints.keep(state.global_step, also=[best["step"]] if best is not None else [])
