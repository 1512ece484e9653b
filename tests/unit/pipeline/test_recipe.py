"""Recipes: read from YAML, changed from the command line, and refused where they cannot be meant."""

from itertools import pairwise
from pathlib import Path

import pytest

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.pipeline.recipe import Recipe, find_recipe, load_recipe, override, shipped
from stepladder.pipeline.resources import BASE, ORACLE
from stepladder.pipeline.stages import STAGES, StageResult, StageSpec
from stepladder.pipeline.stages.prm_eval import PRMEvalConfig
from stepladder.train.prm.config import PRMConfig


class LearnConfig(Config):
    epochs: int = 3
    lr: float = 1e-3


class LookConfig(Config):
    limit: int | None = None


@pytest.fixture(autouse=True)
def _kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """`learn` makes a policy, `look` only takes one, `sort` makes and takes pairs."""
    nothing = lambda settings, context, task: StageResult()  # noqa: E731
    monkeypatch.setitem(STAGES._targets, "learn", StageSpec(LearnConfig, nothing, outputs=("policy",)))
    monkeypatch.setitem(STAGES._targets, "look", StageSpec(LookConfig, nothing, accepts_oracle=True))
    monkeypatch.setitem(STAGES._targets, "sort", StageSpec(LookConfig, nothing, inputs=("pairs",)))


