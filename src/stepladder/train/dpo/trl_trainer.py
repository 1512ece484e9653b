"""trl's DPOTrainer on pairs of steps: stored token ids are used unchanged, and only the step is in the loss.

In: pairs as rows of ids. Out: what `BaseTrainer` writes, with accuracy, reward margin and the KL divergence from the
reference. trl computes the losses and keeps the reference model. Overridden: tokenization, truncation on the right,
model cards and telemetry.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import torch
import trl
from torch import nn
from torch.nn.functional import pad

from stepladder.models.length_batches import context_window
from stepladder.train.launch.batches import IS_FILLER
from stepladder.train.launch.sharding import ended_forward
from stepladder.train.loop.base_trainer import BaseTrainer, BatchItems, DevScore, TRLOverrides, eval_mode
from stepladder.train.transcripts.fine_tune import collate
from stepladder.train.transcripts.selected_logits import selected_logits
from stepladder.train.transcripts.tokenized import Example

#: Metrics: trl's name -> ours.
_METRICS = {
    "rewards/accuracies": "accuracy",
    "rewards/margins": "reward_gap",
    "rewards/chosen": "reward_chosen",
    "rewards/rejected": "reward_rejected",
    "logps/chosen": "logp_chosen",
    "logps/rejected": "logp_rejected",
}
#: Demonstrations compared with the reference at once.
_KL_BATCH = 8


class PairRow(TypedDict):
    """One pair: the state and the two steps, as token ids."""

    question_id: str
    prompt_ids: list[int]
    chosen_ids: list[int]
    rejected_ids: list[int]


def collate_pairs(rows: Sequence[PairRow], max_length: int | None = None) -> dict[str, Any]:
    """Rows in trl's format: first every state with its chosen step, then every state with its rejected step.

    `completion_mask` is 1 on the step only: prompts, retrieved passages and earlier steps are not in the loss.
    """
    sides = [(row["prompt_ids"], row[side]) for side in ("chosen_ids", "rejected_ids") for row in rows]
    examples = [Example("", (*prompt, *step), (0.0,) * len(prompt) + (1.0,) * len(step)) for prompt, step in sides]
    batch = collate(examples, max_length)
    return {
        "input_ids": batch["input_ids"],
        "attention_mask": batch["attention_mask"],
        "completion_mask": batch["weights"].long(),
        "question_ids": [row["question_id"] for row in rows],
    }


class PairTrainer(TRLOverrides, trl.DPOTrainer, BaseTrainer):  # type: ignore[misc,name-defined]
    """Step-level DPO."""

    data_collator: Any
    #: Pairs to evaluate on; set after construction.
    held_out: Sequence[PairRow] = ()

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset  # already tokenized

    def loss_weight(self, batch: Any) -> float:
        """Pairs."""
        return len(batch["question_ids"])

    def count_policy_tokens(self, batch: Any) -> float:
        """The tokens of the steps."""
        return float(batch["completion_mask"].sum())

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: BatchItems = None
    ) -> torch.Tensor:
        """trl's loss, a mean over pairs; in training this batch's share of the mean over the update."""
        assert not return_outputs
        ours = ("question_ids", IS_FILLER)
        known = {name: part for name, part in inputs.items() if name not in ours}  # the rest goes to the model
        with self.local_metrics(), ended_forward(self.model):
            loss: torch.Tensor = super().compute_loss(model, known)
        if num_items_in_batch is None:
            return loss
        pairs = 0 if inputs[IS_FILLER] else self.loss_weight(inputs)
        self.batch_metrics.update(
            {ours: self._metrics["train"][theirs][-1] * pairs for theirs, ours in _METRICS.items()}
        )
        # Gradients are averaged over processes, but every process has only its share: hence the factor.
        share: torch.Tensor = loss * pairs / num_items_in_batch * self.accelerator.num_processes
        return share

    def reported_metrics(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Under trl's names, which it logs for this process alone."""
        return {theirs: metrics[ours] for theirs, ours in _METRICS.items()}

    def dev_metrics(self) -> DevScore:
        """Metrics of dev episodes and of held-out pairs."""
        return {**super().dev_metrics(), **self._pair_metrics()}

    def _pair_metrics(self) -> dict[str, float]:
        sums: dict[str, float] = {}
        with eval_mode(self.model):
            size = self.args.per_device_train_batch_size
            for start in range(0, len(self.held_out), size):
                rows = self.held_out[start : start + size]
                with torch.no_grad():
                    loss = float(self.compute_loss(self.model, self._prepare_inputs(self.data_collator(rows))))
                found = {"loss": loss} | {ours: self._metrics["eval"][name][-1] for name, ours in _METRICS.items()}
                for name, value in found.items():
                    sums[name] = sums.get(name, 0.0) + value * len(rows)
            self._metrics["eval"].clear()
        return {name: value / len(self.held_out) for name, value in sums.items()}

    def divergence(self, examples: Sequence[Example]) -> float:
        """KL(policy || reference) per policy token, on transcripts of the policy."""
        total, count = 0.0, 0
        with eval_mode(self.model):
            for start in range(0, len(examples), _KL_BATCH):
                kl, tokens = self._divergence(examples[start : start + _KL_BATCH])
                total, count = total + kl, count + tokens
        return total / max(count, 1)

    def _divergence(self, examples: Sequence[Example]) -> tuple[float, int]:
        batch = collate(examples, context_window(self.model))
        ids_BT = batch["input_ids"].to(self.args.device)
        predicted_BT = pad(batch["weights"][:, 1:] > 0, (0, 1)).to(self.args.device)
        with torch.no_grad(), self.accelerator.autocast():
            ours_NV = selected_logits(self.model, ids_BT, predicted_BT).float().log_softmax(-1)
            with self.reference() as reference:
                theirs_NV = selected_logits(reference, ids_BT, predicted_BT).float().log_softmax(-1)
        kl_N = (ours_NV.exp() * (ours_NV - theirs_NV)).sum(-1)
        return float(kl_N.sum()), len(kl_N)
