"""Training a process reward model (ProRAG, stage 2; RAG-Gym's critic).

In: a model to begin with, and examples to learn from and to hold out. Out, in one folder:

    curves.jsonl    one row an update (loss; for pairs also accuracy and margin) and one a dev score
    checkpoints/    the newest and the best, to resume from
    reward/         the best by held-out loss: an ordinary AutoModelForSequenceClassification with its tokenizer

It is not trl's StepRewardTrainer: that one reads one text a score, chosen and rejected each with the whole state, and knows
no values. Its loss is the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedTokenizerBase, TrainingArguments

from stepladder.core.errors import StepladderError
from stepladder.driver import OutcomeCallback
from stepladder.engines.transformers.tokenization import Encoding
from stepladder.judges.prm.prm_inputs import PRMInputBuilder
from stepladder.judges.prm.reward_model import ProcessRewardModel, load_reward_model, load_for_training, patch_step_forward
from stepladder.models.length_batches import context_window
from stepladder.models.loading import DTYPES, context_limit_of, pick_dtype, quiet_libraries
from stepladder.train.loop.policy import add_lora
from stepladder.train.loop.training_loop import Compute, training_numbers, fit, lr_for, prepare_compute
from stepladder.train.loop.base_trainer import DevScore, BaseTrainer
from stepladder.train.prm.config import PRMConfig
from stepladder.train.prm.prm_data import PRMBatch, PRMExample, collate_examples
from stepladder.train.prm.prm_losses import centering_loss, ranking_loss, value_loss

#: Makes the examples to learn from and those held out, and tells in numbers what they are.
ExampleMaker = Callable[[PRMInputBuilder], tuple[Sequence[PRMExample], Sequence[PRMExample], dict[str, object]]]
#: Examples scored at once on what is held out.
_HELD_OUT_BATCH = 16


@dataclass(frozen=True, slots=True)
class PRMReport:
    """What came of the training."""

    #: A model folder.
    reward: Path
    numbers: dict[str, object]


def batch_loss(scores_S: torch.Tensor, batch: PRMBatch, centre: float) -> tuple[torch.Tensor, dict[str, float]]:
    """The loss of a batch, summed over its pairs or steps, and what else was seen of it, as sums."""
    if not len(batch["better"]):
        loss = (value_loss(scores_S, batch["values"]) * batch["weights"]).sum()
        ends = slice(batch["steps"])
        off = (scores_S[ends].detach().sigmoid() - batch["values"][ends]).abs().sum()
        return loss, {"error": float(off)}
    better_P, worse_P = scores_S[batch["better"]], scores_S[batch["worse"]]
    losses_P = ranking_loss(better_P, worse_P, batch["margins"])
    if centre:
        losses_P = losses_P + centre * centering_loss(better_P, worse_P)
    gaps_P = (better_P - worse_P).detach()
    return losses_P.sum(), {"accuracy": float((gaps_P > 0).sum()), "margin": float(gaps_P.sum())}


def weight_of(batch: PRMBatch) -> int:
    """How many pairs or steps a batch has."""
    return len(batch["better"]) or batch["steps"]


class StepRewardTrainer(BaseTrainer):
    """Trains a model with a scalar head."""

    #: Set by whoever makes a trainer.
    centre = 0.0

    def weight_of(self, batch: Any) -> float:
        """Pairs or steps."""
        return float(weight_of(batch))

    def policy_tokens_of(self, batch: Any) -> float:
        """Here: the steps that are scored."""
        return float(batch["steps"])

    def summed_loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Over pairs or steps."""
        loss, seen = batch_loss(_scores(model, batch), batch, self.centre)
        self.noted.update(seen)
        return loss


def _scores(model: nn.Module, batch: PRMBatch) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=batch["input_ids"], rows=batch["rows"], columns=batch["columns"])
    return found.float()


