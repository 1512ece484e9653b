"""What the loss of GRPO is a mean of: tokens, steps or episodes, by hand and by trl."""

from pathlib import Path

import pytest
import torch

from stepladder.train.grpo.config import GRPOConfig
from tests.support.grpo_updates import PRORAG, batch_of, changed, say, told_by, trainer_for

ASKED = "<step>Who built it?</step><subquery>Who designed Orm Tower?</subquery>"
RIGHT, WRONG = say("Velm"), say("Oss", "It is on a river, so I guess.")
#: Two questions, two episodes each: one step that is right, against a search and a wrong answer.
SMALL = {"mode": "outcome", "beta": 0.0, "num_generations": 2, "batch_size": 4}


def told(update: int, question: str, sample: int) -> list[str]:
    return [ASKED, WRONG] if sample else [RIGHT]


#: At the first pass each token's loss is minus its advantage: -1 in the right episodes, 1 in the wrong ones.
BY_HAND = {
    "token": (len(ASKED) + len(WRONG) - len(RIGHT)) / (len(ASKED) + len(WRONG) + len(RIGHT)),
    "step": (1 + 1 - 1) / 3,
    "sequence": (1 - 1) / 2,
}


@pytest.mark.parametrize("loss_type", BY_HAND)
def test_the_loss_is_the_mean_over_tokens_steps_or_episodes(tmp_path: Path, loss_type: str) -> None:
    trainer = trainer_for(tmp_path, changed(**SMALL, loss_type=loss_type), told_by(told), agent=PRORAG)
    loss = trainer.compute_loss(trainer.model, batch_of(trainer))
    assert float(loss.detach()) == pytest.approx(BY_HAND[loss_type], abs=1e-6)


@pytest.mark.parametrize("loss_type", BY_HAND)
def test_questions_without_a_signal_are_not_part_of_the_mean_unless_they_are_kept(
    tmp_path: Path, loss_type: str
) -> None:
    def half(update: int, question: str, sample: int) -> list[str]:
        return told(update, question, sample) if question == "q0" else [RIGHT]

    settings = changed(**SMALL, loss_type=loss_type)
    kept = changed(**SMALL, loss_type=loss_type, drop_zero_std_groups=False)
    losses = []
    for each in (settings, kept):
        trainer = trainer_for(tmp_path, each, told_by(half), agent=PRORAG)
        losses.append(float(trainer.compute_loss(trainer.model, batch_of(trainer)).detach()))
    units = {"token": (len(ASKED) + len(WRONG) + len(RIGHT), 2 * len(RIGHT)), "step": (3, 2), "sequence": (2, 2)}
    with_signal, without = units[loss_type]
    assert losses[0] == pytest.approx(BY_HAND[loss_type], abs=1e-6)
    assert losses[1] == pytest.approx(BY_HAND[loss_type] * with_signal / (with_signal + without), abs=1e-6)


@pytest.mark.parametrize("parts", [1, 2])
def test_sequence_is_what_trl_computes_as_grpo(tmp_path: Path, parts: int) -> None:
    settings = changed(
        mode="dual", loss_type="sequence", beta=0.2, drop_zero_std_groups=False, gradient_accumulation_steps=parts
    )
    trainer = trainer_for(tmp_path, settings)
    batch = batch_of(trainer)
    rows = len(batch["completion_ids"]) // parts
    losses: dict[str, torch.Tensor] = {}
    for loss_type in ("dapo", "grpo"):
        trainer.loss_type = loss_type
        if loss_type == "grpo":
            del batch["loss_weights"]
        pieces = [
            {name: each[start : start + rows] if each.dim() else each for name, each in batch.items()}
            for start in range(0, rows * parts, rows)
        ]
        losses[loss_type] = sum(
            (trainer.compute_loss(trainer.model, piece).detach() for piece in pieces), torch.tensor(0.0)
        )
    torch.testing.assert_close(losses["dapo"], losses["grpo"], rtol=1e-4, atol=1e-6)
    assert abs(float(losses["grpo"])) > 1e-3


def test_trls_names_are_accepted_where_they_mean_the_same() -> None:
    names = {"dapo": "token", "grpo": "sequence", "step": "step"}
    assert {name: GRPOConfig.read({"loss_type": name}).loss_type for name in names} == names
    assert "loss_type" in GRPOConfig.read({"loss_type": "dapo"}).inert(), "it is the default"
    assert "loss_type" not in GRPOConfig.read({"loss_type": "grpo"}).inert()
