"""Launches that cannot work are refused before any work, and processes share batches without overlap."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import typer
import yaml
from accelerate.commands.config.config_args import load_config_from_file

from stepladder import cli
from stepladder.agents import make_agent
from stepladder.cli.recipes import interruptible
from stepladder.core.errors import StepladderError
from stepladder.core.io.launch import LostProcess, ended_by_launcher
from stepladder.models.gpu_memory import SHARE
from stepladder.models.tiny import tiny_model
from stepladder.pipeline.recipe import shipped
from stepladder.pipeline.stages.grpo import check_grpo
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.launch.batches import IS_FILLER, SharedBatches, WithFiller, collate_with_filler
from stepladder.train.launch.processes import Processes, _share_gpus
from stepladder.train.launch.sharding import check_launch, check_resumable, check_shardable
from stepladder.train.launch.team import Team
from stepladder.train.loop.microbatches import max_microbatch_tokens
from stepladder.train.sft.config import SFTConfig
from tests.support import ROOT
from tests.support.launches import FSDP2

LAUNCH = ROOT / "recipes" / "launch"


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the environment of a launch with this many processes."""

    def set_environment(processes: int, **environment: str) -> None:
        ranks = {"RANK": "0", "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
        for name, value in {**ranks, **environment}.items():
            monkeypatch.setenv(name, value)

    return set_environment


@pytest.mark.parametrize("examples", range(1, 14))
@pytest.mark.parametrize(("size", "processes"), [(1, 1), (2, 1), (1, 2), (2, 2), (2, 3)])
def test_every_example_is_in_one_batch_of_one_process(examples: int, size: int, processes: int) -> None:
    order = list(range(examples))
    shares = [list(SharedBatches(order, size, rank, processes)) for rank in range(processes)]
    assert {len(share) for share in shares} == {len(SharedBatches(order, size, 0, processes))}
    together = size * processes
    for number, batches in enumerate(zip(*shares, strict=True)):
        assert all(len(batch) <= size for batch in batches)
        real = [index for batch in batches for index in batch if index >= 0]
        assert real == order[number * together : (number + 1) * together]


def test_a_filler_is_marked() -> None:
    rows = WithFiller(["a", "b"])
    collate = collate_with_filler(lambda examples: {"texts": list(examples)})
    assert collate([rows[1], rows[0]]) == {"texts": ["b", "a"], IS_FILLER: False}
    assert collate([rows[-1]]) == {"texts": ["a"], IS_FILLER: True}


def test_a_launcher_that_ends_a_process_does_not_say_why(launched: Any) -> None:
    launched(2)
    with pytest.raises(LostProcess, match="was killed, or the launch itself, so process 0 of 2"), ended_by_launcher():
        signal.raise_signal(signal.SIGTERM)


def lose_process(*_: object) -> None:
    raise LostProcess


def test_an_error_is_not_replaced_by_that_of_a_lost_process(launched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main process tells the others of its error, and they are gone."""
    monkeypatch.setattr(Processes, "from_main", lose_process)
    alone = Processes(torch.device("cpu"))
    with pytest.raises(StepladderError, match="mine"), alone.main_first():
        raise StepladderError("mine")
    launched(2)
    monkeypatch.setattr(Processes, "__init__", lambda *_: None)
    with pytest.raises(StepladderError, match="mine"), Team("cpu").led():
        raise StepladderError("mine")


@pytest.mark.parametrize(
    ("found", "code", "told"),
    [
        (None, 2, "error: --out DIR is missing"),
        (FileNotFoundError(2, "No such file", "data.jsonl"), 2, "error: data.jsonl: No such file"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_all_processes_find_is_printed_by_the_first(
    launched: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    found: BaseException | None,
    code: int,
    told: str,
) -> None:
    if found is not None:
        monkeypatch.setattr(cli, "app", Mock(side_effect=found))
    for rank in ("0", "1"):
        launched(2, RANK=rank, LOCAL_RANK=rank)
        assert cli.main(["run", "warmup-nano"]) == code
        printed = capsys.readouterr().err
        assert told in printed if rank == "0" else not printed


@pytest.mark.parametrize("rank", ["0", "1"])
def test_one_process_says_that_a_run_was_interrupted(
    launched: Any, capsys: pytest.CaptureFixture[str], rank: str
) -> None:
    launched(2, RANK=rank)
    with pytest.raises(typer.Exit), interruptible():
        raise KeyboardInterrupt
    assert capsys.readouterr().err == ("interrupted: the same command resumes from here\n" if rank == "0" else "")


def test_batches_that_processes_cannot_share_are_refused(launched: Any) -> None:
    launched(3)
    with pytest.raises(StepladderError, match=r"batch_size 8 is not a multiple of 6 .* 2 x 3 processes\): .* to 12,"):
        check_launch(SFTConfig(batch_size=8, gradient_accumulation_steps=2))
    check_launch(SFTConfig(batch_size=12, gradient_accumulation_steps=2))


def test_more_processes_than_gpus_are_refused(launched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    launched(4)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    told = r"4 processes were .* torch finds 2 GPUs \(CUDA_VISIBLE_DEVICES is '0,1'\): .* STEPLADDER_GPU_SHARE=0.5"
    for share in ("1", "0.6"):
        monkeypatch.setenv(SHARE, share)
        with pytest.raises(StepladderError, match=told):
            Processes(torch.device("cuda"))


def test_processes_with_a_share_of_its_memory_use_one_gpu(launched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    launched(4, LOCAL_RANK="3", STEPLADDER_GPU_SHARE="0.5")
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "device_count", lambda: 4)
        patched.setattr(os, "environ", dict(os.environ))
        _share_gpus()
        assert os.environ["LOCAL_RANK"] == "3"
        assert "NCCL_HOSTID" not in os.environ
        patched.setattr(torch.cuda, "device_count", lambda: 2)
        _share_gpus()
        assert os.environ["LOCAL_RANK"] == "1"
        assert os.environ["NCCL_HOSTID"] == "process 0"


@pytest.mark.parametrize(
    ("environment", "settings", "told"),
    [
        ({"FSDP_VERSION": "1"}, {}, "the launch uses FSDP 1; .* fsdp_version: 2"),
        (
            {"FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT"},
            {},
            "fsdp_state_dict_type is SHARDED_STATE_DICT, .* FULL",
        ),
        ({}, {"optim": "adafactor"}, "optim: adafactor cannot be sharded over processes by FSDP: set optim to one of"),
        ({"FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}, {}, "fsdp_cpu_ram_efficient_loading leaves .* set it to false"),
        (
            {"ACCELERATE_MIXED_PRECISION": "fp16"},
            {},
            "mixed_precision is fp16 in the accelerate config: set it to 'no'",
        ),
        ({"ACCELERATE_USE_PARALLELISM_CONFIG": "true"}, {}, "the launch uses a parallelism_config"),
        ({"ACCELERATE_USE_MEGATRON_LM": "true"}, {}, "the launch uses Megatron-LM"),
        ({"FSDP_ACTIVATION_CHECKPOINTING": "true"}, {"gradient_checkpointing": True}, "do the same: leave one out"),
    ],
)
def test_settings_that_fsdp_cannot_shard_are_refused(
    launched: Any, environment: dict[str, str], settings: dict[str, Any], told: str
) -> None:
    launched(2, **{**FSDP2, **environment})
    with pytest.raises(StepladderError, match=told):
        check_launch(SFTConfig(**settings))
    launched(2, **{**dict.fromkeys(environment, "no"), **FSDP2})
    check_launch(SFTConfig())


def test_deepspeed_must_be_installed_and_save_whole_models(launched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    launched(2, ACCELERATE_USE_DEEPSPEED="true")
    monkeypatch.setattr("stepladder.train.launch.sharding.find_spec", lambda _: None)
    with pytest.raises(StepladderError, match=r"pip install deepspeed, or launch with recipes/launch/fsdp2.yaml"):
        check_launch(SFTConfig())
    monkeypatch.setattr("stepladder.train.launch.sharding.find_spec", lambda _: object())
    check_launch(SFTConfig())
    for saves, stage in (("false", "2"), ("true", "3")):
        launched(2, ACCELERATE_DEEPSPEED_ZERO_STAGE=stage, ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL=saves)
        check_launch(SFTConfig())
    launched(2, ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL="false")
    with pytest.raises(StepladderError, match=r"zero3_save_16bit_model is not true, .* set it to true"):
        check_launch(SFTConfig())


def test_deepspeed_resumes_with_the_same_number_of_processes(launched: Any, tmp_path: Path) -> None:
    (tmp_path / "latest").touch()
    for rank in range(2):
        (tmp_path / f"rng_state_{rank}.pth").touch()
    launched(2, ACCELERATE_USE_DEEPSPEED="true")
    check_resumable(tmp_path)
    launched(4, ACCELERATE_USE_DEEPSPEED="true")
    with pytest.raises(StepladderError, match=r"the shards of 2 processes, and this launch has 4: .* Launch 2 process"):
        check_resumable(tmp_path)


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_grpo_with_vllm_needs_vllm_before_the_first_stage() -> None:
    context: Any = SimpleNamespace(agent=make_agent("prorag-brief"))
    with pytest.raises(StepladderError, match="engine: vllm of a grpo stage needs vLLM, which is not installed"):
        check_grpo(GRPOConfig(engine="vllm"), context)


def test_a_model_whose_layers_fsdp_does_not_find_is_refused(launched: Any) -> None:
    launched(2, **FSDP2)
    check_shardable(tiny_model(), "tiny")
    launched(2, FSDP_TRANSFORMER_CLS_TO_WRAP="QwenLayer")
    with pytest.raises(StepladderError, match="FSDP cannot shard model 'tiny', which has no layer QwenLayer: set"):
        check_shardable(tiny_model(), "tiny")


def test_unknown_optimizers_are_refused() -> None:
    with pytest.raises(StepladderError, match="unknown optimizer 'adam'"):
        SFTConfig.read({"optim": "adam"})
    assert "optim" in SFTConfig().inert()
    assert "optim" not in SFTConfig(optim="sgd").inert()


def test_gradient_checkpointing_allows_larger_microbatches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepladder.train.loop.microbatches._SMALL", 1)
    model, cpu = tiny_model(), torch.device("cpu")
    plain = max_microbatch_tokens(model, cpu)
    checkpointed = max_microbatch_tokens(model, cpu, gradient_checkpointing=True)
    assert plain is not None
    assert checkpointed is not None
    assert checkpointed > plain


@pytest.mark.parametrize("path", sorted(LAUNCH.glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_reads_the_launch_files(path: Path) -> None:
    config = load_config_from_file(str(path))
    assert str(config.mixed_precision) == "no"
    assert path.stem not in shipped()
    if path.stem == "fsdp2":
        assert {f"FSDP_{key.removeprefix('fsdp_').upper()}" for key in config.fsdp_config} >= set(FSDP2) - {
            "ACCELERATE_USE_FSDP"
        }
        assert config.fsdp_config["fsdp_state_dict_type"] == FSDP2["FSDP_STATE_DICT_TYPE"]
    if path.stem == "deepspeed-zero3":
        assert config.deepspeed_config["zero_stage"] == 3
        assert config.deepspeed_config["zero3_save_16bit_model"] is True
    assert f"--config_file recipes/launch/{path.name} " in path.read_text(encoding="utf-8")
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["num_machines"] == 1
