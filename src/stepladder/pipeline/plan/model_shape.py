"""The shape of a model: parameters, LoRA parameters, bytes of the KV cache and of activations.

In: the name of a model: a folder or a downloaded hub model (its config is read), or a public model whose shape is in
`constants.yaml`. Out: a `ModelShape`. No weights are loaded.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import expand_path
from stepladder.models import SMOLLM2, builtin_folder
from stepladder.models.adapters import is_adapter

#: Bytes of activations per token and layer that the backward pass needs, counted with torch's hooks for saved tensors
#: (tests/unit/pipeline/test_plan_memory.py): per hidden unit, per unit of the MLP, per unit of keys, and per unit of
#: queries and keys for models that normalize these. By (LoRA, bf16).
_SAVED = {
    (False, False): (32.25, 16.0, 8.0, 8.25),
    (False, True): (30.25, 8.0, 4.0, 6.25),
    (True, False): (24.25, 16.0, 8.0, 4.25),
    (True, True): (24.25, 8.0, 4.0, 4.25),
}
#: Linear layers of a transformer layer: each has an adapter.
_LINEAR = 7
#: Bytes per token of the output layer and its loss: logits, their log-softmax, their gradient. By bf16.
_LOGITS = {False: 12, True: 14}
#: Model types that normalize queries and keys.
_NORMED = ("qwen3", "gemma3")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a decoder-only language model."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    #: Whether the output layer has the weights of the embeddings.
    tied: bool
    #: Tokens of the context window.
    window: int
    #: Whether queries and keys are normalized.
    normed: bool = False

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer, without norms and biases, which are negligible."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        return self.hidden * (2 * queries + 2 * keys) + 3 * self.hidden * self.intermediate

    @property
    def parameters(self) -> int:
        """All weights."""
        return self.layers * self.layer_parameters + self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def computed_parameters(self) -> int:
        """Weights that every token is multiplied with: not the embeddings, unless they are the output layer."""
        return self.layers * self.layer_parameters + self.vocabulary * self.hidden

    def lora_parameters(self, rank: int) -> int:
        """Weights of adapters of all linear layers."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        ends = 2 * (self.hidden + queries) + 2 * (self.hidden + keys) + 3 * (self.hidden + self.intermediate)
        return self.layers * rank * ends

    def kv_bytes(self, bf16: bool) -> int:
        """Keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_size * (2 if bf16 else 4)

    def layer_activation_bytes(self, *, lora: int | None, bf16: bool) -> float:
        """Per token: what one layer saves for the backward pass. `lora`: the rank of the adapters, if any."""
        hidden, inner, keys, normed = _SAVED[lora is not None, bf16]
        kv = self.kv_heads * self.head_size
        total = hidden * self.hidden + inner * self.intermediate + keys * kv
        if self.normed:
            total += normed * (self.heads * self.head_size + kv)
        return total + (lora or 0) * _LINEAR * (2 if bf16 else 4)

    def activation_bytes(self, *, lora: int | None, bf16: bool, checkpointing: bool) -> float:
        """Per token: what all layers save. With gradient checkpointing: the inputs of the layers, and one layer."""
        layer = self.layer_activation_bytes(lora=lora, bf16=bf16)
        if not checkpointing:
            return self.layers * layer
        return self.layers * self.hidden * (2 if bf16 and lora is not None else 4) + layer

    def logit_bytes(self, bf16: bool) -> float:
        """Per predicted token: its logits, their log-softmax and their gradient."""
        return float(self.vocabulary * _LOGITS[bf16])


def shape_from_config(name: str, config: Any) -> ModelShape:
    """The shape in a model's configuration (transformers')."""
    text = config.get_text_config()
    try:
        heads = int(text.num_attention_heads)
        return ModelShape(
            name,
            int(text.num_hidden_layers),
            int(text.hidden_size),
            int(getattr(text, "intermediate_size", None) or 4 * text.hidden_size),
            heads,
            int(getattr(text, "num_key_value_heads", None) or heads),
            int(getattr(text, "head_dim", None) or text.hidden_size // heads),
            int(text.vocab_size),
            bool(getattr(text, "tie_word_embeddings", False)),
            int(getattr(text, "max_position_embeddings", None) or 0),
            str(getattr(text, "model_type", "")).startswith(_NORMED),
        )
    except (AttributeError, TypeError) as error:
        raise StepladderError(
            f"the shape of model '{name}' is unknown: its config.json is incomplete: {error}"
        ) from error


def find_shape(name: str, known: dict[str, dict[str, Any]]) -> ModelShape:
    """The shape of a model. `known`: the shapes of public models, by name."""
    if name == "tiny":
        return ModelShape(name, 2, 64, 128, 4, 2, 16, 257, True, 4096)
    public = {each.lower(): each for each in known}
    if (listed := public.get(SMOLLM2 if name == SMOLLM2 else name.lower())) is not None:
        return ModelShape(listed, **known[listed])
    folder = builtin_folder(name) or expand_path(name)
    if folder.is_dir():
        return _read_folder(name, folder, known)
    if (config := _downloaded_config(name)) is not None:
        return shape_from_config(name, config)
    raise StepladderError(
        f"the shape of model '{name}' is unknown: it is no folder here, it was not downloaded before, and its shape is "
        f"not stored. Put its config.json into a folder and name that: --set policy=DIR. Stored: {', '.join(known)}"
    )


def is_local(name: str) -> bool:
    """Whether a model can be read without a download."""
    return (builtin_folder(name) or expand_path(name)).is_dir() or _downloaded_config(name) is not None


def _read_folder(name: str, folder: Path, known: dict[str, dict[str, Any]]) -> ModelShape:
    from stepladder.models.resolve import base_models

    if is_adapter(folder):
        return find_shape(base_models(folder)[-1], known)
    if not (folder / "config.json").is_file():
        raise StepladderError(f"the shape of model '{name}' is unknown: {folder} has no config.json")
    from transformers import AutoConfig

    from stepladder.models.loading import NO_CODE

    try:
        return shape_from_config(name, AutoConfig.from_pretrained(folder, local_files_only=True, **NO_CODE))
    except (OSError, ValueError) as error:
        raise StepladderError(f"the shape of model '{name}' is unknown: {error}") from error


def _downloaded_config(name: str) -> Any:
    """The config of a hub model in the local cache; None if there is none."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    if not isinstance(path, str):
        return None
    from transformers import AutoConfig

    from stepladder.models.loading import NO_CODE

    return AutoConfig.from_pretrained(Path(path).parent, local_files_only=True, **NO_CODE)
