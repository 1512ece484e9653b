"""Studies as they run: what arms share is computed once per seed, arms start from it, every run is a process."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from stepladder.core.errors import StepladderError
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.run_folder import RunFolder, StageRecord
from stepladder.reporting.studies import Study
from stepladder.reporting.studies.jobs.job_processes import COMMAND
from stepladder.reporting.studies.jobs.study_job import Job
from stepladder.reporting.studies.study_arms import recipe_of
from stepladder.reporting.studies.study_ledger import _cpu_seconds
from stepladder.reporting.studies.study_report import PLOT, RESULTS, print_results, write_results
from stepladder.reporting.studies.study_results import read_results
from stepladder.reporting.studies.study_run_result import RunReader
from stepladder.reporting.studies.study_runner import jobs_of, run_jobs, run_study
from stepladder.reporting.studies.study_spec import SHARED, Budget, Estimand
from tests.support.forked_jobs import forked_jobs
from tests.support.small_study import small_study


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """A model of random weights; the arms are trained for different times."""
    return small_study(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    """The study, and the folder of its runs."""
    folder, told = tmp_path_factory.mktemp("finished"), StringIO()
    study = small_study(folder)
    assert len(read_results(study, folder / "study").unfinished) == 2
    with forked_jobs():
        run_study(study, folder / "study", jobs=2, console=Console(file=told, width=200))
    assert "seed-0 long: done" in told.getvalue()
    return study, folder / "study"


@pytest.mark.slow
def test_a_study_runs_every_arm_from_what_they_share(finished: tuple[Study, Path]) -> None:
    study, folder = finished
    for job in jobs_of(study, folder, 0)[1:]:
        run = RunFolder.open(job.folder)
        assert run.done("before") == RunFolder.open(folder / "seed-0" / SHARED).done("before"), "copied, not made again"
        assert run.done("after") is not None
        assert "before: done" in job.log.read_text()
        assert "skipped" in job.log.read_text()

    results = read_results(study, folder)
    assert [arm.name for arm in results.arms] == ["short", "long"]
    assert results.unfinished == ()
    assert results.start == {0: 0.0}, "of the stage before, which is an evaluation too"
    assert [[point.x for point in arm.curve] for arm in results.arms] == [[1], [1, 2]]
    assert results.contrasts[0].differences == {0: 0.0}, "random weights answer nothing"
    short, long = (arm.ledger for arm in results.arms)
    assert (short.updates, long.updates) == (1, 2)
    assert (short.questions, short.answers, short.decompositions) == (4, 4, 4), "demonstrations of the oracle"
    assert (short.judge_calls, short.tokens_read, short.tokens_sampled, short.gpu_seconds) == (0, 0, 0, 0)
    assert short.tokens_trained is not None
    assert long.tokens_trained == 2 * short.tokens_trained
    assert short.cpu_seconds is not None
    assert short.cpu_seconds > 0
    assert results.shared is not None
    assert results.shared.questions == 0, "an evaluation is not counted"
    counting = study.model_copy(update={"budget": Budget(tokens="equal", evaluation=True)})
    counted = [arm.ledger for arm in read_results(counting, folder).arms]
    assert all(each.tokens_read and each.tokens_sampled for each in counted), "that of the estimand, if told so"
    assert results.arm("long").by_hops["1"]["questions"] >= 1
    write_results(results, folder)
    plain = json.loads((folder / RESULTS).read_text())
    assert plain["arms"]["long"]["by_seed"] == {"0": 0.0}
    assert plain["arms"]["long"]["low"] is None, "of one run no interval is known"
    assert plain["provenance"]["runs"]["seed-0/long"]["hardware"][0].startswith("cpu, ")
    assert plain["provenance"]["seconds"] > 0
    assert "F1 on dev questions" in (folder / PLOT).read_text()
    told = StringIO()
    print_results(Console(file=told, width=120), results)
    assert "gate warm: 0.000 (at most 0.45)" in told.getvalue()
    assert "after by number of hops, means over seeds" in told.getvalue()
    assert "budget not kept: long: 2 updates instead of 1 (+100%)" in told.getvalue()
    assert "selection: sft keeps its best checkpoint by F1 on dev questions" in told.getvalue()


@pytest.mark.slow
def test_results_are_enough_to_go_on(finished: tuple[Study, Path], tmp_path: Path) -> None:
    study, whole = finished
    folder = tmp_path / "study"
    shutil.copytree(whole, folder)
    quiet = Console(file=StringIO())
    run_study(study, folder, keep="results", console=quiet)  # nothing is left to run
    assert sorted(path.name for path in (folder / "seed-0").iterdir()) == [
        "gates.json", "long.json", "long.log", "shared.log", "short.json", "short.log"
    ]  # fmt: skip
    kept, complete = read_results(study, folder), read_results(study, whole)
    assert kept.unfinished == ()
    assert (kept.start, kept.contrasts) == (complete.start, complete.contrasts)
    assert kept.arms == complete.arms
    assert kept.sessions == complete.sessions
    assert kept.seconds == pytest.approx(complete.seconds)

    (folder / "seed-0" / "long.json").unlink()  # as if the time of the first machine had ended before
    assert [each.arm for each in read_results(study, folder).unfinished] == ["long"]
    assert [job.folder.name for job in jobs_of(study, folder, 0)] == [SHARED, "long"]
    with forked_jobs():
        run_study(study, folder, keep="results", console=quiet)
    again = read_results(study, folder)
    assert again.unfinished == ()
    assert again.arm("long").values == kept.arm("long").values
    assert not jobs_of(study, folder, 0)


@pytest.mark.slow
def test_a_run_whose_number_cannot_be_read_is_unfinished_and_is_not_deleted(
    finished: tuple[Study, Path], tmp_path: Path
) -> None:
    (study, whole), folder, told = finished, tmp_path / "study", StringIO()
    shutil.copytree(whole, folder)
    wrong = study.model_copy(update={"estimand": Estimand(stage="after", metric="by_hops.99.f1")})
    run_study(wrong, folder, jobs=2, keep="results", console=Console(file=told, width=400))
    assert "seed-0 long: the run is kept: cannot be read: " in told.getvalue()
    found = read_results(wrong, folder)
    assert [each.arm for each in found.unfinished] == ["short", "long"]
    assert "the stage after has no number 'by_hops.99.f1'" in found.unfinished[0].state
    for arm in ("short", "long", SHARED):
        assert RunFolder.open(folder / "seed-0" / arm).done("before") is not None

    run_study(study, folder, keep="results", console=Console(file=StringIO()))  # nothing was lost
    assert read_results(study, folder).unfinished == ()


def test_a_damaged_result_is_unfinished_and_its_run_is_not_deleted(study: Study, tmp_path: Path) -> None:
    run = tmp_path / "seed-0" / "long"
    run.mkdir(parents=True)
    (tmp_path / "seed-0" / "long.json").write_text("{")
    reader = RunReader(study, tmp_path)
    assert str(reader.read(0, "long")).startswith("cannot be read: ")
    assert str(reader.keep_result(0, "long")).startswith("cannot be read: ")
    assert run.is_dir()
    assert len(read_results(study, tmp_path).unfinished) == 2


def test_processor_seconds_are_left_out_where_other_processes_generate(study: Study, tmp_path: Path) -> None:
    def seconds(**settings: object) -> float | None:
        recipe = Recipe.read({**recipe_of(study, 0, "long").plain(), **settings})
        record = StageRecord("sft", "sft", "", {}, {}, cpu_seconds=4.0)
        report = SimpleNamespace(recipe=recipe, stages=(record,))
        return _cpu_seconds(SimpleNamespace(report=report), [record])  # type: ignore[arg-type]

    assert seconds() == 4
    assert seconds(engine="vllm") is None
    assert seconds(ray={}) is None


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
