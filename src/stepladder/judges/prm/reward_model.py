"""The process reward model: a causal model with a scalar head that scores every step of a trajectory in one pass.

In: trajectories. Out: one logit per step; above 0 a step is more likely good than not. The folder is an ordinary
`AutoModelForSequenceClassification` with one label: its logit for a text that ends with a step is the score of that
step. Its config.json says if queries are scored after their retrieval, and answers by the worst step so far. Search,
rejection sampling and RL use the same object. `train/prm` trains one.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from types import MethodType
from typing import Any, Literal, Self, cast

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from stepladder.core.errors import BackendError, StepladderError
from stepladder.core.io.files import atomic_folder
from stepladder.core.step_scorer import StepScorer, sigmoid
from stepladder.core.trace import Trajectory
from stepladder.engines.transformers.tokenization import Encoding
from stepladder.judges.prm import AFTER_RETRIEVAL, ANSWER_SCORE
from stepladder.judges.prm.answer_scores import with_least_scores
from stepladder.judges.prm.prm_inputs import PRMInput, PRMInputBuilder
from stepladder.models.devices import pick_device, pick_dtype
from stepladder.models.length_batches import context_window, padded_width
from stepladder.models.loading import (
    NO_CODE,
    context_limit_of,
    load_model,
    load_pretrained,
    quiet_libraries,
)
from stepladder.models.stochastic_rounding import cast_model

#: Maximum tokens per forward pass on a CPU, padding included. Larger batches exceed its caches: half the speed.
_CPU_TOKENS = 2048


class ProcessRewardModel(StepScorer):
    """A step scorer whose logits come from a causal model with a scalar head."""

    concurrency = 1

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_batch: int = 32,
        window: int | None = None,
        retokenize: bool = False,
        score_after_retrieval: bool | None = None,
        answer_score: Literal["step", "least"] | None = None,
    ) -> None:
        """`model` has a scalar head and stays on its device. `max_batch`: maximum inputs per forward pass. `window`:
        maximum tokens of an input, by default the model's limit. `retokenize`: accept trajectories of another
        tokenizer by encoding their text again. `score_after_retrieval`: whether a query is scored with the passages
        that it found; `answer_score`: a final answer has its own score, or that of the worst step so far; both by
        default as the model was trained.
        """
        self.model = cast(Any, patch_step_forward(model).eval())
        self.tokenizer = tokenizer
        self.max_batch = max_batch
        if score_after_retrieval is None:
            score_after_retrieval = getattr(self.model.config, AFTER_RETRIEVAL, None) is True
        self.reads_passages = score_after_retrieval
        if answer_score is None:
            answer_score = "least" if getattr(self.model.config, ANSWER_SCORE, None) == "least" else "step"
        self.answer_score = answer_score
        config = self.model.config.get_text_config()
        self.builder = PRMInputBuilder(
            Encoding(tokenizer),
            window or context_limit_of(config),
            config.pad_token_id,
            retokenize=retokenize,
            after_retrieval=score_after_retrieval,
        )

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "auto", dtype: str = "auto", **options: Any) -> Self:
        """Load a reward model from its folder. `options` are passed to the constructor."""
        target = pick_device(device)
        model, tokenizer = load_reward_model(folder, pick_dtype(dtype, target))
        return cls(model.to(target), tokenizer, **options)

    def score(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...]]:
        """For each trajectory, one probability per step: the sigmoid of its logits."""
        return [tuple(map(sigmoid, logits)) for logits in self.score_logits(trajectories)]

    def score_logits(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...]]:
        logits = [[float("nan")] * len(trajectory.steps) for trajectory in trajectories]
        inputs = [
            (index, each)
            for index, trajectory in enumerate(trajectories)
            for each in self.builder.trajectory(trajectory)
        ]
        for batch in self._batches(inputs):
            for (index, each), found in zip(batch, self.score_batch([each for _, each in batch])):
                for step, logit in zip(each.steps, found):
                    logits[index][step] = logit
        if self.answer_score == "least":
            return [with_least_scores(*each) for each in zip(trajectories, logits)]
        return [tuple(each) for each in logits]

    def _batches(self, inputs: Sequence[tuple[int, PRMInput]]) -> Iterator[list[tuple[int, PRMInput]]]:
        """Batches of inputs of similar length, which need less padding."""
        max_tokens = _CPU_TOKENS if self._device.type == "cpu" else float("inf")
        batch: list[tuple[int, PRMInput]] = []
        for each in sorted(inputs, key=lambda each: len(each[1].tokens)):
            if batch and (len(batch) == self.max_batch or (len(batch) + 1) * len(each[1].tokens) > max_tokens):
                yield batch
                batch = []
            batch.append(each)
        if batch:
            yield batch

    @property
    def _device(self) -> torch.device:
        return cast(torch.device, next(self.model.parameters()).device)

    def score_batch(self, inputs: Sequence[PRMInput]) -> list[tuple[float, ...]]:
        """The logits of one batch, for each input one per step end."""
        batch = collate_inputs(inputs, context_window(self.model))
        with torch.inference_mode():
            found = self.model(**{name: tensor.to(self._device) for name, tensor in batch.items()})
        logits = iter(found.float().tolist())
        rows = [tuple(next(logits) for _ in each.ends) for each in inputs]
        if not all(abs(logit) < float("inf") for row in rows for logit in row):
            raise BackendError("a score of the reward model is not a number: its weights are damaged")
        return rows

    def save(self, folder: Path, dtype: torch.dtype | None = None) -> None:
        """Save the model and its tokenizer as a model folder."""
        with quiet_libraries(), atomic_folder(folder, what="reward model") as fresh:
            cast_model(self.model, dtype or self.model.dtype)
            vars(self.model.config).pop(AFTER_RETRIEVAL, None)
            if self.reads_passages:
                setattr(self.model.config, AFTER_RETRIEVAL, True)
            vars(self.model.config).pop(ANSWER_SCORE, None)
            if self.answer_score == "least":
                setattr(self.model.config, ANSWER_SCORE, "least")
            self.model.save_pretrained(fresh)
            self.tokenizer.save_pretrained(fresh)


def check_same_tokenizer(policy: Encoding, reward: ProcessRewardModel) -> None:
    """Raise before anything is sampled if the reward model has another tokenizer than the policy."""
    ours, theirs = policy.vocabulary, reward.builder.encoding.vocabulary
    if ours != theirs and not reward.builder.retokenize:
        raise StepladderError(
            f"the reward model has another tokenizer ({theirs}) than the policy ({ours}). Take one that was trained "
            "from this policy, or set retokenize to true to encode the policy's text again for it"
        )


def collate_inputs(inputs: Sequence[PRMInput], window: int | None = None) -> dict[str, torch.Tensor]:
    """A batch for the model, padded on the right, with the positions of the step ends.

    No attention mask is needed: attention is causal, so no score depends on the padding behind it. Without a mask the
    model can use its fastest kernels.
    """
    width = padded_width((len(each.tokens) for each in inputs), window)
    ids_BT = torch.zeros(len(inputs), width, dtype=torch.long)
    for row, each in enumerate(inputs):
        ids_BT[row, : len(each.tokens)] = torch.tensor(each.tokens)
    rows_S = torch.tensor([row for row, each in enumerate(inputs) for _ in each.ends])
    columns_S = torch.tensor([end for each in inputs for end in each.ends])
    return {"input_ids": ids_BT, "rows": rows_S, "columns": columns_S}


# --- models with a scalar head ----------------------------------------------------------------------------------


def with_scalar_head(causal: nn.Module, tokenizer: PreTrainedTokenizerBase, name: str | Path) -> nn.Module:
    """Replace the output layer of a causal model by a scalar head initialized to zeros."""
    model = cast(Any, causal)
    config = deepcopy(model.config)
    config.num_labels = 1
    text = config.get_text_config()
    if text.pad_token_id is None:
        text.pad_token_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    try:
        with torch.device("meta"):  # all weights but the head's come from the causal model
            scoring: Any = AutoModelForSequenceClassification.from_config(config, **NO_CODE)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise StepladderError(f"transformers has no scalar head for a {config.model_type} ('{name}')") from error
    weights = next(model.parameters())
    if not _has_head(scoring) or scoring.base_model_prefix != model.base_model_prefix:
        raise StepladderError(f"the head of a {type(scoring).__name__} ('{name}') is not supported")
    setattr(scoring, scoring.base_model_prefix, model.base_model)
    scoring.score = nn.Linear(text.hidden_size, 1, bias=False, device=weights.device, dtype=weights.dtype)
    nn.init.zeros_(scoring.score.weight)
    return cast(nn.Module, scoring)


def load_reward_model(
    name: str | Path, dtype: torch.dtype | None, tokenizer: PreTrainedTokenizerBase | None = None
) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    """Load a model with a scalar head, and its tokenizer, from a folder."""
    if str(name) == "tiny":  # built in memory: there is no config to inspect
        raise _no_reward_model(name, "causal language model")
    model, tokenizer = load_pretrained(name, AutoModelForSequenceClassification, _expect_scalar, tokenizer, dtype)
    if not _has_head(model):  # bidirectional encoders name their heads differently
        raise _no_reward_model(name, type(model).__name__)
    return model, tokenizer


def load_for_training(name: str | Path) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    """Load a model for PRM training: a reward model, or a causal model to which a scalar head is added."""
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file() and "ForSequenceClassification" in (folder / "config.json").read_text():
        return load_reward_model(name, None)
    causal, tokenizer = load_model(name, None, None)
    return with_scalar_head(causal, tokenizer, name), tokenizer


def _expect_scalar(name: str | Path, config: Any) -> None:
    kinds = config.architectures or []
    found = ", ".join(kinds) or config.model_type
    if not any(kind.endswith("ForSequenceClassification") for kind in kinds):
        raise _no_reward_model(name, found)
    if config.num_labels != 1:
        raise _no_reward_model(name, f"{found} with {config.num_labels} labels")


def _has_head(scoring: nn.Module) -> bool:
    """Whether the head is where causal models for sequence classification have it."""
    return isinstance(getattr(scoring, "score", None), nn.Linear)


def _no_reward_model(name: str | Path, found: str) -> StepladderError:
    return StepladderError(
        f"'{name}' is a {found}; expected a reward model: a causal model for sequence classification with one label"
    )


def patch_step_forward(model: nn.Module) -> nn.Module:
    """Patch `forward` in place: with `rows` and `columns` it returns the logits at those tokens only.

    The original forward gives one score per text. It is patched rather than bypassed because wrappers for adapters and
    for several devices must be called themselves; they pass their arguments on.
    """
    scoring: Any = cast(Any, model).get_base_model() if hasattr(model, "get_base_model") else model
    if not hasattr(scoring, "text_forward"):
        scoring.text_forward = scoring.forward
        scoring.forward = MethodType(_forward, scoring)
    return model


def _forward(
    self: Any, input_ids: torch.Tensor, rows: torch.Tensor | None = None, columns: Any = None, **others: Any
) -> Any:
    if rows is None:
        return self.text_forward(input_ids=input_ids, **others)
    hidden_BTH = getattr(self, self.base_model_prefix)(input_ids=input_ids, use_cache=False).last_hidden_state
    return self.score(hidden_BTH[rows, columns])[:, 0]
