"""Rerank the results of any retriever with a cross-encoder.

In: a retriever, and a cross-encoder by folder or hub name (extra `dense`: sentence-transformers). Out: one `Retriever`.
The inner retriever provides candidates; the cross-encoder's scores (logits, not probabilities) decide their order.
Slower and more accurate than comparing separate embeddings.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from stepladder.core.errors import StepladderError
from stepladder.core.extras import install_command
from stepladder.core.io.files import expand_path
from stepladder.core.trace import Passage
from stepladder.models.devices import pick_device, pick_dtype
from stepladder.models.loading import NO_CODE, reason_of, wrap_library_errors
from stepladder.retrieval.base import Retriever, check_search

#: Candidates from the inner retriever; at least k.
DEPTH = 50

#: Suffixes of model classes that can score a pair.
_RANKING = ("ForSequenceClassification", "ForCausalLM")


class RerankedRetriever(Retriever):
    """Reorders the results of another retriever with a cross-encoder. Ties keep the inner order."""

    def __init__(
        self,
        inner: Retriever,
        model: str | Path,
        *,
        depth: int = DEPTH,
        batch: int = 32,
        device: str = "auto",
        dtype: str = "auto",
        max_tokens: int = 512,
    ) -> None:
        """`depth`: candidates per query; `batch`: pairs per forward pass.

        Query and passage together are truncated to `max_tokens`, or to the model's limit if that is less. `device`:
        auto, cpu, cuda, cuda:1 ... `dtype`: fp32, bf16 or auto (bf16 on CUDA, else fp32). In bf16, scores depend
        slightly on the rest of the batch.
        """
        if depth < 1 or batch < 1 or max_tokens < 1:
            raise ValueError(f"expected depth, batch and max_tokens >= 1; found {depth=}, {batch=}, {max_tokens=}")
        try:
            from sentence_transformers import CrossEncoder
        except ImportError as error:
            raise StepladderError(
                f"a cross-encoder needs sentence-transformers, which is not installed: {install_command('dense')}"
            ) from error
        folder, where = expand_path(model), pick_device(device)
        expected = "Give a folder with a sentence-transformers cross-encoder, or a hub name."
        problem = f"cross-encoder '{model}' could not be loaded"
        with wrap_library_errors(lambda error: StepladderError(f"{problem}: {reason_of(error)}. {expected}")):
            self._model = CrossEncoder(
                str(folder if folder.is_dir() else model),
                device=str(where),
                local_files_only=folder.is_dir(),
                **NO_CODE,
                model_kwargs={"dtype": pick_dtype(dtype, where)},
                # A sigmoid would saturate and create ties; the order is the same without.
                activation_fn=torch.nn.Identity(),
            )
        # For other models, transformers would silently initialize the missing weights at random.
        kinds = self._model.config.architectures or []
        if self._model.num_labels != 1 or not all(kind.endswith(_RANKING) for kind in kinds):
            raise StepladderError(
                f"model '{model}' is a {', '.join(kinds) or 'model'} with {self._model.num_labels} outputs; expected a "
                "cross-encoder with one, its score (an embedding model is for a dense index)"
            )
        self._model.max_seq_length = min(max_tokens, self._model.max_seq_length or max_tokens)
        self.inner, self.depth, self.batch = inner, depth, batch
        self.max_batch = inner.max_batch

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        """For each query, in order, up to k passages with the cross-encoder's scores, best first."""
        check_search(queries, k)
        if not queries:
            return []
        candidates = self.inner.search(queries, max(self.depth, k))
        # Equal pairs are scored once: in batches of other lengths, their scores could differ by rounding.
        asked = zip(queries, candidates, strict=True)
        pairs = list(dict.fromkeys(_pair(query, passage) for query, found in asked for passage in found))
        # The library sorts the pairs by length and returns the scores in the original order.
        predicted = self._model.predict(pairs, batch_size=self.batch, show_progress_bar=False)
        if not np.isfinite(predicted).all():
            raise StepladderError("the cross-encoder returned scores that are not finite; try dtype fp32")
        scores = dict(zip(pairs, predicted.tolist(), strict=True))
        results = []
        for query, found in zip(queries, candidates):
            scored = [replace(passage, score=scores[_pair(query, passage)]) for passage in found]
            results.append(tuple(sorted(scored, key=lambda passage: -(passage.score or 0.0))[:k]))
        return results

    def close(self) -> None:
        """Close the inner retriever."""
        self.inner.close()


def _pair(query: str, passage: Passage) -> tuple[str, str]:
    return query, f"{passage.title}\n{passage.text}" if passage.title else passage.text
