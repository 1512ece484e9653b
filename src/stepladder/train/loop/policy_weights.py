"""The policy before and after training: trainable weights, and the folder with the result.

In: a model by name or folder. Out: the model to train, with LoRA or without; and at the end `policy/`, an ordinary
transformers folder with the weights of one checkpoint, LoRA merged, stochastically rounded to the stored dtype.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
from peft import PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from transformers import PreTrainedTokenizerBase

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_folder
from stepladder.models.loading import load_model
from stepladder.models.stochastic_rounding import cast_model
from stepladder.train.loop.config import LoraConfig

#: Parameters of a small model.
_SMALL = 100e6


@dataclass(frozen=True, slots=True)
class Policy:
    """A model in training."""

    #: A folder, a hub name or a built-in name: where the weights came from.
    source: str | Path
    model: Any
    tokenizer: PreTrainedTokenizerBase
    #: Of the weights in the source.
    dtype: torch.dtype

    @property
    def is_small(self) -> bool:
        """Whether a copy of the model costs next to nothing."""
        return bool(sum(weights.numel() for weights in self.model.parameters()) < _SMALL)


def load_policy(source: str | Path, lora: LoraConfig | None, *, bf16: bool, device: torch.device) -> Policy:
    """The model to train, with LoRA adapters, initialized from torch's global generator, or without.

    `bf16`: load the weights in bf16. Only for weights that LoRA freezes; trained weights must be fp32.
    """
    model: Any
    model, tokenizer = load_model(source, None, None)
    dtype = next(model.parameters()).dtype
    model = model.to(device, torch.bfloat16 if bf16 else torch.float32)
    if lora is not None:
        model = add_lora(model, lora, source, "CAUSAL_LM")
    return Policy(source, model, tokenizer, dtype)


def check_target_modules(model: Any, lora: LoraConfig, source: str | Path) -> None:
    """Refuse to adapt an output layer that is tied to the embeddings."""
    config = model.config.get_text_config()
    head = model.get_output_embeddings()
    name = next((name for name, layer in model.named_modules() if layer is head), "")
    targets = () if isinstance(lora.target_modules, str) else lora.target_modules
    if config.tie_word_embeddings and name.rpartition(".")[2] in targets:
        raise StepladderError(
            f"lora.target_modules has the output layer {name}, which model '{source}' ties to the embeddings; remove it"
        )


def peft_config(lora: LoraConfig, task: str, also_trained: Sequence[str] = ()) -> peft.LoraConfig:
    """The settings as peft's configuration."""
    targets = lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules)
    same = lora.model_dump(exclude={"target_modules"})
    return peft.LoraConfig(**same, target_modules=targets, task_type=task, modules_to_save=list(also_trained) or None)


def add_lora(
    model: Any, lora: LoraConfig, source: str | Path, task: str, also_trained: Sequence[str] = ()
) -> PeftModel:
    """The model with LoRA adapters; the layers `also_trained` are trained in full."""
    if task == "CAUSAL_LM":
        check_target_modules(model, lora, source)
    try:
        adapted = get_peft_model(model, peft_config(lora, task, also_trained))
    except ValueError as error:
        linear = {name.rpartition(".")[2] for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
        raise StepladderError(
            f"lora.target_modules does not fit model '{source}': {error} Linear layers: {', '.join(sorted(linear))}"
        ) from error
    assert isinstance(adapted, PeftModel)
    return adapted


def skip_lora_input_casts(model: nn.Module) -> None:
    """Stop peft from casting the inputs of LoRA layers to the dtype of their weights: autocast would cast them back."""
    for layer in lora_layers(model):
        layer.cast_input_dtype_enabled = False


def lora_layers(model: nn.Module) -> list[Any]:
    """The layers with LoRA adapters."""
    return [layer for layer in model.modules() if isinstance(layer, BaseTunerLayer)]


def write_policy(
    folder: Path, policy: Policy, checkpoint: Path | None, dtype: torch.dtype, device: torch.device | None = None
) -> None:
    """Write the weights of a checkpoint, or the initial ones without, as an ordinary model folder.

    `device`: where they are rounded, one at a time.
    """
    model: Any
    if checkpoint is None:
        model, _ = load_model(policy.source, policy.tokenizer, torch.float32)
    elif (checkpoint / "adapter_config.json").exists():
        base, _ = load_model(policy.source, policy.tokenizer, torch.float32)
        model = PeftModel.from_pretrained(base, str(checkpoint)).merge_and_unload()
    else:
        model, _ = load_model(checkpoint, policy.tokenizer, torch.float32)
    with atomic_folder(folder, what="policy") as fresh:
        cast_model(model, dtype, device=device)
        model.save_pretrained(fresh)
        policy.tokenizer.save_pretrained(fresh)
