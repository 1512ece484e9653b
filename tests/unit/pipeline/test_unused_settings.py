"""Settings without effect beside the others are refused with the reason; defaults never are."""

from typing import Any

import pytest
import yaml

from stepladder.core.errors import StepladderError
from stepladder.pipeline.fingerprint import all_ingredients
from stepladder.pipeline.recipe import Recipe, load_recipe, shipped
from stepladder.pipeline.resources import SharedConfig
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stages import get_stage
from stepladder.reporting.studies import find_study
from stepladder.reporting.studies.study_arms import prepare, recipe_of
from stepladder.train.grpo.config import GRPOConfig

LLM = {"model": "m", "url": "http://localhost:1/v1"}

CASES: list[tuple[str, dict[str, Any], str, str]] = [
    # stage, settings, the settings without effect, the reason
    ("grpo", {"mode": "outcome", "process_weight": 0.5}, "process_weight", "mode: outcome (it scores no steps)"),
    ("grpo", {"mode": "outcome", "process_weight": 0.3}, "process_weight", "mode: outcome"),  # the default, but given
    ("grpo", {"mode": "outcome", "normalize": "peers"}, "normalize", "mode: outcome"),
    ("grpo", {"mode": "outcome", "scorer": "gold"}, "scorer", "mode: outcome"),
    ("grpo", {"mode": "outcome", "min_std": 0.3}, "min_std", "mode: outcome"),
    ("grpo", {"mode": "outcome", "rewards": {"step_format_bonus": 1}}, "rewards.step_format_bonus", "mode: outcome"),
    ("grpo", {"mode": "outcome", "monitors": {"f1_drop": 0.1}}, "monitors.f1_drop", "mode: outcome"),
    ("grpo", {"mode": "tree", "process_weight": 0.5}, "process_weight", "mode: tree (it scores no steps)"),
    ("grpo", {"mode": "dual", "tree": {"stems": 3}}, "tree.stems", "mode: dual (it samples no trees)"),
    ("grpo", {"tree": {"credit": "gains"}}, "tree.credit", "mode: dual"),
    ("grpo", {"mode": "process", "grade_answers": False}, "grade_answers", "mode: process (every step is graded)"),
    ("grpo", {"mode": "process", "process_weight": 1.0}, "process_weight", "mode: process"),
    ("grpo", {"mode": "process", "rewards": {"min_f1": 0.5}}, "rewards.min_f1", "mode: process (steps are rewarded"),
    ("grpo", {"mode": "process", "rewards": {"format_bonus": 0}}, "rewards.format_bonus", "mode: process"),
    ("grpo", {"process_weight": 0, "normalize": "peers"}, "normalize", "process_weight: 0"),
    ("grpo", {"scorer": "gold", "retokenize": True}, "retokenize", "scorer: gold"),
    ("grpo", {"vllm_gpu_memory_utilization": 0.5}, "vllm_gpu_memory_utilization", "engine: transformers"),
    ("grpo", {"vllm_max_model_length": 512}, "vllm_max_model_length", "engine: transformers"),
    (
        "grpo",
        {"engine": "vllm", "top_p": 0.9, "vllm_importance_sampling_correction": True},
        "vllm_importance_sampling_correction",
        "a temperature or top_p other than 1",
    ),
    (
        "grpo",
        {"engine": "vllm", "vllm_importance_sampling_correction": False, "vllm_importance_sampling_clip_max": 2},
        "vllm_importance_sampling_clip_max",
        "vllm_importance_sampling_correction: false",
    ),
    ("grpo", {"monitors": {"kl": 0.5}}, "monitors.kl", "beta: 0"),
    (
        "grpo",
        {"temperature": 0.8, "monitors": {"logprob_gap": 1}},
        "monitors.logprob_gap",
        "a temperature other than 1",
    ),
    ("grpo", {"monitors": {"f1_drop": None, "step_score_rise": 0.1}}, "step_score_rise", "f1_drop: null"),
    ("grpo", {"dev_questions": 0, "eval_on_start": True}, "eval_on_start", "dev_questions: 0 (nothing is evaluated)"),
    ("prm", {"objective": "values", "margin": 0.5}, "margin", "objective: values (they are for pairs)"),
    ("prm", {"objective": "values", "center_rewards_coefficient": 0.1}, "center_rewards_coefficient", "values"),
    ("prm", {"objective": "verdicts", "margin": 1}, "margin", "objective: verdicts"),
    ("prm", {"objective": "values", "chains": 4}, "chains", "objective: values (verdicts label them)"),
    ("prm", {"objective": "outcome", "episodes": 4}, "episodes", "objective: outcome"),
    ("prm", {"objective": "verdicts", "corruptions": 4}, "corruptions", "chains: 0"),
    ("prm", {"dense": 0.5}, "dense", "objective: pairs (they are for trees)"),
    ("prm", {"dev_share": 0.2}, "dev_share", "objective: pairs"),
    ("prm", {"objective": "verdicts", "num_generations": 4}, "num_generations", "episodes: 0 (nothing is sampled)"),
    (
        "sft",
        {"num_generations": 8},
        "num_generations",
        "source: gold (the oracle replays each gold decomposition once)",
    ),
    ("sft", {"source": "gold", "temperature": 0.5}, "temperature", "source: gold"),
    ("sft", {"source": "mined", "keep": 2, "min_f1": 0.5}, "keep, min_f1", "source: mined"),
    ("sft", {"source": "trees", "questions": 40}, "questions", "source: trees (the best branch of each tree is used)"),
    ("sft", {"source": "bootstrap", "teacher_model": "m"}, "teacher_model", "source: bootstrap"),
    ("rft", {"threshold": None, "retokenize": True}, "retokenize", "threshold: null"),
    ("pairs", {"judge": "gold", "margin": 0.1}, "margin", "judge: gold, which compares no values"),
    ("pairs", {"judge": "llm", "llm": LLM, "margin": 0.1}, "margin", "judge: llm"),
    ("pairs", {"judge": "llm", "llm": {**LLM, "score_margin": 0.2}}, "score_margin", "mode: choice"),
    ("pairs", {"judge": "llm", "llm": {**LLM, "mode": "score", "order": "made"}}, "order", "mode: score"),
    ("rank", {"judge": "llm", "llm": {**LLM, "mode": "score", "order": "made"}}, "order", "mode: score"),
    (
        "rank",
        {"judge": "llm", "llm": {**LLM, "mode": "value", "score_margin": 0.2}},
        "llm.score_margin",
        "no preferences",
    ),
    ("explore", {"evaluate": "llm", "llm": {**LLM, "order": "made"}}, "order", "mode: value"),
    ("explore", {"evaluate": "gold", "keep_rollouts": True}, "keep_rollouts", "evaluate: gold"),
    ("rft", {"reencode": True}, "reencode", "sampled_by: policy"),
    ("sft", {"reencode": True}, "reencode", "source: gold"),
    ("explore", {"evaluate": "gold", "rollout_temperature": 1}, "rollout_temperature", "evaluate: gold"),
    ("explore", {"preset": "prorag", "tolerance": 0.1}, "tolerance", "patience: null"),
    ("eval", {"temperature": 0.5, "guide": {"n": 4}}, "temperature", "a guide"),
    ("eval", {"guide": {"beams": 4}}, "beams", "the strategy actions (it is for beam)"),
]


