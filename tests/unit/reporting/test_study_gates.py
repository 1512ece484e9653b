"""Gates and slots of a study: what must be reached before an arm is begun, and what still fits into the time left."""

import json
import shutil
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from stepladder import cli
from stepladder.core.errors import StepladderError
from stepladder.reporting.studies import Study, find_study
from stepladder.reporting.studies.jobs.study_job import Job
from stepladder.reporting.studies.study_arms import prepare
from stepladder.reporting.studies.study_gates import FILE
from stepladder.reporting.studies.study_registration import definition, hash_of, read_registration
from stepladder.reporting.studies.study_run_result import run_folder
from stepladder.reporting.studies.study_runner import run_jobs, run_study
from stepladder.reporting.studies.study_slot import Slot
from stepladder.reporting.studies.study_spec import SHARED
from tests.support import ROOT
from tests.support.forked_jobs import forked_jobs
from tests.support.small_study import small_study, small_study_file


def gated(folder: Path, **gates: dict[str, Any]) -> Study:
    """The small study with gates; its shared stage is an evaluation of random weights, with an F1 of 0."""
    path = small_study_file(folder)
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "gates": gates}, sort_keys=False))
    return prepare(find_study(path))


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ({"stage": "before", "metric": "f1"}, "expected `least`, `most` or both"),
        ({"stage": "before", "metric": "f1", "least": 1, "most": 0}, "expected least <= most, found 1 and 0"),
        ({"stage": "sft", "metric": "dev_f1", "least": 0}, "sft is no stage that all arms share: they share before"),
        ({"stage": "before", "metric": "f2", "least": 0}, "unknown metric 'f2'"),
        ({"stage": "before", "metric": "f1 - em - em", "least": 0}, "expected one number, or two as `first - second`"),
    ],
)
def test_a_gate_that_cannot_be_measured_is_explained(tmp_path: Path, gate: dict[str, Any], message: str) -> None:
    with pytest.raises(StepladderError, match=message):
        gated(tmp_path, warm=gate)


def test_a_study_without_gates_is_defined_as_before_there_were_any(tmp_path: Path) -> None:
    registered = read_registration(ROOT / "docs" / "studies" / "process-only")
    assert hash_of(definition(prepare(find_study("process-only")))) == registered.sha256
    first, second = ({"stage": "before", "metric": "f1", "least": least} for least in (0.1, 0.2))
    hashes = {hash_of(definition(gated(tmp_path, **gates))) for gates in ({}, {"warm": first}, {"warm": second})}
    assert len(hashes) == 3, "a gate is part of the definition"


@pytest.mark.slow
def test_no_arm_is_begun_behind_a_closed_gate(tmp_path: Path) -> None:
    closed = {"stage": "before", "metric": "f1", "least": 0.25, "most": 0.45}
    study, folder = (
        gated(tmp_path, warm=closed, searches={"stage": "before", "metric": "f1 - em", "most": 0.5}),
        tmp_path,
    )
    for _ in range(2):  # and no second start begins one
        message = r"warm is 0\.000 with seed 0, expected at least 0\.25 and at most 0\.45"
        with forked_jobs(), pytest.raises(StepladderError, match=message):
            run_study(study, folder, jobs=2, console=Console(file=StringIO()))
    assert not run_folder(folder, 0, "short").exists()
    assert json.loads((folder / "seed-0" / FILE).read_text()) == {"warm": 0.0, "searches": 0.0}


# --- slots


def job(folder: Path) -> Job:
    return Job({"name": "x", "stages": {}}, folder)


def slot_of(study: Study, folder: Path, minutes: float) -> Slot:
    return Slot(minutes, study, folder, jobs=2)


def test_a_run_is_begun_if_earlier_ones_say_that_it_fits(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    shared, short, long = (job(run_folder(tmp_path, 0, name)) for name in (SHARED, "short", "long"))
    slot = slot_of(study, tmp_path, 1)
    assert all(map(slot.fits, (shared, short, long))), "nothing is known yet"
    slot.took(short, 70)
    assert not any(map(slot.fits, (shared, short, long))), "an unknown arm is taken to be like the others"
    slot = slot_of(study, tmp_path, 1)
    slot.took(shared, 20)
    slot.took(short, 30)
    assert all(map(slot.fits, (shared, short, long)))
    slot.took(long, 40)
    assert slot.fits(long)
    assert not slot.fits(shared), "its arms would not be finished"


def test_a_seed_is_begun_if_its_arms_fit_behind_those_of_other_seeds(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    slot = slot_of(study, tmp_path, 2)  # two jobs, two arms
    slot.took(job(run_folder(tmp_path, 0, SHARED)), 20)
    for arm in ("short", "long"):
        slot.took(job(run_folder(tmp_path, 0, arm)), 30)
    first, second, third = (job(run_folder(tmp_path, seed, SHARED)) for seed in (1, 2, 3))
    slot.began(first)
    assert slot.fits(second), "20 s, and two rounds of 30 s"
    slot.began(second)
    assert not slot.fits(third), "20 s, and three rounds of 30 s, with a reserve of a tenth"
    for arm in ("short", "long"):
        slot.took(job(run_folder(tmp_path, 1, arm)), 30)
    assert slot.fits(third)
    slot.began(third)
    fourth, fifth = (job(run_folder(tmp_path, seed, SHARED)) for seed in (4, 5))
    assert not slot.fits(fourth)
    slot.failed(third)
    assert slot.fits(fourth), "arms of a seed whose shared stages failed are not waited for"
    slot.failed(job(run_folder(tmp_path, 2, "short")))
    (tmp_path / "seed-4").mkdir()
    (tmp_path / "seed-4" / "short.json").touch()
    slot.began(fourth)
    assert slot.fits(fifth), "a kept result is not waited for: two arms are left, one of each seed"


def test_finished_runs_tell_how_long_one_takes(tmp_path: Path) -> None:
    study = prepare(find_study("process-only"))
    folder = ROOT / "docs" / "studies" / "process-only"
    fitting = [slot_of(study, folder, minutes).fits(job(run_folder(folder, 5, SHARED))) for minutes in (3, 8)]
    assert fitting == [False, True], "58 s, and three times 85 s for five arms, two at a time"


def test_at_the_end_of_a_slot_runs_are_stopped_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = StringIO()
    study = small_study(tmp_path)
    slot = slot_of(study, tmp_path, 1 / 60)
    waiting = ("bash", "-c", "read -r; read -r")  # until its input is closed
    run_jobs([job(tmp_path / "a"), job(tmp_path / "b")], 1, Console(file=told, width=200), waiting, slot=slot)
    assert "1 runs were stopped, 2 of 2 are left. The same command resumes" in told.getvalue()


@pytest.mark.slow
def test_a_slot_that_is_too_short_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "docs" / "studies" / "process-only", tmp_path / "process-only")
    begun: Callable[..., Any] = lambda *_: pytest.fail("begun")  # noqa: E731
    monkeypatch.setattr("stepladder.reporting.studies.study_runner.job_processes", begun)
    assert cli.main(["study", "process-only", "--slot", "1", "--keep", "results", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "the slot of 1 minutes has no room: 5 of 5 are left" in " ".join(shown.err.split())
    assert "gain-prm-centered is higher than scores" in " ".join(shown.out.split())
