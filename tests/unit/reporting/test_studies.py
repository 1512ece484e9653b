"""Studies: what arms share is computed once a seed, arms begin from it, and differences are taken within seeds."""

import json
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from rich.console import Console

from stepladder.core.errors import StepladderError
from stepladder.core.trace import StopReason
from stepladder.evaluation.statistics import Interval
from stepladder.pipeline.run_folder import RunFolder
from stepladder.reporting.charts.figures import Point
from stepladder.reporting.studies import STUDIES, find_study
from stepladder.reporting.studies.study_job import Job
from stepladder.reporting.studies.study_report import PLOT, RESULTS, print_results, write_results
from stepladder.reporting.studies.study_results import (
    curve_differences,
    mean_over_runs,
    questions_to_reach,
    read_results,
)
from stepladder.reporting.studies.study_runner import COMMAND, SHARED, jobs_of, recipe_of, run_jobs, run_study
from stepladder.reporting.studies.study_spec import Study
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.trainer import schedule


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """A model of random weights; the arms are trained for different times."""
    recipe = {
        "policy": "tiny",
        "agent": "prorag-brief",
        "device": "cpu",
        "search": {"k": 1},
        "episode": {"max_tokens": 4},
        "stages": {
            "before": {"kind": "eval", "limit": 3},
            "sft": {"questions": 4, "num_train_epochs": 1, "dev_questions": 2, "eval_steps": 1, "batch_size": 4},
            "after": {"kind": "eval", "limit": 3},
        },
    }
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    arms = {"short": ("stages.sft.num_train_epochs=1",), "long": ("stages.sft.num_train_epochs=2",)}
    return Study("small", "whether longer is better", str(path), arms, "before", "sft", "after", {"long": "short"})


@pytest.mark.slow
def test_a_study_runs_every_arm_from_what_they_share(study: Study, tmp_path: Path) -> None:
    folder, told = tmp_path / "study", StringIO()
    run_study(study, folder, seeds=[0], jobs=2, console=Console(file=told, width=200))
    assert "seed-0 long: done" in told.getvalue()
    for job in jobs_of(study, folder, 0)[1:]:
        run = RunFolder.open(job.folder)
        assert run.done("before") == RunFolder.open(folder / "seed-0" / SHARED).done("before"), "copied, not made again"
        assert run.done("after") is not None
        assert "before: done" in job.log.read_text()
        assert "skipped" in job.log.read_text()

    results = read_results(study, folder, [0])
    assert [arm.name for arm in results.arms] == ["short", "long"]
    assert [arm.cost["steps"] for arm in results.arms] == [1, 2]
    assert [[point.x for point in arm.curve] for arm in results.arms] == [[1], [1, 2]]
    assert results.arms[0].difference is None
    assert results.arms[1].differences == {0: 0.0}, "random weights answer nothing"
    write_results(results, folder)
    plain = json.loads((folder / RESULTS).read_text())["arms"]["long"]
    assert plain["by_seed"] == {"0": 0.0}
    assert plain["f1"] == {"mean": 0.0, "low": None, "high": None}, "of one run no interval is known"
    assert "F1 on dev questions" in (folder / PLOT).read_text()


def waiting_for(tmp_path: Path, study: Study, script: str) -> tuple[list[Job], list[str]]:
    """The jobs of a study, and a command that carries out none of them but does what a script says."""
    return jobs_of(study, tmp_path, 0), [sys.executable, "-c", f"import os, sys, time; line = input(); {script}"]


def test_a_run_that_is_killed_is_told_and_the_others_go_on(study: Study, tmp_path: Path) -> None:
    work, command = waiting_for(tmp_path, study, "os.kill(os.getpid(), 9) if 'seed-0/long' in line else None")
    told = StringIO()
    with pytest.raises(StepladderError, match=r"1 of 3 runs failed; seed-0 long: killed by SIGKILL"):
        run_jobs(work, 1, Console(file=told, width=300), command)
    assert "seed-0 short: done" in told.getvalue()