@pytest.mark.parametrize(("kind", "settings", "names", "reason"), CASES, ids=lambda value: str(value)[:40])
def test_a_setting_without_effect_is_refused(kind: str, settings: dict[str, Any], names: str, reason: str) -> None:
    with pytest.raises(StepladderError) as caught:
        get_stage(kind).config.read(settings, f"r.yaml: stages.{kind}")
    message = str(caught.value)
    assert f": {names} ha" in message
    assert f"no effect {'in' if 'always' in reason else 'with'} " in message
    assert reason in message
    assert "\n" not in message
    assert message.endswith(("remove it", "remove them"))


def test_python_gets_the_same_error() -> None:
    with pytest.raises(ValueError, match="process_weight has no effect with mode: outcome"):
        GRPOConfig(mode="outcome", process_weight=0.5)


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "outcome"},
        {"mode": "tree", "tree": {"stems": 3}},
        {"mode": "process", "normalize": "peers"},
        {"mode": "dual", "process_weight": 0.5, "grade_answers": False},
    ],
)
def test_defaults_and_used_settings_are_accepted(settings: dict[str, Any]) -> None:
    config = GRPOConfig.read(settings)
    assert GRPOConfig.read(config.effective()) == config


@pytest.mark.parametrize("name", shipped())
def test_recipes_in_full_can_be_read_again(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.left_out == ()
    assert Recipe.read(recipe.plain()) == recipe


def test_an_override_may_take_the_effect_of_settings_in_the_file() -> None:
    recipe = load_recipe("prorag-nano", ["stages.grpo.mode=outcome"])
    assert recipe.left_out == (
        "stages.grpo.process_weight",
        "stages.grpo.normalize",
        "stages.grpo.min_std",
        "stages.grpo.rewards.step_format_bonus",
    )
    (grpo,) = (stage.settings for stage in recipe.stages if stage.name == "grpo")
    assert grpo == GRPOConfig.read({**grpo.effective(), "mode": "outcome"})
    assert Recipe.read(recipe.plain()) == recipe
    with pytest.raises(StepladderError, match="process_weight has no effect with mode: outcome"):
        load_recipe("prorag-nano", ["stages.grpo.mode=outcome", "stages.grpo.process_weight=0.5"])
    with pytest.raises(StepladderError, match="process_weight has no effect with mode: outcome"):
        load_recipe("search-r1-nano", ["stages.grpo.process_weight=0.5"])


def test_an_override_of_a_study_may_concern_one_arm() -> None:
    study = prepare(find_study("rl-modes"), ["stages.grpo.tree.credit=gains"])
    recipes = {arm: recipe_of(study, 0, arm) for arm in ("tree", "outcome")}
    grpo = {arm: next(stage.settings for stage in each.stages if stage.name == "grpo") for arm, each in recipes.items()}
    assert grpo["tree"].tree.credit == "gains"
    assert grpo["outcome"].tree.credit == "steps"
    assert "stages.grpo.tree.credit" in recipes["outcome"].left_out


def test_run_folders_that_list_every_setting_are_read(tmp_path: Any) -> None:
    recipe = Recipe.read({"stages": {"grpo": {"mode": "outcome"}}})
    plain = recipe.plain()
    (stage,) = recipe.stages
    plain["stages"]["grpo"] |= stage.settings.model_dump(mode="json")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(plain))
    found = RunFolder(tmp_path).recipe()
    assert found == recipe
    assert all_ingredients(found) == all_ingredients(recipe)


def test_settings_of_vllm_need_vllm() -> None:
    for engine in ("vllm", "auto"):
        shared = SharedConfig.read({"engine": engine, "vllm": {"max_model_len": 4096, "tensor_parallel_size": 2}})
        assert SharedConfig.read(shared.plain()) == shared
    assert "vllm" not in SharedConfig().plain()
    with pytest.raises(StepladderError, match="the settings of vllm have no effect with engine: transformers"):
        SharedConfig.read({"vllm": {"max_model_len": 4096}})
    with pytest.raises(StepladderError, match=r"vllm\.gpu_memory_utilization: expected less than or equal to 1"):
        SharedConfig.read({"engine": "vllm", "vllm": {"gpu_memory_utilization": 85}})


def test_how_vllm_is_set_up_leaves_finished_stages_as_they_are() -> None:
    plain = GRPOConfig(engine="vllm")
    others = GRPOConfig(engine="vllm", vllm_max_model_length=512)
    assert others.inert() == plain.inert()
    assert {"vllm_max_model_length", "vllm_importance_sampling_mode"} <= plain.inert()
    assert (
        "vllm_importance_sampling_mode"
        not in GRPOConfig(engine="vllm", vllm_importance_sampling_mode="token_mask").inert()
    )