def train_prm(
    model: str | Path,
    examples_for: ExampleMaker,
    settings: PRMConfig,
    folder: Path,
    *,
    seed: int,
    device: str = "auto",
    dtype: str = "auto",
    watch: OutcomeCallback | None = None,
) -> PRMReport:
    """Train a reward model that begins as `model`; the same call goes on where an earlier one was killed."""
    place = prepare_compute(settings, seed, device, "prm")
    pick_dtype(dtype, place.device)
    with quiet_libraries():
        start, tokenizer = load_for_training(model)
        stored = next(start.parameters()).dtype
        base = start.to(place.device, torch.bfloat16 if place.bf16 and settings.lora is not None else torch.float32)
        scoring: Any = base if settings.lora is None else add_lora(base, settings.lora, model, "SEQ_CLS", ("score",))
        patch_step_forward(scoring)
        text = scoring.config.get_text_config()
        window = settings.max_length or context_limit_of(text)
        builder = PRMInputBuilder(Encoding(tokenizer), window, text.pad_token_id, retokenize=settings.retokenize)
        train, dev, counts = examples_for(builder)
        if not train:
            raise StepladderError("there is nothing to train a reward model on")
        dev_score = _held_out_score(scoring, dev, settings, place) if dev else None

        def trainer(arguments: TrainingArguments) -> BaseTrainer:
            together: Any = partial(collate_examples, dense=settings.dense, window=context_window(scoring))
            held_out: Any = [None] if dev else None
            made = StepRewardTrainer(scoring, arguments, together, train_dataset=list(train), eval_dataset=held_out)
            made.centre = settings.center_rewards_coefficient
            return made

        curves, checkpoint = fit(
            trainer,
            [example.length for example in train],
            settings,
            settings.learning_rate if settings.learning_rate != "auto" else lr_for(scoring, settings.lora),
            folder,
            place,
            dev_score=dev_score,
            best_by="dev_loss",
            watch=watch,
            use_cache=text.use_cache,
        )
        assert checkpoint is not None  # a reward model without any training is none
        if place.processes.is_main_process:
            _write(folder / "reward", model, checkpoint, tokenizer, DTYPES.get(dtype, stored))
        place.processes.wait_for_everyone()
    best = {
        f"held_out_{name.removeprefix('dev_')}": value
        for name, value in (curves.best or {}).items()
        if name not in ("step", "dev_seconds")
    }
    cut = {"histories_cut": builder.truncated, "segments_retokenized": builder.retokenized}
    numbers = {**counts, **cut, **training_numbers(curves)}
    return PRMReport(folder / "reward", {**best, **numbers})


def _held_out_score(
    model: nn.Module, examples: Sequence[PRMExample], settings: PRMConfig, place: Compute
) -> Callable[[], DevScore]:
    """Scores the model as it is on examples that it does not learn from."""
    ordered = sorted(examples, key=lambda example: example.length)

    def score() -> DevScore:
        training = model.training
        model.eval()
        sums: dict[str, float] = {}
        weight = 0
        for start in range(0, len(ordered), _HELD_OUT_BATCH):
            batch: Any = collate_examples(ordered[start : start + _HELD_OUT_BATCH], window=context_window(model))
            batch = {name: part.to(place.device) if torch.is_tensor(part) else part for name, part in batch.items()}
            with torch.no_grad(), place.autocast:
                loss, seen = batch_loss(_scores(model, batch), batch, settings.center_rewards_coefficient)
            for name, value in {"loss": float(loss), **seen}.items():
                sums[name] = sums.get(name, 0.0) + value
            weight += weight_of(batch)
        model.train(training)
        return {name: value / weight for name, value in sums.items()}

    return score


def _write(
    folder: Path, source: str | Path, checkpoint: Path, tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype
) -> None:
    """Write the weights of a checkpoint as an ordinary model folder, LoRA merged."""
    model: Any
    if (checkpoint / "adapter_config.json").exists():
        base, _ = load_for_training(source)
        model = PeftModel.from_pretrained(base.float(), str(checkpoint)).merge_and_unload()
    else:
        model, _ = load_reward_model(checkpoint, torch.float32, tokenizer)
    ProcessRewardModel(model, tokenizer).save(folder, dtype)