def test_a_run_that_fails_is_told_with_its_reason_and_its_arms_are_not_begun(study: Study, tmp_path: Path) -> None:
    work, command = waiting_for(tmp_path, study, "print('error: no such model'); sys.exit(1)")
    told = StringIO()
    with pytest.raises(StepladderError, match="1 of 3 runs failed; seed-0 shared: no such model"):
        run_jobs(work, 3, Console(file=told, width=300), command)
    assert work[0].log.read_text() == "error: no such model\n"
    assert not work[1].log.exists()
    assert "seed-0 short: left out, it needs" in told.getvalue()


def test_an_interrupt_ends_the_runs_too(study: Study, tmp_path: Path) -> None:
    """As Ctrl-C does: each hears that the study has ended, and stops."""
    mark = tmp_path / "heard"
    work, command = waiting_for(tmp_path, study, f"sys.stdin.read(); open({str(mark)!r}, 'w').close(); sys.exit(130)")

    class Interrupted(Console):
        def print(self, *_: object, **__: object) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs(work, 1, Interrupted(), command)
    assert mark.exists()


def test_a_command_starts_once_what_it_needs_is_there_and_is_not_repeated(tmp_path: Path) -> None:
    def job(name: str, *needs: str) -> Job:
        paths = tuple(tmp_path / each / "DONE" for each in needs)
        folder = tmp_path / name
        return Job({}, folder, arguments=("--version",), needs=paths, done=folder / "DONE", title=name)

    made = [sys.executable, "-c", "import json; os = __import__('os'); os.makedirs(json.loads(input())['folder'])"]
    work, told = [job("second", "first"), job("first"), job("never", "missing")], StringIO()
    run_jobs(work, {"runs": 2}, Console(file=told, width=300), made)
    lines = [line.split(" (")[0] for line in told.getvalue().splitlines() if ": starts," not in line]
    assert lines == ["first: done", "second: done", f"never: left out, it needs {tmp_path / 'missing' / 'DONE'}"]
    run_jobs(work[:2], 2, Console(file=(again := StringIO())), made)
    assert again.getvalue() == ""


def test_each_group_of_jobs_has_its_own_limit(tmp_path: Path) -> None:
    work = [Job({}, tmp_path / f"{group}{n}", group=group, title=f"{group}{n}") for group in "ab" for n in range(2)]
    command = [sys.executable, "-c", "print(__import__('os').environ['STEPLADDER_GPU_SHARE'])"]
    told = StringIO()
    run_jobs(work, {"a": 1, "b": 2}, Console(file=told, width=300), command)
    first = [line.split(":")[0] for line in told.getvalue().splitlines()[:3]]
    assert first == ["a0", "b0", "b1"]
    assert work[0].log.read_text() == "0.3333\n"


@pytest.mark.slow
def test_a_command_of_stepladder_is_a_job(tmp_path: Path) -> None:
    job = Job({}, tmp_path / "a", arguments=("--version",), done=tmp_path / "DONE")
    run_jobs([job], 1, Console(file=StringIO()))
    assert job.log.read_text().startswith("stepladder ")
    assert (tmp_path / "DONE").exists()
    with pytest.raises(StepladderError, match=r"1 of 1 runs failed; .*No such command 'no-such'"):
        run_jobs([replace(job, arguments=("no-such",), done=None)], 1, Console(file=StringIO()))


def test_a_job_tells_why_it_cannot_be_done(study: Study, tmp_path: Path) -> None:
    job = jobs_of(study, tmp_path, 0)[0]
    job = replace(job, recipe={**job.recipe, "policy": "./no-such-model"})  # a hub name would be asked for
    with pytest.raises(StepladderError, match=r"1 of 1 runs failed; seed-0 shared: .*no-such-model"):
        run_jobs([job], 1, Console(file=StringIO()))


def test_a_job_stops_when_its_study_is_gone(study: Study, tmp_path: Path) -> None:
    job = jobs_of(study, tmp_path, 0)[0]
    told = subprocess.run(COMMAND, input=job.to_json(), capture_output=True, text=True, check=False)  # closes its input
    assert (told.returncode, told.stdout) == (130, "interrupted\n")


