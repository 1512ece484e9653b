"""trl's DPOTrainer on pairs of steps: token ids go in as they were stored, and the loss is on the step alone.

In: pairs as rows of ids. Out: what `BaseTrainer` writes, with accuracy, reward margin and the divergence from where
the policy began. trl has the losses and the reference; here is what it would do otherwise: encode text, cut long
states at the right, write model cards, and report to its makers that it was used.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypedDict

import torch
from torch import nn
from torch.nn.functional import pad
from trl import DPOTrainer  # type: ignore[attr-defined]

from stepladder.models.length_batches import context_window, padded_width
from stepladder.train.loop.selected_logits import selected_logits
from stepladder.train.loop.base_trainer import DevScore, BaseTrainer
from stepladder.train.transcripts.tokenized import Example

#: MetricsLog by the names that trl gives them.
_MEASURES = {
    "rewards/accuracies": "accuracy",
    "rewards/margins": "reward_gap",
    "rewards/chosen": "reward_chosen",
    "rewards/rejected": "reward_rejected",
    "logps/chosen": "logp_chosen",
    "logps/rejected": "logp_rejected",
}
#: Demonstrations compared with the reference at once.
_COMPARED_AT_ONCE = 8


class PairRow(TypedDict):
    """One pair: the state, and the two steps, as token ids."""

    question_id: str
    prompt_ids: list[int]
    chosen_ids: list[int]
    rejected_ids: list[int]


def collate_pairs(rows: Sequence[PairRow], window: int | None = None) -> dict[str, Any]:
    """Rows as trl wants them: first every state with its chosen step, then every state with its rejected one.

    `completion_mask` is 1 on the step alone: neither prompt nor retrieved passages nor earlier steps are in the loss.
    """
    sides = [(row["prompt_ids"], row[side]) for side in ("chosen_ids", "rejected_ids") for row in rows]
    width = padded_width((len(prompt) + len(step) for prompt, step in sides), window)
    ids_BT = torch.zeros(len(sides), width, dtype=torch.long)
    attention_BT = torch.zeros(len(sides), width, dtype=torch.long)
    completion_BT = torch.zeros(len(sides), width, dtype=torch.long)
    for number, (prompt, step) in enumerate(sides):
        length = len(prompt) + len(step)
        ids_BT[number, :length] = torch.tensor([*prompt, *step])
        attention_BT[number, :length] = 1
        completion_BT[number, len(prompt) : length] = 1
    return {
        "input_ids": ids_BT,
        "attention_mask": attention_BT,
        "completion_mask": completion_BT,
        "question_ids": [row["question_id"] for row in rows],
    }


class PairTrainer(DPOTrainer, BaseTrainer):
    """DPO, watched."""

    #: The loss below is normalised over the whole update already.
    loss_is_scaled_for_ga = True  # type: ignore[assignment] # trl says None, transformers a bool

    model: Any
    data_collator: Any
    #: Pairs that are not learnt from; set by whoever makes a trainer.
    held_out: Sequence[PairRow] = ()

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset  # token ids already

    def _send_telemetry(self) -> None:
        """Training calls nobody."""

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """The run folder says what was done, and how."""

    def weight_of(self, batch: Any) -> float:
        """Pairs."""
        return len(batch["question_ids"])

    def policy_tokens_of(self, batch: Any) -> float:
        """The tokens of the steps."""
        return float(batch["completion_mask"].sum())

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """trl's loss, a mean over pairs; in training, this batch's share of the mean over the update."""
        assert not return_outputs
        known = {name: part for name, part in inputs.items() if name != "question_ids"}  # the model gets what is there
        loss: torch.Tensor = super().compute_loss(model, known)  # type: ignore[no-untyped-call]
        if num_items_in_batch is None:
            return loss
        pairs = self.weight_of(inputs)
        self.noted.update({ours: self._metrics["train"][theirs][-1] * pairs for theirs, ours in _MEASURES.items()})
        # Gradients are averaged over processes, while each of them has only its share: hence times their number.
        share: torch.Tensor = loss * pairs / num_items_in_batch * self.accelerator.num_processes
        return share

    def dev_numbers(self) -> DevScore:
        """Dev questions, played, and how far the policy has come on held-out pairs."""
        return {**super().dev_numbers(), **self._on_held_out()}

    def _on_held_out(self) -> dict[str, float]:
        sums: dict[str, float] = {}
        with self._as_it_is():
            size = self.args.per_device_train_batch_size
            for start in range(0, len(self.held_out), size):
                rows = self.held_out[start : start + size]
                with torch.no_grad():
                    loss = float(self.compute_loss(self.model, self._prepare_inputs(self.data_collator(rows))))
                seen = {"loss": loss} | {ours: self._metrics["eval"][name][-1] for name, ours in _MEASURES.items()}
                for name, value in seen.items():
                    sums[name] = sums.get(name, 0.0) + value * len(rows)
            self._metrics["eval"].clear()
        return {name: value / len(self.held_out) for name, value in sums.items()}

    def divergence(self, examples: Sequence[Example]) -> float:
        """KL(policy || reference) a policy token, on transcripts that the policy wrote."""
        total, count = 0.0, 0
        with self._as_it_is():
            for start in range(0, len(examples), _COMPARED_AT_ONCE):
                kl, tokens = self._divergence(examples[start : start + _COMPARED_AT_ONCE])
                total, count = total + kl, count + tokens
        return total / max(count, 1)

    def _divergence(self, examples: Sequence[Example]) -> tuple[float, int]:
        width = padded_width((len(example.tokens) for example in examples), context_window(self.model))
        ids_BT = torch.zeros(len(examples), width, dtype=torch.long)
        written_BT = torch.zeros(len(examples), width, dtype=torch.bool)
        for row, example in enumerate(examples):
            ids_BT[row, : len(example.tokens)] = torch.tensor(example.tokens)
            written_BT[row, : len(example.tokens)] = torch.tensor(example.policy_mask)
        ids_BT, predicted_BT = ids_BT.to(self.args.device), written_BT[:, 1:].to(self.args.device)

        def logprobs(model: Any) -> torch.Tensor:
            return selected_logits(model, ids_BT, pad(predicted_BT, (0, 1))).float().log_softmax(-1)

        with torch.no_grad(), self.accelerator.autocast():
            ours_NV = logprobs(self.model)
            with self._reference() as reference:
                theirs_NV = logprobs(reference)
        kl_N = (ours_NV.exp() * (ours_NV - theirs_NV)).sum(-1)
        return float(kl_N.sum()), len(kl_N)

    def _reference(self) -> AbstractContextManager[Any]:
        """Where the policy began: the model without its adapter, or a copy that is not trained."""
        return _given(self.ref_model) if self.ref_model is not None else _without_adapter(self.model)

    @contextmanager
    def _as_it_is(self) -> Iterator[None]:
        training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(training)


@contextmanager
def _given(model: Any) -> Iterator[Any]:
    yield model


@contextmanager
def _without_adapter(model: Any) -> Iterator[Any]:
    with model.disable_adapter():
        yield model
