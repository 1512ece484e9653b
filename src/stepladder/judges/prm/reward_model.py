"""The process reward model: a causal model with a scalar head that scores every step of a trajectory in one pass.

In: trajectories. Out: one score a step, a logit: above 0 a step is more likely good than not. The folder is an ordinary
`AutoModelForSequenceClassification` with one label; its logit for a text that ends with a step is the score of that
step. It answers the driver's `Score` requests, so search, refinement and RL use the same object. `prm_training.py`
makes one.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from types import MethodType
from typing import Any, Self, cast

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from stepladder.core.errors import BackendError, StepladderError
from stepladder.core.io.files import atomic_folder
from stepladder.core.step_scorer import StepScorer, sigmoid
from stepladder.core.trace import Trajectory
from stepladder.engines.transformers.tokenization import Encoding
from stepladder.judges.prm.prm_inputs import Reading, StepReader
from stepladder.models.length_batches import context_window, padded_width
from stepladder.models.loading import (
    context_limit_of,
    load_model,
    load_pretrained,
    pick_device,
    pick_dtype,
    quiet_libraries,
)
from stepladder.models.stochastic_rounding import cast_model

#: Most tokens of a pass on a CPU, padding included: beyond, they outgrow its caches, and each takes twice as long.
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
    ) -> None:
        """`model` has a scalar head and is used where it is. `max_batch`: most transcripts a pass. `window`: most
        tokens of one, by default as many as the model takes. `retokenize`: take those of another tokenizer, as text.
        """
        self.model = cast(Any, reads_steps(model).eval())
        self.tokenizer = tokenizer
        self.max_batch = max_batch
        config = self.model.config.get_text_config()
        self.reader = StepReader(
            Encoding(tokenizer), window or context_limit_of(config), config.pad_token_id, retokenize=retokenize
        )

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "auto", dtype: str = "auto", **options: Any) -> Self:
        """The reward model in a folder. `options` are those of the class."""
        where = pick_device(device)
        model, tokenizer = load_reward_model(folder, pick_dtype(dtype, where))
        return cls(model.to(where), tokenizer, **options)

    def score(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...]]:
        """For each trajectory, one probability per step: the sigmoid of its logits."""
        return [tuple(map(sigmoid, logits)) for logits in self.score_logits(trajectories)]

    def score_logits(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...]]:
        """For each trajectory, one logit per step."""
        scores = [[float("nan")] * len(trajectory.steps) for trajectory in trajectories]
        readings = [
            (number, reading)
            for number, trajectory in enumerate(trajectories)
            for reading in self.reader.trajectory(trajectory)
        ]
        for batch in self._batches(readings):
            for (number, reading), found in zip(batch, self.read([reading for _, reading in batch])):
                for step, score in zip(reading.steps, found):
                    scores[number][step] = score
        return [tuple(each) for each in scores]

    def _batches(self, readings: Sequence[tuple[int, Reading]]) -> Iterator[list[tuple[int, Reading]]]:
        """Readings of like length together: there is less to pad."""
        most = _CPU_TOKENS if self._device.type == "cpu" else float("inf")
        batch: list[tuple[int, Reading]] = []
        for each in sorted(readings, key=lambda each: len(each[1].tokens)):
            if batch and (len(batch) == self.max_batch or (len(batch) + 1) * len(each[1].tokens) > most):
                yield batch
                batch = []
            batch.append(each)
        if batch:
            yield batch

    @property
    def _device(self) -> torch.device:
        return cast(torch.device, next(self.model.parameters()).device)

    def read(self, readings: Sequence[Reading]) -> list[tuple[float, ...]]:
        """The scores of one batch."""
        with torch.inference_mode():
            found = self.model(
                **{name: tensor.to(self._device) for name, tensor in padded(readings, context_window(self.model)).items()}
            )
        scores = iter(found.float().tolist())
        rows = [tuple(next(scores) for _ in reading.ends) for reading in readings]
        if not all(abs(score) < float("inf") for row in rows for score in row):
            raise BackendError("a score of the reward model is not a number: its weights are damaged")
        return rows

    def save(self, folder: Path, dtype: torch.dtype | None = None) -> None:
        """Write an ordinary model folder."""
        with quiet_libraries(), atomic_folder(folder, what="reward model") as fresh:
            cast_model(self.model, dtype or self.model.dtype)
            self.model.save_pretrained(fresh)
            self.tokenizer.save_pretrained(fresh)


def expect_same_words(policy: Encoding, reward: ProcessRewardModel) -> None:
    """Refuse a reward model of another tokenizer than the policy's before anything is sampled."""
    ours, theirs = policy.vocabulary, reward.reader.encoding.vocabulary
    if ours != theirs and not reward.reader.retokenize:
        raise StepladderError(
            f"the reward model has another tokenizer ({theirs}) than the policy ({ours}). Take one that was trained "
            "from this policy, or set retokenize to true: the policy's text is then encoded anew for it"
        )


