"""Studies: what arms share is computed once a seed, arms begin from it, and differences are taken within seeds."""

import json
from io import StringIO
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from stepladder.errors import StepladderError
from stepladder.evaluate.stats import Interval
from stepladder.run.folder import RunFolder
from stepladder.studies import STUDIES, find_study
from stepladder.studies.base import Study
from stepladder.studies.plot import Point
from stepladder.studies.report import PICTURE, RESULTS, print_results, write_results
from stepladder.studies.results import over_runs, questions_to_reach, read_results
from stepladder.studies.runner import SHARED, Job, carry_out_job, log_of, recipe_of, run_study
from stepladder.train.grpo_settings import GRPOSettings


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """A model of random weights; the arms are trained for different times."""
    recipe = {
        "policy": "tiny",
        "device": "cpu",
        "episode": {"max_tokens": 4},
        "stages": {
            "before": {"kind": "eval", "limit": 3},
            "sft": {"questions": 4, "epochs": 1, "dev_questions": 2, "eval_every": 1, "batch": 4},
            "after": {"kind": "eval", "limit": 3},
        },
    }
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    arms = {"short": ("stages.sft.epochs=1",), "long": ("stages.sft.epochs=2",)}
    return Study("small", "whether longer is better", str(path), arms, "before", "sft", "after", "short")


def test_a_study_runs_every_arm_from_what_they_share(study: Study, tmp_path: Path) -> None:
    folder, told = tmp_path / "study", StringIO()
    run_study(study, folder, seeds=[0], jobs=2, console=Console(file=told, width=200))
    assert "seed-0 long: done" in told.getvalue()
    for arm in study.arms:
        run = RunFolder.open(folder / "seed-0" / arm)
        assert run.done("before") == RunFolder.open(folder / "seed-0" / SHARED).done("before"), "copied, not made again"
        assert run.done("after") is not None
        assert "before: done" in log_of(run.path).read_text()
        assert "skipped" in log_of(run.path).read_text()

    results = read_results(study, folder, [0])
    assert [arm.name for arm in results.arms] == ["short", "long"]
    assert [arm.cost["steps"] for arm in results.arms] == [1, 2]
    assert [[point.x for point in arm.curve] for arm in results.arms] == [[1], [1, 2]]
    assert results.arms[0].difference is None
    assert results.arms[1].difference == Interval(0.0, 0.0, 0.0), "random weights answer nothing"
    write_results(results, folder)
    assert json.loads((folder / RESULTS).read_text())["arms"]["long"]["by_seed"] == {"0": 0.0}
    assert "F1 on dev questions" in (folder / PICTURE).read_text()
    console = Console(file=StringIO(), width=200)
    print_results(console, results)
    assert "less short" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_run_that_fails_is_told_with_its_log(study: Study, tmp_path: Path) -> None:
    plain = recipe_of(study, 0, "long").plain()
    plain["policy"] = "no-such-model-anywhere"
    failure = carry_out_job(Job(plain, tmp_path / "run"))
    assert failure is not None
    assert "no-such-model-anywhere" in failure
    assert "no-such-model-anywhere" in log_of(tmp_path / "run").read_text()


def test_results_of_a_study_that_was_cut_say_what_is_missing(study: Study, tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match="is not a run"):
        read_results(study, tmp_path, [0])
    with pytest.raises(StepladderError, match="seeds that differ"):
        run_study(study, tmp_path, seeds=[1, 1])


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_the_arms_of_a_study_differ_in_one_stage_alone(name: str) -> None:
    study = find_study(name)
    plain = {arm: recipe_of(study, 0, arm).plain() for arm in study.arms}
    stages = {arm: each["stages"].pop(study.stage) for arm, each in plain.items()}
    assert len({json.dumps(each) for each in plain.values()}) == 1
    assert len({json.dumps(each) for each in stages.values()}) == len(study.arms)
    names = list(next(iter(plain.values()))["stages"])
    assert names.index(study.shared) < names.index(study.result)
    assert study.baseline in study.arms
    assert set(study.places) <= set(study.arms)


def test_the_arms_of_the_shipped_studies_make_as_many_updates() -> None:
    for study in STUDIES.values():
        settings = [
            stage.settings
            for arm in study.arms
            for stage in recipe_of(study, 0, arm).stages
            if isinstance(stage.settings, GRPOSettings)
        ]
        assert len({each.epochs * each.questions * each.samples / each.batch for each in settings}) == 1
        assert len({(each.batch, each.samples) for each in settings}) == 1


def test_an_unknown_study_is_named_with_the_nearest() -> None:
    with pytest.raises(StepladderError, match="Did you mean 'rl-modes'"):
        find_study("rl-mode")


def test_the_interval_over_seeds_is_student_s() -> None:
    # mean 2, standard deviation 1, standard error 1/sqrt(3), quantile 4.303
    found = over_runs([1, 2, 3])
    assert (found.mean, found.high - found.mean) == (2, pytest.approx(4.303 / 3**0.5))
    assert over_runs([0.4]) == Interval(0.4, 0.4, 0.4)
    assert over_runs([float(n) for n in range(40)]).mean == 19.5


def test_questions_to_reach_a_score() -> None:
    curve = [Point(x, y, y, y, 5) for x, y in ((32, 0.7), (64, 0.75), (128, 0.8))]
    assert questions_to_reach(0.6, curve) == 32, "from the beginning"
    assert questions_to_reach(0.8, curve) == 128
    assert questions_to_reach(0.81, curve) is None
