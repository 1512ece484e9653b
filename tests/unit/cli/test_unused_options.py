"""An option without effect is an error that says why, unless a run supplies it."""

from pathlib import Path

import pytest

from stepladder.cli.agent_options import AgentOptions, AgentSetup, SamplingOptions
from stepladder.cli.recipes import extend_recipe
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.run_folder import RunFolder
from tests.support.shell import Shell, shell

__all__ = ["shell"]

ORACLE = "with the oracle, which generates no text: add --model NAME or --run DIR"
URL = "--base-url http://localhost:1/v1 --model m"


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("ask --temperature 0.5", ORACLE),
        ("eval --temperature 0", ORACLE),
        ("eval --top-p 0.9", ORACLE),
        ("eval --top-p 0.9 --guide vote", ORACLE),
        ("ask --max-tokens 9", ORACLE),
        ("ask --dtype bf16", ORACLE),
        ("ask --device cpu", ORACLE),
        ("eval --batch-size 8 --engine oracle", ORACLE),
        ("ask --api chat", "without a server: add --base-url URL"),
        ("eval --concurrency 32", "without a server: add --base-url URL"),
        ("ask --timeout 5 q", "without a server: add --base-url URL"),
        ("ask --api completions --model tiny", "without a server: add --base-url URL"),
        ("serve-agent --concurrency 4 --model tiny", "without a server: add --base-url URL"),
        ("ask --base-url http://x/v1 --model tiny --engine transformers", "with --engine transformers: leave out one"),
        (f"ask --batch-size 4 {URL}", "with a server: it is a setting of models in this process"),
        (f"ask --dtype bf16 {URL}", "with a server: it is a setting of models in this process"),
        ("ask --max-model-len 512 --model tiny", "without vLLM: add --engine vllm"),
        ("eval --tensor-parallel-size 2 --engine oracle", "without vLLM: add --engine vllm"),
        (f"ask --gpu-memory-utilization 0.5 {URL}", "without vLLM: add --engine vllm"),
        ("ask --top-p 0.9 --model tiny", "at temperature 0, which is greedy: add --temperature 1"),
        ("eval --top-p 0.9 --temperature 0 --model tiny", "at temperature 0, which is greedy: add --temperature 1"),
        ("eval --overwrite --limit 1", "without --out DIR: nothing is saved"),
    ],
)
def test_an_option_without_effect_is_refused(typed: str, why: str, shell: Shell) -> None:
    told = shell(*typed.split(), code=2)
    assert told.startswith(f"error: {typed.split()[1]} has no effect {why}")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    "typed",
    [
        {"guide": "vote", "temperature": 0.5},
        {"guide": "nano", "device": "cpu", "dtype": "fp32"},
        {"model": "tiny", "temperature": 0.5, "top_p": 0.9, "max_tokens": 4, "device": "cpu", "batch_size": 2},
        {"model": "tiny", "guide": "vote", "top_p": 0.9},
        {"model": "tiny", "top_p": 0.9, "port": 8001},
        {"model": "m", "base_url": "http://localhost:1/v1", "api": "completions", "concurrency": 2, "max_tokens": 4},
        {"model": "tiny", "engine": "vllm", "max_model_len": 512, "tensor_parallel_size": 2},
        {"model": "tiny", "engine": "auto", "gpu_memory_utilization": 0.5},
        {"overwrite": True, "out": Path("x")},
    ],
)
def test_an_option_with_effect_is_not(typed: dict[str, object]) -> None:
    of_sampling = {name: typed.pop(name) for name in ("guide", "temperature", "top_p") if name in typed}
    others = {name: typed.pop(name) for name in ("port", "out", "overwrite") if name in typed}
    options, sampling = AgentOptions(**typed), SamplingOptions(**of_sampling)  # type: ignore[arg-type]
    assert AgentSetup.from_options(None, options, sampling, {}, **others).options == options


def test_settings_of_a_run_are_not_typed(tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "run").mkdir()
    shared = {"device": "cpu", "dtype": "fp32", "batch_size": 2, "episode": {"max_tokens": 4}}
    RunFolder(tmp_path / "run").add_session({})
    stages = {"oracle": {"kind": "eval", "policy": "oracle"}}
    RunFolder(tmp_path / "run").write_recipe(Recipe.read({"name": "mine", **shared, "stages": stages}))
    assert shell.json("eval", "--run", tmp_path / "run", "--engine", "oracle", "--limit", 1)["dtype"] == "fp32"


def test_a_server_that_is_typed_keeps_the_spending_limit_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    RunFolder(tmp_path / "run").add_session({})
    server = {"model": "old", "base_url": "http://localhost:1/v1", "budget": "2Mtok", "timeout": 9}
    stages = {"eval": {"policy": "server"}}
    RunFolder(tmp_path / "run").write_recipe(Recipe.read({"name": "mine", "server": server, "stages": stages}))
    served = {"model": "m", "base_url": ["http://localhost:2/v1"]}
    recipe = extend_recipe(tmp_path / "run", "explore", {"kind": "explore", "policy": "server"}, None, served=served)
    assert recipe.shared.server is not None
    assert (recipe.shared.server.model, recipe.shared.server.base_url) == ("m", ("http://localhost:2/v1",))
    assert (recipe.shared.server.budget, recipe.shared.server.timeout) == ("2Mtok", 9)
