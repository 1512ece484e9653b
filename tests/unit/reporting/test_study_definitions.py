"""Studies as files: what a definition may say, what fits the recipe, and what is registered before the first run."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from stepladder.core.errors import StepladderError
from stepladder.data import load_dataset, questions_with_relations
from stepladder.reporting.studies import Study, built_in_studies, find_study
from stepladder.reporting.studies.study_arms import prepare, recipe_of, shared_recipe
from stepladder.reporting.studies.study_registration import FILE, read_registration, register
from stepladder.reporting.studies.study_statistics import power
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.trainer import schedule
from tests.support import ROOT, shell as shell_fixture
from tests.support.shell import Shell

shell = shell_fixture.shell

NANO = ROOT / "src" / "stepladder" / "models" / "nano"
RECIPE = {
    "policy": "tiny",
    "device": "cpu",
    "stages": {
        "before": {"kind": "eval", "limit": 3},
        "sft": {"questions": 4, "num_train_epochs": 1},
        "after": {"kind": "eval", "limit": 3},
        "late": {"kind": "eval", "limit": 4},
    },
}
STUDY: dict[str, Any] = {
    "question": "Is longer better?",
    "recipe": "small-recipe.yaml",
    "arms": {"short": None, "long": {"stages.sft.num_train_epochs": 2}},
    "baseline": "short",
    "estimand": {"stage": "after"},
    "last": "after",
}


def saved(folder: Path, recipe: dict[str, Any] = RECIPE, **changes: Any) -> Path:
    """The file of a study with its recipe beside it. A change to None leaves the key out."""
    (folder / "small-recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    path = folder / "small.yaml"
    kept = {name: value for name, value in {**STUDY, **changes}.items() if value is not None}
    path.write_text(yaml.safe_dump(kept, sort_keys=False))
    return path


def prepared(folder: Path, **changes: Any) -> Study:
    return prepare(find_study(saved(folder, **changes)))


def refused(folder: Path, message: str, **changes: Any) -> None:
    with pytest.raises(StepladderError, match=message):
        prepared(folder, **changes)


# --- the definition -----------------------------------------------------------------------------------------------


def test_a_study_is_a_file_with_its_recipe_beside_it(tmp_path: Path) -> None:
    study = prepared(tmp_path)
    assert (study.name, study.shared, study.last) == ("small", "before", "after"), "shared: what does not differ"
    assert study.contrasts == {"long - short": ("long", "short")}, "by default with the baseline"
    assert study.seed_list == (0, 1, 2, 3, 4)
    long = recipe_of(study, 3, "long")
    assert [stage.name for stage in long.stages] == ["before", "sft", "after"]
    assert (long.seed, long.stages[1].settings.num_train_epochs) == (3, 2)
    assert [stage.name for stage in shared_recipe(study, 3).stages] == ["before"]


def test_contrasts_are_named_pairs_of_arms(tmp_path: Path) -> None:
    study = prepared(tmp_path, contrasts={"time": "long - short"}, seeds=[4, 7])
    assert study.contrasts == {"time": ("long", "short")}
    assert study.seed_list == (4, 7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baseline": None}, r"small.yaml: baseline: is missing"),
        ({"baseline": "shrt"}, r"small.yaml: baseline: unknown arm 'shrt'. Did you mean 'short'"),
        ({"budgets": {}}, r"small.yaml: budgets: unknown key. Did you mean 'budget'"),
        ({"budget": {"token": "equal"}}, r"budget.token: unknown key. Did you mean 'tokens'"),
        ({"budget": {"tokens": "even"}}, r"budget.tokens: expected 'equal' or a number, found 'even'"),
        ({"contrasts": {"x": "long - shrt"}}, r"contrasts.x: unknown arm 'shrt'. Did you mean 'short'"),
        ({"contrasts": {"x": "long-short"}}, r"contrasts.x: expected two arms as `first - second`, found 'long-short'"),
        ({"contrasts": {"x": "long - long"}}, r"contrasts.x: expected two arms, found long twice"),
        ({"arms": {"short": {}}}, r"arms: expected two or more to compare, found 1"),
        ({"arms": {"short": {}, "shared": {"search.k": 2}}}, r"'shared' cannot be the name of an arm"),
        ({"arms": {"short": {}, "x": {"seed": 4}}}, r"arms.x: the seed of a run is set by `seeds`"),
        ({"overrides": {"stages": {"sft": {}}}}, r"overrides: expected settings such as stages.grpo.mode"),
        ({"seeds": [1, 1]}, r"seeds: expected distinct seeds, found \[1, 1\]"),
        ({"seeds": 0}, r"seeds: expected"),
        ({"exclusions": "outliers"}, r"exclusions: expected 'none', found 'outliers'"),
        ({"points": {"short": ["a", 1]}}, r"points: expected \[curve, x\] of every arm"),
    ],
)
def test_mistakes_in_a_definition_are_explained(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    refused(tmp_path, message, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"estimand": {"stage": "aftr"}}, r"estimand.stage, .* unknown stage 'aftr'. Did you mean 'after'"),
        ({"estimand": {"stage": "before"}}, r"estimand: the stage before is the same in all arms"),
        ({"estimand": {"stage": "late"}}, r"unknown stage 'late'.* Known: after, before, sft"),
        ({"estimand": {"stage": "after", "metric": "f2"}}, r"unknown metric 'f2'"),
        ({"estimand": {"stage": "after", "last_checkpoints": 3}}, r"last_checkpoints needs a stage that trains"),
        ({"shared": "sft"}, r"the arm long changes a stage .*: stages.sft.num_train_epochs: 1.0 -> 2.0"),
        ({"shared": "before", "arms": {"short": None, "k": {"search.k": 2}}}, r"arm k changes .*: search.k: 3 -> 2"),
        ({"arms": {"short": None, "same": {"stages.sft.questions": 4}}}, r"the arms short and same are the same"),
        ({"arms": {"short": None, "x": {"stages.stf.questions": 4}}}, r"unknown stage .* Did you mean 'sft'"),
    ],
)
def test_what_does_not_fit_the_recipe_is_explained(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    refused(tmp_path, message, **changes)


def test_arms_that_differ_everywhere_share_nothing(tmp_path: Path) -> None:
    assert prepared(tmp_path, arms={"short": None, "k": {"search.k": 2}}).shared is None


def test_checkpoints_without_dev_evaluations_have_no_mean(tmp_path: Path) -> None:
    estimand = {"stage": "sft", "metric": "dev_f1", "last_checkpoints": 3}
    often = {"stages.sft.eval_steps": 1}
    assert (
        str(prepared(tmp_path, estimand=estimand, overrides=often).estimand)
        == "dev_f1 of sft, mean of its last 3 checkpoints"
    )
    refused(
        tmp_path, "the arm short has no dev evaluations", estimand=estimand, overrides={"stages.sft.dev_questions": 0}
    )


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ({"stages.after.limit": 5}, "stages.after.limit: 3 -> 5"),
        ({"stages.after.split": "dev"}, 'stages.after.split: "?test"? -> "?dev'),
        ({"data.world_seed": 1}, "data.world_seed: 0 -> 1"),
        ({"data.holdout": 9}, "data.holdout: 0 -> 9"),
    ],
)
def test_all_arms_are_measured_on_the_same_questions(tmp_path: Path, override: dict[str, Any], named: str) -> None:
    arms = {"short": None, "other": override}
    refused(tmp_path, f"the arm other is measured on other questions than short: .*{named}", arms=arms)


def test_arms_may_differ_in_how_they_answer_the_questions(tmp_path: Path) -> None:
    arms = {"short": None, "other": {"stages.after.temperature": 1, "data.warmup": 9, "search.k": 2}}
    assert list(prepared(tmp_path, arms=arms).arms) == ["short", "other"]


def test_dev_questions_that_are_measured_are_the_same_in_all_arms(tmp_path: Path) -> None:
    estimand = {"stage": "sft", "metric": "dev_f1", "last_checkpoints": 1}
    arms = {"short": None, "other": {"stages.sft.dev_questions": 7}}
    refused(tmp_path, "stages.sft.dev_questions: 60 -> 7", arms=arms, estimand=estimand)
    assert prepared(tmp_path, arms=arms).shared == "before", "unless they only select a checkpoint"


def test_too_few_checkpoints_are_found_before_training(tmp_path: Path) -> None:
    estimand = {"stage": "sft", "metric": "dev_f1", "last_checkpoints": 2}
    refused(tmp_path, "in the arm short the stage sft has at most 1 evaluations", estimand=estimand)
    assert prepared(tmp_path, estimand=estimand, overrides={"stages.sft.eval_on_start": True}).last == "after"
    grpo = {"mode": "outcome", "questions": 32, "num_generations": 4, "batch_size": 16, "eval_steps": 5}
    stages = {"grpo": {**grpo, "num_iterations": 2}, "after": {"kind": "eval"}}  # 8 batches, 16 updates
    recipe = {**RECIPE, "stages": stages}
    arms = {"short": None, "long": {"stages.grpo.num_train_epochs": 2}}
    for count in (4, 5):
        path = saved(tmp_path, recipe, estimand={**estimand, "stage": "grpo", "last_checkpoints": count}, arms=arms)
        if count == 4:
            prepare(find_study(path))
        else:
            with pytest.raises(StepladderError, match="in the arm short the stage grpo has at most 4 evaluations"):
                prepare(find_study(path))


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("by_hops", r"expected by_hops\.2\.f1, .*found 'by_hops'"),
        ("by_hops.2", r"found 'by_hops\.2'"),
        ("by_hops.two.f1", r"found 'by_hops\.two\.f1'"),
        ("f1.median", r"expected f1, or f1\. and one of mean, low, high, found 'f1\.median'"),
        ("failed.mean", r"expected failed, found 'failed\.mean'"),
    ],
)
def test_a_metric_that_is_no_number_of_an_evaluation_is_refused(tmp_path: Path, metric: str, message: str) -> None:
    refused(tmp_path, message, estimand={"stage": "after", "metric": metric})


@pytest.mark.parametrize("metric", ["em.mean", "by_hops.2.f1", "validity"])
def test_numbers_of_an_evaluation_have_dots(tmp_path: Path, metric: str) -> None:
    assert prepared(tmp_path, estimand={"stage": "after", "metric": metric}).estimand.metric == metric


def test_unknown_dev_metrics_are_refused(tmp_path: Path) -> None:
    estimand = {"stage": "sft", "metric": "dev_f2", "last_checkpoints": 1}
    refused(tmp_path, "unknown metric 'dev_f2'", estimand=estimand)


def test_checkpoints_are_measured_on_the_split_of_the_metric(tmp_path: Path) -> None:
    grpo = {"mode": "outcome", "questions": 32, "num_generations": 4, "batch_size": 16, "eval_steps": 5}
    recipe = {**RECIPE, "stages": {"grpo": {**grpo, "eval_split": "test"}, "after": {"kind": "eval"}}}
    arms = {"short": None, "long": {"stages.grpo.num_train_epochs": 2}}
    for metric in ("test_f1", "dev_f1"):
        path = saved(tmp_path, recipe, estimand={"stage": "grpo", "metric": metric, "last_checkpoints": 1}, arms=arms)
        if metric == "test_f1":
            prepare(find_study(path))
        else:
            with pytest.raises(StepladderError, match=r"dev_f1, but the arm short evaluates checkpoints on test"):
                prepare(find_study(path))


def test_numbers_by_hops_are_of_an_evaluation_of_the_arms(tmp_path: Path) -> None:
    assert prepared(tmp_path, by_hops="after").by_hops == "after"
    for stage in ("before", "sft"):
        refused(tmp_path, f"by_hops: expected an evaluation .* of the arms, found {stage}", by_hops=stage)
    refused(tmp_path, "unknown stage 'afer'", by_hops="afer")


def test_what_the_arms_set_cannot_be_set_for_all(tmp_path: Path) -> None:
    study = find_study(saved(tmp_path))
    for change in ("stages.sft.num_train_epochs=3", "seed=4"):
        with pytest.raises(StepladderError, match="the study small sets this itself"):
            prepare(study, [change])
    assert recipe_of(prepare(study, ["stages.sft.questions=9"]), 0, "long").stages[1].settings.questions == 9


def test_studies_are_found_by_name_or_path(tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match="Did you mean 'rl-modes'"):
        find_study("rl-mode")
    with pytest.raises(StepladderError, match=r"study file .*none.yaml does not exist. Built-in studies: beta-sweep"):
        find_study(tmp_path / "none.yaml")


# --- the built-in studies -----------------------------------------------------------------------------------------


#: The studies of the papers' experiments: the stages that the arms share, the last stage, and the number of arms.
OF_PAPERS = {
    "prm-validation": ("pairs", "eval-prm", 3),
    "prm-calibration": ("pairs", "eval-prm", 4),
    "label-noise": ("pairs", "eval-prm", 5),
    "label-noise-rl": ("pairs", "grpo", 3),
    "world-shift": ("prm", "eval-prm", 2),
    "relation-shift": ("pairs", "eval-prm", 2),
    "critic-labels": ("pairs", "guided", 5),
    "prm-scaling": ("eval-sft", "eval-prm", 5),
    "inference-scaling": ("eval-prm", "guided", 14),
    "verifier-transfer": ("eval-strong", "eval-prm", 2),
    "verifier-transfer-guided": ("eval-strong", "guided", 2),
    "refinement": ("eval-prm", "eval-rft", 3),
    "cold-start": ("eval-prm", "grpo", 4),
    "beta-sweep": ("eval-prm", "grpo", 5),
    "credit": ("eval-prm", "grpo", 6),
    "process-only": ("eval-prm", "grpo", 5),
}


def built_in(name: str) -> Study:
    """A built-in study, prepared."""
    return prepare(find_study(name))


@pytest.mark.parametrize("name", sorted(built_in_studies()))
def test_built_in_studies_fit_their_recipes_and_state_a_budget(name: str) -> None:
    study = built_in(name)
    assert study.name == name
    assert study.budget is not None
    assert study.smallest_effect is not None
    assert len(study.seed_list) >= 5


def test_every_study_of_the_papers_is_known() -> None:
    others = {"data-efficiency", "qa-pairs", "rl-modes", "step-rewards", "warmup-epochs"}
    assert set(built_in_studies()) == {*OF_PAPERS, *others}


@pytest.mark.parametrize("name", OF_PAPERS)
def test_the_studies_of_the_papers_share_what_they_should_and_have_enough_seeds(name: str) -> None:
    study = built_in(name)
    assert (study.shared, study.last, len(study.arms)) == OF_PAPERS[name]
    assert len(study.seed_list) >= 8
    if study.last == "grpo":  # the standard deviation of dual - outcome in docs/studies/data-efficiency.json
        assert study.smallest_effect is not None
        assert power(len(study.seed_list), study.smallest_effect, 0.029, 0.05 / len(study.contrasts)) > 0.8


@pytest.mark.parametrize("name", OF_PAPERS)
def test_no_stage_of_a_study_of_a_paper_selects_by_the_questions_that_it_is_measured_on(name: str) -> None:
    study = built_in(name)
    for arm in study.arms:
        for stage in recipe_of(study, 0, arm).stages:
            if study.last == "grpo" and stage.name == "grpo":
                assert isinstance(stage.settings, GRPOConfig)
                assert (stage.settings.dev_questions, stage.settings.eval_steps) == (300, 5), "all of Atlas"
                assert study.estimand.last_checkpoints == 3, "whichever checkpoint was kept"
            else:
                assert not getattr(stage.settings, "dev_questions", 0)
                assert getattr(stage.settings, "split", None) != "dev" or stage.kind == "prm-eval"
                if stage.name == study.estimand.stage:
                    assert getattr(stage.settings, "split", None) == "test"


@pytest.mark.parametrize("name", ["beta-sweep", "cold-start", "credit", "label-noise-rl"])
def test_the_arms_of_a_study_with_a_token_budget_all_spend_it(name: str) -> None:
    study = built_in(name)
    assert study.budget is not None
    assert study.budget.amounts() == {"tokens_sampled": "equal"}
    settings = [stage.settings for arm in study.arms for stage in recipe_of(study, 0, arm).stages]
    trained = [each for each in settings if isinstance(each, GRPOConfig)]
    assert {each.token_budget for each in trained} == {700_000}
    for each in trained:
        # data-efficiency: 4,096 episodes of outcome rewards had 0.56 million tokens; shorter ones may have half.
        assert each.num_train_epochs * each.questions * each.num_generations >= 2 * 5_100
        assert each.lr_scheduler_type == "constant"
        assert not each.monitors.stop


def test_reward_models_of_more_questions_make_as_many_updates() -> None:
    study = built_in("prm-scaling")
    for arm, (_, questions) in study.points.items():
        stages = {stage.name: stage.settings for stage in recipe_of(study, 0, arm).stages}
        prm: Any = stages["prm"]
        explore: Any = stages["explore"]
        assert (explore.questions, prm.episodes, prm.chains) == (questions,) * 3
        assert prm.num_train_epochs * questions == 480


def test_the_relations_that_are_examined_are_those_that_one_arm_has_not_seen() -> None:
    study = built_in("relation-shift")
    left_out: dict[str, set[str]] = {}
    for arm in study.arms:
        stages = {stage.name: stage.settings for stage in recipe_of(study, 0, arm).stages}
        prm: Any = stages["prm"]
        examined: Any = stages["eval-prm"]
        left_out[arm] = set(prm.leave_out_relations)
        assert (set(examined.relations) == left_out[arm]) is (arm == "held-out")
    assert not left_out["trained"] & left_out["held-out"]
    train = {question.id for question in load_dataset("atlas").split("train")}
    seen, held_out = (len(questions_with_relations("atlas", left_out[arm]) & train) for arm in study.arms)
    assert abs(seen - held_out) < 0.1 * held_out, "as much data for both"


def test_guided_inference_is_compared_at_equal_numbers_of_samples() -> None:
    study = built_in("inference-scaling")
    assert study.budget is not None
    assert (study.budget.evaluation, study.budget.between) == (True, "contrasts")
    guides = {}
    for arm in study.arms:
        evaluated: Any = recipe_of(study, 0, arm).stages[-1].settings
        guides[arm] = evaluated.guide
    assert guides["greedy"] is guides["one-sample"] is None
    assert {each.temperature for each in guides.values() if each is not None} == {0.5}
    equal = [pair for pair in study.contrasts.values() if "greedy" not in pair]
    assert len(equal) == 8
    assert all(guides[first].n == guides[second].n and guides[second].by == "vote" for first, second in equal)
    assert all(study.points[arm][1] == guide.n for arm, guide in guides.items() if guide is not None)


@pytest.mark.parametrize("name", ["data-efficiency", "rl-modes"])
def test_the_arms_of_a_study_of_grpo_differ_in_grpo_alone_and_make_as_many_updates(name: str) -> None:
    study = prepare(find_study(name))
    plain = {arm: recipe_of(study, 0, arm).plain() for arm in study.arms}
    stages = {arm: each["stages"].pop("grpo") for arm, each in plain.items()}
    assert len({json.dumps(each) for each in plain.values()}) == 1
    assert len({json.dumps(each) for each in stages.values()}) == len(study.arms)
    settings = [
        stage.settings
        for arm in study.arms
        for stage in recipe_of(study, 0, arm).stages
        if isinstance(stage.settings, GRPOConfig)
    ]
    episodes = [each.num_train_epochs * each.questions * each.num_generations for each in settings]
    assert len({count / each.batch_size for count, each in zip(episodes, settings, strict=True)}) == 1
    assert len({(each.batch_size, each.num_generations) for each in settings}) == 1
    for each in settings:
        order, _ = schedule(each.questions, each, seed=0)
        assert len(set(order)) == each.questions, "every question is played"


# --- the registration ---------------------------------------------------------------------------------------------


def started(folder: Path) -> None:
    """As if a run of a study had started."""
    run = folder / "seed-0" / "short"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")


def test_a_study_is_registered_once(tmp_path: Path) -> None:
    first = register(prepared(tmp_path), tmp_path / "out")
    assert register(prepared(tmp_path), tmp_path / "out") == first == read_registration(tmp_path / "out")
    assert first.definition["recipe"]["stages"]["sft"]["questions"] == 4, "with its recipe"
    assert first.definition["seeds"] == [0, 1, 2, 3, 4]
    register(prepare(find_study(saved(tmp_path)), ["device=cpu", "batch_size=2"]), tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"question": "Is it?"}, "question: Is longer better\\? -> Is it\\?"),
        ({"smallest_effect": 0.1}, "smallest_effect: null -> 0.1"),
        ({"estimand": {"stage": "after", "metric": "em"}}, "estimand.metric: f1 -> em"),
        ({"overrides": {"stages.sft.questions": 5}}, "overrides.stages.sft.questions: nothing -> 5"),
        ({"seeds": 4}, r"seeds: \[0, 1, 2, 3, 4\] -> \[0, 1, 2, 3\]"),
        ({"seeds": [1, 2, 3, 4, 5, 6], "amended": "luck"}, "seeds: "),
        ({"seeds": 7, "smallest_effect": 0.1, "amended": "more"}, "smallest_effect: null -> 0.1"),
    ],
)
def test_a_changed_definition_is_refused_and_the_change_named(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    register(prepared(tmp_path), tmp_path / "out")
    started(tmp_path / "out")
    before = (tmp_path / "out" / FILE).read_text()
    with pytest.raises(StepladderError, match=f"registered with another definition: .*{named}"):
        register(prepared(tmp_path, **changes), tmp_path / "out")
    assert (tmp_path / "out" / FILE).read_text() == before


def test_a_definition_may_change_until_a_run_has_started(tmp_path: Path) -> None:
    out = tmp_path / "out"
    register(prepared(tmp_path), out)
    changed = register(prepared(tmp_path, smallest_effect=0.1), out)
    assert (changed.definition["smallest_effect"], changed.amendments) == (0.1, ())
    assert read_registration(out) == changed
    (out / "seed-0").mkdir()
    (out / "seed-0" / "short.json").write_text("{}")  # a result that was kept without its run
    with pytest.raises(StepladderError, match="registered with another definition"):
        register(prepared(tmp_path), out)


def test_a_changed_recipe_is_refused(tmp_path: Path) -> None:
    register(prepared(tmp_path), tmp_path / "out")
    started(tmp_path / "out")
    changed = {**RECIPE, "stages": {**RECIPE["stages"], "sft": {"questions": 5}}}  # type: ignore[dict-item]
    with pytest.raises(StepladderError, match=r"recipe\.stages\.sft\.questions: 4 -> 5"):
        register(prepare(find_study(saved(tmp_path, changed))), tmp_path / "out")


def test_seeds_are_added_with_a_reason_that_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    register(prepared(tmp_path), out)
    started(out)
    with pytest.raises(StepladderError, match="say why in the file of the study"):
        register(prepared(tmp_path, seeds=7), out)
    first = register(prepared(tmp_path, seeds=7, amended="the interval was too wide"), out)
    assert [(each.why, len(each.seeds_before), len(each.seeds)) for each in first.amendments] == [
        ("the interval was too wide", 5, 7)
    ]
    assert register(prepared(tmp_path, seeds=7, amended="the interval was too wide"), out) == first
    with pytest.raises(StepladderError, match="say why"):  # the same reason does not do twice
        register(prepared(tmp_path, seeds=9, amended="the interval was too wide"), out)
    second = register(prepared(tmp_path, seeds=9, amended="still"), out)
    assert [len(each.seeds) for each in second.amendments] == [7, 9]
    assert second.sha256 == first.sha256, "of the first definition"
    with pytest.raises(StepladderError, match="undo the change"):
        register(prepared(tmp_path), out)


def test_a_model_is_registered_by_its_content(shell: Shell, tmp_path: Path) -> None:
    first, second = (tmp_path / name / "model" for name in ("one", "two"))
    for folder in (first, second):
        shutil.copytree(NANO, folder)
    study, out = find_study(saved(tmp_path)), tmp_path / "out" / "small"
    registered = register(prepare(study.model_copy(update={"policy": str(first)})), out)
    assert registered.definition["policy"].startswith("content ")
    started(out)
    register(prepare(study.model_copy(update={"policy": str(second)})), out)  # elsewhere, on another machine
    assert recipe_of(prepare(study.model_copy(update={"policy": str(second)})), 0, "short").shared.policy == str(second)
    (second / "config.json").write_text((second / "config.json").read_text() + "\n")
    said = shell("study", saved(tmp_path), "--model", second, "--out", tmp_path / "out", code=2)
    assert "is registered with another definition: policy: content" in said
    shutil.rmtree(first)  # results can be shown without it
    assert "unfinished: seed 0 short" in shell("study", saved(tmp_path), "--show", "--out", tmp_path / "out")
    said = shell("study", saved(tmp_path, smallest_effect=0.1), "--show", "--out", tmp_path / "out", code=2)
    assert "is registered with another definition: smallest_effect: null -> 0.1" in said


def test_runs_before_the_registration_are_refused(tmp_path: Path) -> None:
    started(tmp_path / "out")
    with pytest.raises(StepladderError, match="was not registered before they started"):
        register(prepared(tmp_path), tmp_path / "out")


def test_the_command_refuses_a_changed_study(shell: Shell, tmp_path: Path) -> None:
    register(prepared(tmp_path), tmp_path / "out" / "small")
    started(tmp_path / "out" / "small")
    said = shell("study", saved(tmp_path, question="Is it?"), "--out", tmp_path / "out", code=2)
    assert "is registered with another definition: question: Is longer better? -> Is it?" in said
