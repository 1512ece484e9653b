"""The public trainers: names or objects in, the same training as a stage, a report out."""

from pathlib import Path
from typing import Any

import pytest

from stepladder.core.errors import StepladderError
from stepladder.core.io.records import read_records
from stepladder.core.trace import Node, Trajectory, Tree
from stepladder.data import DataSet
from stepladder.judges.prm.reward_model import ProcessRewardModel
from stepladder.train.dpo.config import DPOConfig
from stepladder.train.dpo.trainer import DPOTrainer
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.trainer import GRPOTrainer
from stepladder.train.loop.training_loop import TrainingReport
from stepladder.train.prm.config import PRMConfig
from stepladder.train.prm.trainer import PRMReport, PRMTrainer
from stepladder.train.rft.config import RFTConfig
from stepladder.train.rft.trainer import RFTTrainer
from stepladder.train.sft.config import SFTConfig
from stepladder.train.sft.trainer import SFTTrainer
from tests.support import dpo_training, grpo_training, sft_training
from tests.support.samples import QUESTION, WordRetriever
from tests.support.training_runs import plain_rows

DATA = DataSet("sample", {"train": tuple(sft_training.QUESTIONS), "dev": tuple(sft_training.QUESTIONS[:1])})
QUICK: dict[str, Any] = {"num_train_epochs": 1, "batch_size": 2, "dev_questions": 0}


@pytest.fixture(scope="module")
def sft(tmp_path_factory: pytest.TempPathFactory) -> TrainingReport:
    return SFTTrainer(
        "tiny", "prorag-brief", DATA, sft_training.SETTINGS, tmp_path_factory.mktemp("sft"),
        retriever=WordRetriever(), episode=sft_training.EPISODE, device="cpu",
    ).train()  # fmt: skip


@pytest.fixture(scope="module")
def prm(sft: TrainingReport, tmp_path_factory: pytest.TempPathFactory) -> PRMReport:
    return PRMTrainer(
        sft.policy, "prorag-brief", DATA, PRMConfig(num_train_epochs=1, batch_size=2), tmp_path_factory.mktemp("prm"),
        pairs=dpo_training.PAIRS, held_out=dpo_training.HELD_OUT, retriever=WordRetriever(), device="cpu",
    ).train()  # fmt: skip


def test_sft_is_the_training_of_the_stage(sft: TrainingReport, tmp_path: Path) -> None:
    stage = sft_training.train(tmp_path)
    assert plain_rows(sft.policy.parent) == plain_rows(stage.policy.parent)
    assert repr(sft).startswith(f"{sft.policy}: 6 updates, loss ")


def test_rft_and_grpo_take_a_reward_model_by_its_folder_or_as_an_object(prm: PRMReport, tmp_path: Path) -> None:
    assert repr(prm).startswith(f"{prm.reward}: ")
    options: dict[str, Any] = {
        "agent": grpo_training.Loose(), "data": DATA, "retriever": WordRetriever(), "device": "cpu",
        "episode": grpo_training.EPISODE,
    }  # fmt: skip
    args = GRPOConfig(questions=2, num_generations=2, batch_size=4, num_train_epochs=1, dev_questions=0)
    by_folder = GRPOTrainer("tiny", args=args, output_dir=tmp_path / "1", scorer=prm.reward, **options).train()
    scorer = ProcessRewardModel.load(prm.reward, device="cpu")
    by_object = GRPOTrainer("tiny", args=args, output_dir=tmp_path / "2", scorer=scorer, **options).train()
    assert plain_rows(by_folder.policy.parent) == plain_rows(by_object.policy.parent)
    with pytest.raises(StepladderError, match="no reward model given"):
        GRPOTrainer("tiny", args=args, output_dir=tmp_path / "3", **options).train()
    with pytest.raises(StepladderError, match="no transcripts left"):
        RFTTrainer("tiny", args=RFTConfig(**QUICK), output_dir=tmp_path / "4", scorer=prm.reward, **options).train()


def test_a_reward_model_takes_trees_and_samples_episodes_of_the_policy(sft: TrainingReport, tmp_path: Path) -> None:
    demonstrations = read_records(sft.policy.parent / "transcripts.jsonl", Trajectory)
    trees = []
    for each in demonstrations:
        nodes = (Node(number, number - 1, step) for number, step in enumerate(each.steps, start=1))
        trees.append(Tree(each.question, each.agent, (Node(0, None, None), *nodes)))
    args = PRMConfig(objective="verdicts", episodes=2, num_generations=1, num_train_epochs=1, batch_size=2, dev_share=0)
    report = PRMTrainer(
        sft.policy, "prorag-brief", DATA, args, tmp_path, trees=trees,
        retriever=WordRetriever(), episode=sft_training.EPISODE, device="cpu",
    ).train()  # fmt: skip
    assert report.numbers["episodes"] == 2
    assert report.numbers["scored_steps"] > sum(len(tree.nodes) - 1 for tree in trees)
    with pytest.raises(StepladderError, match="objective 'values' needs trees"):
        PRMTrainer("tiny", "direct", DATA, PRMConfig(objective="values"), tmp_path).train()


def test_dpo_takes_pairs(tmp_path: Path) -> None:
    report = DPOTrainer(
        "tiny", "prorag-brief", DATA, DPOConfig(**QUICK), tmp_path, pairs=dpo_training.PAIRS,
        retriever=WordRetriever(), device="cpu",
    ).train()  # fmt: skip
    assert report.numbers["pairs"] == len(dpo_training.PAIRS)
    with pytest.raises(StepladderError, match="DPO needs pairs"):
        DPOTrainer("tiny", "direct", DATA, DPOConfig(**QUICK), tmp_path).train()


def test_without_an_output_dir_every_training_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = []
    for _ in range(2):
        trainer = SFTTrainer("tiny", "direct", DATA, SFTConfig(**QUICK), device="cpu")
        folders.append(trainer.train().policy.parent)
    assert folders == [Path("runs/sft"), Path("runs/sft-2")]


def test_data_without_a_dev_split_or_passages_is_refused(tmp_path: Path) -> None:
    alone = DataSet("alone", {"train": (QUESTION,)})
    with pytest.raises(StepladderError, match="alone has no dev split: set it to 0"):
        SFTTrainer("tiny", "direct", alone, output_dir=tmp_path).train()
    with pytest.raises(StepladderError, match="the agent 'prorag' searches, and alone has no passages: set retriever"):
        SFTTrainer("tiny", "prorag", alone, SFTConfig(dev_questions=0), tmp_path).train()