def test_differences_are_taken_within_a_seed_and_between_the_right_arms(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # F1 of two questions by seed and arm.
    scores = {
        "seed-0/short": (0.0, 0.5),
        "seed-0/long": (1.0, 0.5),
        "seed-1/short": (1.0, 1.0),
        "seed-1/long": (1.0, 0.5),
    }

    def scores_in(folder: Path) -> list[SimpleNamespace]:
        name = "/".join(folder.parts[-4:-2])
        found = enumerate(scores[name])
        return [SimpleNamespace(question_id=str(n), stop=StopReason.ANSWERED, f1=f1) for n, f1 in found]

    def record_of(run: Path, stage: str) -> SimpleNamespace:
        f1 = float(np.mean(scores.get("/".join(run.parts[-2:]), (0.25,))))
        return SimpleNamespace(summary={"f1": {"mean": f1}, "steps": 3})

    monkeypatch.setattr("stepladder.reporting.studies.study_results.load_scores", scores_in)
    monkeypatch.setattr("stepladder.reporting.studies.study_results._record", record_of)
    monkeypatch.setattr("stepladder.reporting.studies.study_results._dev_curve", lambda _: {})
    results = read_results(study, tmp_path, [0, 1])
    short, long = results.arms
    assert dict(short.f1) == {0: 0.25, 1: 1.0}
    assert dict(long.differences) == {0: 0.5, 1: -0.25}
    assert long.difference is not None
    assert long.difference.mean == 0.125
    told = StringIO()
    print_results(Console(file=told, width=80), results)
    assert "long vs. short" in told.getvalue()
    assert "+0.500" in told.getvalue()
    assert not curve_differences(results), "these arms are no points of curves"
    curved = replace(study, points={"short": ("little", 1.0), "long": ("much", 1.0)})
    over = curve_differences(replace(results, study=curved))
    assert {pair: found.mean for pair, found in over.items()} == {"much - little": 0.125}
    assert write_results(results, tmp_path) is None, "without dev scores there is nothing to draw"


def test_what_the_arms_set_cannot_be_set_for_all(study: Study, tmp_path: Path) -> None:
    for change in ("stages.sft.num_train_epochs=3", "seed=4"):
        with pytest.raises(StepladderError, match="the study small sets this itself"):
            run_study(study, tmp_path, seeds=[0], overrides=[change])


def test_results_of_a_study_that_was_cut_say_what_is_missing(study: Study, tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match="is not a run"):
        read_results(study, tmp_path, [0])
    with pytest.raises(StepladderError, match="distinct seeds"):
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
    assert {*study.against, *study.against.values()} <= set(study.arms)
    assert set(study.points) in (set(), set(study.arms))


def test_the_arms_of_the_shipped_studies_make_as_many_updates() -> None:
    for study in STUDIES.values():
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


def test_an_unknown_study_is_named_with_the_nearest() -> None:
    with pytest.raises(StepladderError, match="Did you mean 'rl-modes'"):
        find_study("rl-mode")


def test_the_interval_over_seeds_is_student_s() -> None:
    # mean 2, standard deviation 1, standard error 1/sqrt(3), quantile 4.303
    found = mean_over_runs([1, 2, 3])
    assert (found.mean, found.high - found.mean) == (2, pytest.approx(4.303 / 3**0.5))
    assert mean_over_runs([0.4]) == Interval(0.4, 0.4, 0.4)
    many = mean_over_runs([float(n) for n in range(40)])  # 39 degrees of freedom: 2.023
    assert (many.high - many.mean) / (np.std(range(40), ddof=1) / 40**0.5) == pytest.approx(2.023, abs=0.005)


def test_questions_to_reach_a_score() -> None:
    curve = [Point(x, y, y, y, 5) for x, y in ((32, 0.7), (64, 0.75), (128, 0.8))]
    assert questions_to_reach(0.6, curve) == 32, "from the beginning"
    assert questions_to_reach(0.8, curve) == 128
    assert questions_to_reach(0.81, curve) is None
