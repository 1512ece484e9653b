"""GRPO with rollouts by a stand-in for vLLM: weights in memory, and trl's correction for what vLLM rounds."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from stepladder.core.errors import StepladderError
from stepladder.engines.vllm.settings import VLLMConfig
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.importance import importance_ratio
from stepladder.train.loop import rollout_engine
from stepladder.train.loop.rollout_engine import make_rollout_engine
from tests.support import stand_in_vllm
from tests.support.grpo_training import SETTINGS, train
from tests.support.training_runs import updates

NAN = float("nan")
#: By how much the trainer's log-probs exceed the engine's: a row that agrees, one that does not, and a padded one.
GAPS = torch.tensor([[0.0, 0.0, 0.0], [math.log(2), math.log(3), NAN], [math.log(0.5), 5.0, 5.0]])
MASK = torch.tensor([[True, True, True], [True, True, True], [True, False, False]])


@pytest.mark.parametrize(
    ("mode", "least", "most", "expected"),
    [
        ("token_truncate", None, 2.5, [[1, 1, 1], [2, 2.5, 1], [0.5, 1, 1]]),
        ("token_truncate", 0.8, None, [[1, 1, 1], [2, 3, 1], [0.8, 1, 1]]),
        ("token_mask", 0.8, 2.5, [[1, 1, 1], [2, 0, 1], [0, 1, 1]]),
        ("sequence_truncate", None, 3.0, [[1], [3], [0.5]]),
        ("sequence_mask", None, 3.0, [[1], [0], [0.5]]),
        ("sequence_mask", None, None, [[1], [6], [0.5]]),
    ],
)
def test_ratios_are_those_of_trl(mode: Any, least: Any, most: Any, expected: list[list[float]]) -> None:
    config = GRPOConfig(
        engine="vllm",
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_min=least,
        vllm_importance_sampling_clip_max=most,
    )
    engine_BT = torch.full((3, 3), -1.5)
    found = importance_ratio(engine_BT + GAPS, engine_BT, MASK, config)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype))


@pytest.fixture
def acting(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_vllm.install(monkeypatch)


def test_rollouts_get_the_weights_in_training_and_their_loss_is_corrected(
    tmp_path: Path, acting: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    monkeypatch.setattr(rollout_engine, "resolve_full_model", lambda _: tmp_path / "model")
    sent: list[bool] = []
    merged = rollout_engine.merged_weights

    def watched(model: Any, *, trained_only: bool) -> Any:
        sent.append(trained_only)
        return merged(model, trained_only=trained_only)

    monkeypatch.setattr(rollout_engine, "merged_weights", watched)
    settings = SETTINGS.model_dump(exclude_unset=True) | {"num_train_epochs": 1, "dev_questions": 0, "eval_steps": 0}
    changes = {"engine": "vllm", "lora": {"r": 2}, "monitors": {"stop": False}, "vllm_max_model_length": 128}
    train(tmp_path / "grpo", GRPOConfig.read({**settings, **changes}))
    rows = updates(tmp_path / "grpo")
    assert len(rows) == 2
    for row in rows:
        assert 0 < row["logprob_gap_mean"] < 0.1  # bf16 in the engine, fp32 in the trainer
        assert row["importance_mean"] == pytest.approx(1, abs=0.1)
        assert row["importance_mean"] != 1
        assert row["importance_masked"] == 0
    assert sent == [False, True]


def test_tensor_parallel_rollouts_are_refused() -> None:
    nothing: Any = None
    with pytest.raises(StepladderError, match="one vLLM in every process"):
        make_rollout_engine(nothing, nothing, 1, vllm=VLLMConfig(tensor_parallel_size=2))
