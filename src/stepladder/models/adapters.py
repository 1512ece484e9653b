"""LoRA adapters.

In: a folder with adapter_config.json and weights, as written by peft, and the base model that it names. Out: the base
model with the adapter merged into its weights.
"""

import json
from pathlib import Path
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import expand_path
from stepladder.models import NAMED

#: File next to an adapter with the agent it was trained for, which peft's config has no field for.
AGENT_FILE = "stepladder.json"

_CONFIG = "adapter_config.json"
_BASE = "base_model_name_or_path"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")


def is_adapter(folder: Path) -> bool:
    """Whether a folder contains an adapter and no full model."""
    return (folder / _CONFIG).is_file() and not (folder / "config.json").is_file()


def base_of(folder: Path) -> str:
    """The name of an adapter's base model, as stored in the adapter."""
    file = folder / _CONFIG
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StepladderError(f"{file} cannot be read as JSON: {error}") from error
    base = settings.get(_BASE) if isinstance(settings, dict) else None
    how = f"Set {_BASE} in it to the folder, the hub name or the built-in name ({', '.join(NAMED)}) of that model"
    if not isinstance(base, str) or not base:
        raise StepladderError(f"{folder} has no config.json; it is an adapter, and {_CONFIG} names no model. {how}")
    if (task := settings.get("task_type")) not in (None, "CAUSAL_LM"):
        raise StepladderError(f"{folder} is an adapter for {task}; expected one for CAUSAL_LM")
    path = expand_path(base)
    is_path = base.startswith((".", "/", "~")) or base.count("/") > 1 or "\\" in base
    if base not in NAMED and is_path and not path.exists():
        raise StepladderError(
            f"{folder} is an adapter for the model {base}, which is not on this machine ({file}). {how}"
        )
    if base not in NAMED and path.is_dir() and path.resolve() == folder.resolve():
        raise StepladderError(f"{folder} is an adapter that names itself as its model ({file}). {how}")
    return base


def agent_of(folder: Path) -> str | None:
    """The agent that an adapter was trained for, if it was recorded."""
    file = folder / AGENT_FILE
    if not is_adapter(folder) or not file.is_file():
        return None
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["agent"])
    except (ValueError, KeyError, TypeError) as error:
        raise StepladderError(f'{file} cannot be read; expected {{"agent": "NAME"}}') from error


def merged(model: Any, folder: Path) -> Any:
    """The model with the adapter merged, in the model's dtype. Computed in fp32, one layer at a time.

    Stochastic rounding preserves small changes (stochastic_rounding.py).
    """
    import torch
    from peft import PeftModel, get_peft_model_state_dict
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import load_peft_weights

    from stepladder.models.stochastic_rounding import cast_model

    if not any((folder / name).is_file() for name in _WEIGHTS):
        raise StepladderError(f"the adapter {folder} has no weights; expected {' or '.join(_WEIGHTS)} beside {_CONFIG}")
    dtype = next(model.parameters()).dtype
    adapted: Any = PeftModel.from_pretrained(model, str(folder))
    expected = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    given = load_peft_weights(str(folder), device="cpu")
    if wrong := sorted(expected.keys() ^ given.keys()):
        raise StepladderError(
            f"the adapter {folder} does not fit its model: {len(wrong)} weights exist on one side only, such as "
            f"{wrong[0]}. Check {_BASE} in its {_CONFIG}"
        )
    for name, layer in adapted.named_modules():
        if isinstance(layer, BaseTunerLayer):
            layer.get_base_layer().to(torch.float32)
            layer.merge()
            cast_model(layer.get_base_layer(), dtype, name.removeprefix("base_model.model."))
    return adapted.unload().to(dtype).requires_grad_(True)  # peft froze it, and it may be trained further