TEXT = """
name: example
policy: tiny
search: {k: 1}
stages:
  before: {kind: look, limit: 5}
  learn:
  after: {kind: look}
  first: {kind: look, policy: base}
  oracle: {kind: look, policy: oracle}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "example.yaml"
    path.write_text(TEXT)
    return path


def test_each_stage_takes_the_newest_policy_before_it_unless_told_otherwise(path: Path) -> None:
    recipe = load_recipe(path)
    assert {stage.name: stage.inputs["policy"] for stage in recipe.stages} == {
        "before": BASE,
        "learn": BASE,
        "after": "learn",
        "first": BASE,
        "oracle": ORACLE,
    }
    assert recipe.shared.search.k == 1
    assert recipe.stages[0].settings == LookConfig(limit=5)


def test_a_frozen_recipe_has_every_value_and_reads_as_the_same_recipe(path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(path)
    frozen = tmp_path / "frozen.yaml"
    frozen.write_text(recipe.as_yaml())
    assert "max_steps: 12" in recipe.as_yaml()
    assert load_recipe(frozen) == recipe


def test_overrides_are_yaml_and_the_later_wins(path: Path) -> None:
    changes = ["stages.learn.epochs=7", "stages.learn.lr=1e-4", "stages.after.limit=null", "episode.max_steps=4"]
    recipe = load_recipe(path, ["stages.learn.epochs=5", *changes])
    learn = recipe.stages[1].settings
    assert learn == LearnConfig(epochs=7, lr=1e-4)
    assert recipe.shared.episode.max_steps == 4
    assert override({"sizes": 1}, "sizes=[1, 2]") == {"sizes": [1, 2]}


def test_paths_are_kept_absolute(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "questions.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    shared = load_recipe(path, ["policy=model", "data.name=questions.jsonl", "data.index=index"]).shared
    assert shared.policy == str(tmp_path / "model")
    assert shared.data.name == str(tmp_path / "questions.jsonl")
    assert shared.data.index == str(tmp_path / "index")


def test_question_files_by_split_take_the_place_of_a_data_set(path: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "q", "question": "Who?", "golden_answers": ["x"]}\n')
    data = load_recipe(path, [f"data={{train: {tmp_path}/a.jsonl, test: {tmp_path}/a.jsonl}}"]).shared.data
    assert data.name is None
    assert {split: len(questions) for split, questions in data.open().questions.items()} == {"train": 1, "test": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["seed=many"], "seed: expected an integer, found 'many'"),
        (["sede=1"], "sede: unknown key. Did you mean 'seed'?"),
        (["search.kk=1"], "search.kk: unknown key. Did you mean 'k'? Known: k"),
        (
            ["stages.learn.epoch=1"],
            "stages.learn.epoch: unknown key. Did you mean 'epochs'? Known: kind, policy, epochs",
        ),
        (["stages.lern.epochs=1"], "unknown stage in --set stages.lern.epochs=1: 'lern'. Did you mean 'learn'?"),
        (["stages.before.kind=lok"], "stages.before: unknown kind of stage 'lok'. Did you mean 'look'?"),
        (["stages.learn.epochs=true"], "stages.learn.epochs: expected a number, found true"),
        (["seed"], "--set seed: expected NAME=VALUE"),
        (["=1"], "--set =1: expected NAME=VALUE"),
        (["seed.low=1"], "--set seed.low=1: 'low' is no part of the value 3"),
        (["name=[1"], "--set name=[1: the value is not valid YAML"),
        (["name=2024-13-45"], "--set name=2024-13-45: the value is not valid YAML; put it in quotes"),
        (["policy="], "policy: expected a string, found nothing"),
        (["policy=''"], "policy: expected a string with at least 1 character"),
        (["policy=~nobody-of-that-name/model"], "~nobody-of-that-name/model: no such user"),
        (["data.name=null"], "a question file) or files by split"),
        (["stages.before.policy=learn"], "stages.before.policy: expected base or oracle"),
        (["stages.after.policy=before"], "stages.after.policy: expected base or oracle or learn"),
        (["stages.learn.policy=oracle"], "policy: expected base (an earlier stage that writes policy), found 'oracle'"),
        (["stages.after.policy=gold"], "found 'gold': renamed to 'oracle'"),
        (["batch=2"], "batch: renamed to 'batch_size'"),
        (["stages.before.kind=sort"], "stages.before: needs pairs, and no earlier stage writes any"),
        (["agent=proragg"], "unknown agent 'proragg'. Did you mean 'prorag'?"),
        (["data.train=x.jsonl", "data.name=atlas"], "data: found both the name 'atlas' and files by split"),
        (["dtype=fp16"], "dtype: expected 'auto', 'fp32' or 'bf16', found 'fp16'"),
        (["stages={}"], "stages: expected at least one stage"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, changes: list[str], message: str) -> None:
    path = tmp_path / "example.yaml"
    path.write_text("seed: 3" + TEXT)
    with pytest.raises(StepladderError) as error:
        load_recipe(path, changes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2\n", ":2: not YAML: "),
        ("seed: 1\npolicy: tiny\nseed: 2\n", ":3: not YAML: the key 'seed' is given twice"),
        ("name: x\nseed: 2024-13-45\n", "not YAML: invalid value: month must be in 1..12"),
        ("stages: &s {a: *s}\n", "not YAML: more than 10,000 values, counting those of aliases"),
        (
            "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"{c}: &{c} [{', '.join([f'*{p}'] * 10)}]\n" for p, c in pairwise("abcdefghij")),
            "not YAML: more than 10,000 values",
        ),
        ("x: !!python/object:os.system {}\n", ":1: not YAML: could not determine a constructor"),
        ("- a\n", "expected settings as `name: value`, found ['a']"),
        ("", "expected settings as `name: value`, found nothing"),
        ("seed: 1\n", "stages: is missing"),
        ("stages: {1: {kind: look}}\n", "expected a string, found 1"),
        ("stages: {Learn: }\n", "stages.Learn: a stage name has lower-case letters"),
        (
            "stages: {base: {kind: learn}}\n",
            "stages.base: a stage that trains a policy cannot be called base, oracle or server",
        ),
        ("stages: {warm: {epochs: 1}}\n", "stages.warm: unknown kind of stage 'warm'. "),
        ("stages: {learn: 5}\n", "stages.learn: expected settings as `name: value`, found 5"),
    ],
)
def test_a_file_that_is_no_recipe_says_why(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(StepladderError) as error:
        load_recipe(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)


def test_a_file_that_is_not_text_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "bytes.yaml").write_bytes(b"seed: \xff")
    for source, message in {
        tmp_path / "bytes.yaml": "not UTF-8",
        tmp_path / "none.yaml": "none.yaml does not exist. Built-in recipes: prorag-nano",
        tmp_path: "is a folder; expected a recipe file",
        "prorag-nan": "unknown recipe 'prorag-nan'. Did you mean 'prorag-nano'?",
    }.items():
        with pytest.raises(StepladderError) as error:
            load_recipe(source)
        assert message in str(error.value)


def test_a_folder_of_the_same_name_does_not_hide_a_shipped_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prorag-nano").mkdir()  # as `run prorag-nano --out prorag-nano` leaves it
    assert find_recipe("prorag-nano") == shipped()["prorag-nano"]


@pytest.mark.parametrize("name", shipped())
def test_shipped_recipes_can_be_read_by_name(name: str) -> None:
    assert find_recipe(name).is_file()
    recipe = load_recipe(name)
    assert recipe.name == name
    assert Recipe.read(recipe.plain()) == recipe


@pytest.mark.parametrize("name", shipped())
def test_reward_models_learn_from_the_policys_own_episodes_and_are_examined_on_dev_questions(name: str) -> None:
    for stage in load_recipe(name).stages:
        if isinstance(stage.settings, PRMConfig):  # pairs and values need trees
            assert (stage.settings.episodes > 0) == (stage.settings.objective not in ("pairs", "values"))
        if isinstance(stage.settings, PRMEvalConfig):
            assert stage.settings.split == "dev"


def test_the_smallest_recipe_stays_quick() -> None:
    (prm,) = [stage.settings for stage in load_recipe("prorag-nano").stages if isinstance(stage.settings, PRMConfig)]
    assert (prm.episodes, prm.num_generations) == (80, 2)