def padded(readings: Sequence[Reading], window: int | None = None) -> dict[str, torch.Tensor]:
    """Readings as the model takes them, padded on the right.

    There is no attention mask: a causal model looks to the left alone, so no score depends on the padding behind it,
    and without a mask it may use its fastest kernels.
    """
    width = padded_width((len(reading.tokens) for reading in readings), window)
    ids_BT = torch.zeros(len(readings), width, dtype=torch.long)
    for row, reading in enumerate(readings):
        ids_BT[row, : len(reading.tokens)] = torch.tensor(reading.tokens)
    rows_S = torch.tensor([row for row, reading in enumerate(readings) for _ in reading.ends])
    columns_S = torch.tensor([end for reading in readings for end in reading.ends])
    return {"input_ids": ids_BT, "rows": rows_S, "columns": columns_S}


# --- models with a scalar head ----------------------------------------------------------------------------------


def with_head(causal: nn.Module, tokenizer: PreTrainedTokenizerBase, name: str | Path) -> nn.Module:
    """A causal model with a scalar head in the place of its output layer, whose scores are all 0 to begin with."""
    model = cast(Any, causal)
    config = deepcopy(model.config)
    config.num_labels = 1
    text = config.get_text_config()
    if text.pad_token_id is None:
        text.pad_token_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    try:
        with torch.device("meta"):  # everything but the head is taken from the causal model
            scoring: Any = AutoModelForSequenceClassification.from_config(config)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise StepladderError(f"transformers has no scalar head for a {config.model_type} ('{name}')") from error
    weights = next(model.parameters())
    if not _has_head(scoring) or scoring.base_model_prefix != model.base_model_prefix:
        raise StepladderError(f"the head of a {type(scoring).__name__} ('{name}') is not one that is known here")
    setattr(scoring, scoring.base_model_prefix, model.base_model)
    scoring.score = nn.Linear(text.hidden_size, 1, bias=False, device=weights.device, dtype=weights.dtype)
    nn.init.zeros_(scoring.score.weight)
    return cast(nn.Module, scoring)


def load_reward_model(
    name: str | Path, dtype: torch.dtype | None, tokenizer: PreTrainedTokenizerBase | None = None
) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    """A model that has a scalar head, from its folder."""
    if str(name) == "tiny":  # it has no files to look into
        raise _no_reward_model(name, "causal language model")
    model, tokenizer = load_pretrained(name, AutoModelForSequenceClassification, _expect_scalar, tokenizer, dtype)
    if not _has_head(model):  # encoders, which look to the right as well, have heads of other names
        raise _no_reward_model(name, type(model).__name__)
    return model, tokenizer


def load_to_train(name: str | Path) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    """A model to train as a reward model: one already, or a causal model that is given a head."""
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file() and "ForSequenceClassification" in (folder / "config.json").read_text():
        return load_reward_model(name, None)
    causal, tokenizer = load_model(name, None, None)
    return with_head(causal, tokenizer, name), tokenizer


def _expect_scalar(name: str | Path, config: Any) -> None:
    kinds = config.architectures or []
    found = ", ".join(kinds) or config.model_type
    if not any(kind.endswith("ForSequenceClassification") for kind in kinds):
        raise _no_reward_model(name, found)
    if config.num_labels != 1:
        raise _no_reward_model(name, f"{found} with {config.num_labels} labels")


def _has_head(scoring: nn.Module) -> bool:
    """Whether a model has its head where causal models for sequence classification have it."""
    return isinstance(getattr(scoring, "score", None), nn.Linear)


def _no_reward_model(name: str | Path, found: str) -> StepladderError:
    return StepladderError(
        f"'{name}' is a {found}; expected a reward model: a causal model for sequence classification with one label"
    )


def reads_steps(model: nn.Module) -> nn.Module:
    """The same model; called with `rows` and `columns`, it gives the scores at those tokens, and nothing else.

    Its own forward pass would give one score a text. It is replaced, not gone around, because wrappers for adapters and
    for several devices expect to be called, and pass on what they are called with.
    """
    scoring: Any = cast(Any, model).get_base_model() if hasattr(model, "get_base_model") else model
    if not hasattr(scoring, "reads_texts"):
        scoring.reads_texts = scoring.forward
        scoring.forward = MethodType(_forward, scoring)
    return model


def _forward(
    self: Any, input_ids: torch.Tensor, rows: torch.Tensor | None = None, columns: Any = None, **others: Any
) -> Any:
    if rows is None:
        return self.reads_texts(input_ids=input_ids, **others)
    hidden_BTH = getattr(self, self.base_model_prefix)(input_ids=input_ids, use_cache=False).last_hidden_state
    return self.score(hidden_BTH[rows, columns])[:, 0]
