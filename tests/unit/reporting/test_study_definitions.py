"""Studies as files: what a definition may say, what fits the recipe, and what is registered before the first run."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from stepladder.core.errors import StepladderError
from stepladder.reporting.studies import Study, built_in_studies, find_study
from stepladder.reporting.studies.study_arms import prepare, recipe_of, shared_recipe
from stepladder.reporting.studies.study_registration import FILE, read_registration, register
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.trainer import schedule
from tests.support import shell as shell_fixture
from tests.support.shell import Shell

shell = shell_fixture.shell

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
    assert str(prepared(tmp_path, estimand=estimand).estimand) == "dev_f1 of sft, mean of its last 3 checkpoints"
    refused(
        tmp_path, "the arm short has no dev evaluations", estimand=estimand, overrides={"stages.sft.dev_questions": 0}
    )


def test_what_the_arms_set_cannot_be_set_for_all(tmp_path: Path) -> None:
    study = find_study(saved(tmp_path))
    for change in ("stages.sft.num_train_epochs=3", "seed=4"):
        with pytest.raises(StepladderError, match="the study small sets this itself"):
            prepare(study, [change])
    assert recipe_of(prepare(study, ["stages.sft.questions=9"]), 0, "long").stages[1].settings.questions == 9


def test_studies_are_found_by_name_or_path(tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match="Did you mean 'rl-modes'"):
        find_study("rl-mode")
    with pytest.raises(StepladderError, match=r"study file .*none.yaml does not exist. Built-in studies: data-eff"):
        find_study(tmp_path / "none.yaml")


# --- the built-in studies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(built_in_studies()))
def test_built_in_studies_fit_their_recipes_and_state_a_budget(name: str) -> None:
    study = prepare(find_study(name))
    assert study.name == name
    assert study.budget is not None
    assert study.smallest_effect is not None
    assert len(study.seed_list) >= 5


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
    before = (tmp_path / "out" / FILE).read_text()
    with pytest.raises(StepladderError, match=f"registered with another definition: .*{named}"):
        register(prepared(tmp_path, **changes), tmp_path / "out")
    assert (tmp_path / "out" / FILE).read_text() == before


def test_a_changed_recipe_is_refused(tmp_path: Path) -> None:
    register(prepared(tmp_path), tmp_path / "out")
    changed = {**RECIPE, "stages": {**RECIPE["stages"], "sft": {"questions": 5}}}  # type: ignore[dict-item]
    with pytest.raises(StepladderError, match=r"recipe\.stages\.sft\.questions: 4 -> 5"):
        register(prepare(find_study(saved(tmp_path, changed))), tmp_path / "out")


def test_seeds_are_added_with_a_reason_that_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    register(prepared(tmp_path), out)
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


def test_runs_before_the_registration_are_refused(tmp_path: Path) -> None:
    run = tmp_path / "out" / "seed-0" / "short"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    with pytest.raises(StepladderError, match="was not registered before they started"):
        register(prepared(tmp_path), tmp_path / "out")


def test_the_command_refuses_a_changed_study(shell: Shell, tmp_path: Path) -> None:
    register(prepared(tmp_path), tmp_path / "out" / "small")
    said = shell("study", saved(tmp_path, question="Is it?"), "--out", tmp_path / "out", code=2)
    assert "is registered with another definition: question: Is longer better? -> Is it?" in said
