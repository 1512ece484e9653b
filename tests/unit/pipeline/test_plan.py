"""`stepladder plan`: hardware, work, time, what fits, and what would make it fit."""

import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepladder import cli
from stepladder.core.errors import StepladderError
from stepladder.pipeline.plan import machine_rates
from stepladder.pipeline.plan.cost_constants import constants, interpolate, measured_file, rates_of, stored_rates
from stepladder.pipeline.plan.gpu_cluster import GIB, parse_cluster
from stepladder.pipeline.plan.memory_model import Setup
from stepladder.pipeline.plan.model_shape import find_shape
from stepladder.pipeline.plan.planner import Plan, StagePlan, find_profile, plan_recipe
from stepladder.pipeline.plan.stage_work import Generation
from stepladder.pipeline.plan.time_model import generation_seconds
from stepladder.pipeline.plan.transcript_profile import count_transcripts
from stepladder.pipeline.recipe import load_recipe

RECIPES = Path(__file__).parents[3] / "recipes"
DEVICES = constants()["devices"]
MODELS = constants()["models"]
#: New tokens/s on one H200 of 64 and 1,024 transcripts with 980 tokens, 160 of them new (docs/plan.md).
MEASURED = {
    ("transformers", "smollm2-135m"): (5465, 30163),
    ("transformers", "Qwen/Qwen2.5-0.5B-Instruct"): (7344, 25195),
    ("transformers", "Qwen/Qwen2.5-1.5B-Instruct"): (5139, 14592),
    ("transformers", "Qwen/Qwen2.5-3B-Instruct"): (3671, 9064),
    ("vllm", "smollm2-135m"): (11807, 23937),
    ("vllm", "Qwen/Qwen2.5-0.5B-Instruct"): (12006, 24513),
    ("vllm", "Qwen/Qwen2.5-1.5B-Instruct"): (9231, 17429),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No rates that were measured on this machine."""
    monkeypatch.setenv("STEPLADDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def plan_of(recipe: str, gpus: str, *overrides: str, strategy: str = "fsdp") -> Plan:
    return plan_recipe(load_recipe(recipe, overrides), parse_cluster(gpus, DEVICES), strategy=strategy)


def stage_of(plan: Plan, name: str) -> StagePlan:
    return next(stage for stage in plan.stages if stage.name == name)


# --- hardware


@pytest.mark.parametrize(
    ("text", "count", "device", "gib"),
    [
        ("8xH100-80G", 8, "H100-80G", 80),
        ("h200", 1, "H200-141G", 140),
        ("4 x a100-40g", 4, "A100-40G", 40),
        ("cpu-64G", 1, "cpu", 64),
    ],
)
def test_hardware_is_a_number_and_a_name(text: str, count: int, device: str, gib: int) -> None:
    found = parse_cluster(text, DEVICES)
    assert (found.count, found.device) == (count, device)
    assert found.memory == pytest.approx(gib * GIB, rel=0.02)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8xH1000", "unknown GPU 'H1000'.*Known: H200-141G, H100-80G"),
        ("A100", "A100-80G or A100-40G"),
        ("0xH100", "expected a number and a GPU"),
        ("00xH100", "expected a number and a GPU"),
        ("8xcpu", "expected a number and a GPU"),
        ("cpu-0G", "unknown GPU 'cpu-0G'"),
        ("eight H100", "expected a number and a GPU"),
    ],
)
def test_unknown_hardware_is_an_error_that_lists_the_known(text: str, message: str) -> None:
    with pytest.raises(StepladderError, match=message):
        parse_cluster(text, DEVICES)


# --- rates


@pytest.mark.parametrize(("engine", "model"), MEASURED)
@pytest.mark.parametrize("rows", [64, 1024])
def test_the_rates_of_the_h200_are_those_that_were_measured(engine: str, model: str, rows: int) -> None:
    cluster = parse_cluster("H200", DEVICES)
    setup = Setup(cluster, rates_of(cluster), 1, sharded=False, bf16=True)
    tail = 1.4 if engine == "transformers" else 1.0  # rows differ in length; vLLM's rates include it
    work = Generation("all", rows * 160, rows * 820, 0, rows, 550, 4 * rows, 4 * rows, tail=tail)
    speed = work.written / generation_seconds(find_shape(model, MODELS), work, setup, engine, 2048)
    # Measured before the transformers engine took less time per row.
    faster = {("transformers", 64): 1.1, ("transformers", 1024): 1.3}.get((engine, rows), 1.0)
    assert 0.85 < speed / MEASURED[engine, model][rows == 1024] < 1.15 * faster


def test_a_gpu_that_was_not_measured_is_scaled_and_says_so() -> None:
    measured, scaled = (rates_of(parse_cluster(name, DEVICES)) for name in ("H200", "A100-40G"))
    assert (measured.scaled_from, scaled.scaled_from) == (None, "H200-141G")
    assert "not measured" in scaled.label()
    ratio = interpolate(scaled.training, 4096) / interpolate(measured.training, 4096)
    assert ratio == pytest.approx(312 / 989)
    slow, fast = (plan_of("prorag-qwen1.5b", name) for name in ("A100-80G", "H200"))
    assert slow.seconds()[0] > 1.5 * fast.seconds()[0]
    assert slow.seconds()[2] / slow.seconds()[0] > fast.seconds()[2] / fast.seconds()[0]


def test_measured_rates_of_this_machine_are_stored_and_used(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_SIZES", {True: (1, 4, 2, 32)}), ("_WRITTEN", 4), ("_READ", 16)):
        monkeypatch.setattr(machine_rates, name, value)
    cpu = parse_cluster("cpu-8G", DEVICES)
    before = rates_of(cpu)
    shape = find_shape("tiny", MODELS)
    for each in (shape, replace(shape, hidden=128, head_size=32)):
        machine_rates.save_rates("cpu", machine_rates.measure_rates(each, cpu))
    found = rates_of(cpu)
    assert found.source != before.source
    assert sorted(found.training) == sorted(found.generation["transformers"].flops) == [64, 128]
    assert all(value > 1e6 for value in found.training.values())
    assert found.request_seconds != before.request_seconds
    assert measured_file().is_relative_to(own_cache)
    measured_file().write_text("cpu: {generation: 3}", encoding="utf-8")
    with pytest.raises(StepladderError, match=r"plan-rates.yaml is damaged.*--measure"):
        stored_rates()


# --- work


def test_stored_lengths_are_those_of_counted_transcripts() -> None:
    recipe = load_recipe("prorag-nano")
    stored, counted = plan_of("prorag-nano", "cpu").profile, count_transcripts(recipe.shared, 24)
    assert stored.source.startswith("stored")
    assert (stored.contexts, stored.passages) == (counted.contexts, counted.passages)
    assert stored.tokens == pytest.approx(counted.tokens, rel=0.2)


def test_other_settings_are_counted() -> None:
    profile = plan_of("warmup-nano", "cpu", "agent=rag", "search.k=2").profile
    assert profile.source.startswith("counted")
    assert (profile.steps, profile.contexts) == (1.0, 1.0)


def test_the_work_is_that_of_the_recipe() -> None:
    plan = plan_of("prorag-nano", "cpu")
    grpo = stage_of(plan, "grpo").work
    assert grpo.training is not None
    assert grpo.training.updates == 20
    assert grpo.generations[0].written == 1280 * plan.profile.written
    assert grpo.scored == 1280 * plan.profile.tokens
    sft = stage_of(plan, "sft").work.training
    assert sft is not None
    assert sft.updates == 84  # as a run has
    assert stage_of(plan, "oracle").work.generations == ()
    twice = plan_of("prorag-nano", "cpu", "stages.grpo.questions=320")
    rollouts = [stage_of(each, "grpo").time.parts["rollouts"] for each in (plan, twice)]
    assert rollouts[1] == pytest.approx(2 * rollouts[0])


def test_continuations_and_the_likelihood_of_answers_are_counted() -> None:
    def grpo(*overrides: str) -> Plan:
        changes = tuple(f"stages.grpo.{each}" for each in ("mode=gain", *overrides))
        return plan_of("prorag-nano", "cpu", *changes)

    plan = grpo("potential=monte-carlo", "num_continuations=2")
    work = stage_of(plan, "grpo").work
    rollouts, continued = work.generations[:2]
    assert (rollouts.what, continued.what, work.scored) == ("rollouts", "continuations", 0)
    # Two for every state but the first, each half an episode long.
    assert continued.written == pytest.approx(rollouts.written * (plan.profile.steps - 1))
    likely = stage_of(grpo("potential=likelihood"), "grpo").work
    assert likely.generations[1].what != "continuations"
    assert likely.scored == pytest.approx(1280 * plan.profile.tokens * plan.profile.steps / 2)


def test_refills_are_a_range_and_a_token_budget_is_a_limit() -> None:
    plain, refilled = plan_of("prorag-nano", "cpu"), plan_of("prorag-nano", "cpu", "stages.grpo.refill=2")
    written = plain.profile.written
    (once, *_), (often, *_) = (stage_of(plan, "grpo").work.generations for plan in (plain, refilled))
    assert often.written == pytest.approx((1 + 0.05 + 0.05**2) * once.written)  # 5% of the groups have no signal
    assert often.low * often.written == pytest.approx(once.low * once.written), "no group needs one"
    assert often.high * often.written == pytest.approx(3 * once.high * once.written), "all do, in every round"
    budget = math.ceil(6.5 * 64 * written)
    limited = stage_of(plan_of("prorag-nano", "cpu", f"stages.grpo.token_budget={budget}"), "grpo").work
    assert limited.training is not None
    assert limited.training.updates == 7
    assert limited.generations[0].written == pytest.approx(7 * 64 * written)


def test_a_judge_and_a_served_policy_are_counted_in_calls() -> None:
    overrides = ("stages.pairs.judge=llm", "stages.pairs.llm={model: gpt-4o}")
    assert stage_of(plan_of("prorag-nano", "cpu", *overrides), "pairs").work.calls > 50
    served = stage_of(
        plan_of(
            "prorag-nano", "cpu", "server={model: m, base_url: 'http://localhost:1/v1'}", "stages.explore.policy=server"
        ),
        "explore",
    )
    assert served.work.calls > 500
    assert not served.work.generations


# --- what fits


def test_what_does_not_fit_says_which_setting_would() -> None:
    stage = stage_of(plan_of("prorag-qwen1.5b", "A10-24G", "stages.sft.lora=null"), "sft")
    assert not stage.fits
    assert "--set stages.sft.lora={}" in [each.options for each in stage.advice]
    assert stage_of(plan_of("prorag-qwen1.5b", "A10-24G"), "sft").fits


@pytest.mark.parametrize(
    ("recipe", "gpus", "overrides"),
    [
        ("prorag-qwen1.5b", "RTX4090-24G", ()),
        ("prorag-qwen3-8b", "A100-80G", ()),
        ("prorag-nano", "8xH100-80G", ()),
        ("reasonrag-qwen2.5-7b", "cpu-64G", ("vllm.gpu_memory_utilization=0.9",)),
        ("prorag-qwen1.5b", "A100-80G", ("vllm.tensor_parallel_size=2",)),
        ("prorag-qwen1.5b", "2xA100-80G", ("ray.workers=2",)),
    ],
)
def test_every_suggestion_makes_its_stage_fit(recipe: str, gpus: str, overrides: tuple[str, ...]) -> None:
    stages = [stage for stage in plan_of(recipe, gpus, *overrides).stages if not stage.fits]
    assert stages
    for stage in stages:
        assert stage.advice, stage.name
        for advice in stage.advice:
            words = advice.options.split()
            given = dict(zip(words[::2], words[1::2]))
            changes = [value for option, value in zip(words[::2], words[1::2]) if option == "--set"]
            strategy = given.get("--strategy", "fsdp")
            changed = plan_of(recipe, given.get("--gpus", gpus), *overrides, *changes, strategy=strategy)
            assert stage_of(changed, stage.name).fits, advice.options


def test_fsdp_shards_what_one_gpu_cannot_hold() -> None:
    one, eight, copies = (
        stage_of(
            plan_of("reasonrag-qwen2.5-7b", gpus, "stages.dpo.gradient_accumulation_steps=1", strategy=strategy), "dpo"
        )
        for gpus, strategy in (("H200", "fsdp"), ("8xH200", "fsdp"), ("8xH200", "ddp"))
    )
    assert (one.fits, eight.fits, copies.fits) == (False, True, False)
    assert eight.memory.fixed["optimizer"] == pytest.approx(one.memory.fixed["optimizer"] / 8)
    assert any(each.options.startswith("--gpus ") for each in one.advice)
    assert eight.time.expected < one.time.expected / 3
    assert any("--strategy fsdp" in each.options for each in copies.advice)


def test_vllm_needs_room_for_one_row_of_maximum_length() -> None:
    stage = stage_of(plan_of("prorag-qwen3-8b", "H200", "stages.grpo.vllm_gpu_memory_utilization=0.1"), "grpo")
    assert not stage.fits
    assert "one row of 40,960 tokens" in stage.problem
    assert any("vllm_gpu_memory_utilization" in each.options for each in stage.advice)


def test_transcripts_and_rows_of_vllm_are_within_the_context_window() -> None:
    recipe, cluster = load_recipe("prorag-qwen1.5b"), parse_cluster("H200", DEVICES)
    profile = find_profile(recipe)
    for longest, rows, problem in (
        (40_000, 32_768, "the longest transcript has 40,000 tokens, the context window of Qwen/Qwen2.5-1.5B-Instruct"),
        (25_000, 40_000, "vLLM's limit of 40,000 tokens is more than the context window"),
    ):
        limited = load_recipe("prorag-qwen1.5b", [f"vllm.max_model_len={rows}"])
        stage = stage_of(plan_recipe(limited, cluster, profile=replace(profile, longest=longest)), "eval-sft")
        assert stage.problem.startswith(problem)
        assert not any("vllm.max_model_len=4" in each.options for each in stage.advice)


def test_vllm_takes_its_share_before_and_after_training_too() -> None:
    """For the episodes of a reward model, and where policies are compared; not where a trainer generates by itself."""
    plan = plan_of("prorag-qwen1.5b", "H200", "stages.prm.batch_size=4")
    share = 0.85 * plan.cluster.memory
    for name, apart in (("sft", False), ("prm", True), ("rft", True)):
        memory = stage_of(plan, name).memory
        assert (memory.apart[1] > share) is apart
        assert memory.expected >= memory.apart[1]
    without = stage_of(plan_of("prorag-qwen1.5b", "H200", "stages.prm.episodes=0", "stages.prm.batch_size=4"), "prm")
    assert without.memory.apart == (0.0, 0.0)
    assert without.memory.expected < share
    small = stage_of(plan_of("prorag-qwen1.5b", "H200", "vllm.gpu_memory_utilization=0.02"), "prm")
    assert small.problem.startswith("vLLM's share of 0.02")


def test_the_first_start_of_vllm_on_a_machine_is_counted_once() -> None:
    plan = plan_of("prorag-qwen1.5b", "H200")
    usual, first = (constants()["rates"]["H200-141G"][f"{each}start_seconds"]["vllm"] for each in ("", "first_"))
    starts = [stage_of(plan, name).time.parts["start"] for name in ("eval-sft", "explore")]
    assert starts[0] == pytest.approx(starts[1] + first)
    assert starts[1] == pytest.approx(usual, abs=1.0)


@pytest.mark.parametrize(
    ("recipe", "gpus", "chosen"), [("prorag-nano", "cpu", "transformers"), ("prorag-qwen1.5b", "H200", "vllm")]
)
def test_engine_auto_is_planned_as_the_engine_that_it_chooses(recipe: str, gpus: str, chosen: str) -> None:
    auto, named = (plan_of(recipe, gpus, f"engine={engine}") for engine in ("auto", chosen))
    assert auto.fits
    assert auto.plain() == named.plain()


def test_what_workers_of_ray_and_parallel_layers_need() -> None:
    for gpus, overrides, problem in (
        ("8xH100-80G", ("ray.workers=8",), "ray.gpus_per_worker is 0: workers would compute on the CPU"),
        ("H100-80G", ("vllm.tensor_parallel_size=2",), "vllm.tensor_parallel_size 2 needs as many GPUs"),
        ("cpu", ("engine=transformers", "ray.workers=8"), ""),
    ):
        stage = stage_of(plan_of("prorag-qwen1.5b", gpus, *overrides), "eval-sft")
        assert stage.problem == problem
    pairs = ("ray.gpus_per_worker=2", "vllm.tensor_parallel_size=2")
    four = [plan_of("prorag-qwen1.5b", "8xH100-80G", *each) for each in (pairs, ("ray.workers=4", pairs[0]))]
    assert stage_of(four[0], "eval-sft").time.expected == stage_of(four[1], "eval-sft").time.expected


def test_processes_must_divide_a_batch() -> None:
    stage = stage_of(plan_of("prorag-qwen1.5b", "8xH100-80G", "stages.prm.gradient_accumulation_steps=4"), "prm")
    assert "cannot be divided by 32" in stage.problem
    assert "--set stages.prm.gradient_accumulation_steps=1" in [each.options for each in stage.advice]


@pytest.mark.parametrize("recipe", ["prorag-qwen1.5b", "prorag-qwen3-8b", "reasonrag-qwen2.5-7b"])
def test_the_times_at_the_top_of_a_recipe_are_those_of_its_plans(recipe: str) -> None:
    text = (RECIPES / f"{recipe}.yaml").read_text(encoding="utf-8").replace("\\\n#", " ")
    (unit,) = re.findall(r"# Time: about [\d.]+ (hours|minutes)", text)
    times = re.findall(r"(?:Time: about|FSDP,) ([\d.]+)", text)
    commands = re.findall(r"stepladder plan (.+)", text)
    assert len(times) == len(commands)
    for told, command in zip(times, commands, strict=True):
        name, option, gpus, *words = shlex.split(command)
        assert (name, option) == (recipe, "--gpus")
        plan = plan_of(recipe, gpus, *(word for word in words if word != "--set"))
        assert plan.fits, command
        assert plan.seconds()[0] / {"hours": 3600, "minutes": 60}[unit] == pytest.approx(float(told), rel=0.04)


# --- the command


def run(*words: str) -> int:
    return cli.main(["plan", *words])


def test_the_command_prints_every_stage_and_its_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("prorag-nano", "--gpus", "cpu") == 0
    shown = capsys.readouterr().out
    for stage in load_recipe("prorag-nano").stages:
        assert stage.name in shown
    assert "2026-11-18" in shown


def test_the_command_fails_if_a_stage_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("prorag-qwen1.5b", "--gpus", "RTX4090-24G") == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "prm does not fit: needs" in shown
    assert "--set stages.prm.gradient_accumulation_steps=8" in shown
    assert run("prorag-qwen3-8b", "--gpus", "RTX4090-24G") == 1
    assert "no settings make it fit: use another model" in capsys.readouterr().out


def test_json_has_what_the_table_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("prorag-qwen1.5b", "--gpus", "H100-80G", "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["rates"]["scaled_from"] == "H200-141G"
    total = found["start_seconds"] + sum(stage["seconds"] for stage in found["stages"])
    assert found["seconds"] == pytest.approx(total)
    assert found["seconds_low"] < found["seconds"] < found["seconds_high"]
    assert {"needed", "expected", "limit", "parts"} == set(found["stages"][0]["memory"])


@pytest.mark.parametrize("recipe", ["prorag-nano", "reasonrag-qwen2.5-7b"])
def test_given_lengths_that_are_the_stored_ones_change_nothing(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    profile = find_profile(load_recipe(recipe))
    lengths = (("--tokens-written", str(profile.written)), ("--tokens-read", str(profile.read)))
    for options in ((), lengths[0], lengths[1], (*lengths[0], *lengths[1])):
        run(recipe, "--gpus", "8xH100-80G", "--json", *options)
        found.append(json.loads(capsys.readouterr().out)["stages"])
    assert found[0] == found[1] == found[2] == found[3]


def test_longer_transcripts_need_more_memory(capsys: pytest.CaptureFixture[str]) -> None:
    run("prorag-qwen1.5b", "--gpus", "A100-40G", "--tokens-read", "8000", "--json")
    plan = json.loads(capsys.readouterr().out)
    assert plan["transcripts"]["longest"] > 8000
    assert (
        plan["stages"][0]["memory"]["needed"]
        > 2 * stage_of(plan_of("prorag-qwen1.5b", "A100-40G"), "sft").memory.needed
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("prorag-nano", "--gpus", "cpu", "--tokens-read", "0"), "--tokens-read 0: expected a number from 1 on"),
        (("prorag-nano", "--gpus", "cpu", "--tokens-written", "nan"), "--tokens-written nan: expected a number"),
        (("your-data", "--gpus", "cpu"), "questions.csv does not exist. Give them: --tokens-read N"),
        (("prorag-nano", "--gpus", "8xTPU"), "unknown GPU 'TPU'"),
        (("prorag-nano", "--gpus", "cpu", "--set", "policy=Somebody/Model-70B"), "is unknown"),
        ((), "name a recipe"),
        (("prorag-nano", "--gpus", "H100", "--measure"), "--measure measures this machine"),
    ],
)
def test_bad_input_is_an_error_in_one_line(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    assert message in " ".join(capsys.readouterr().err.split())
