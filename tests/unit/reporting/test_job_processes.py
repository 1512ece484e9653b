"""Jobs of a study as forks of one process: they end, are stopped, and never outlive their study."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from stepladder.reporting.studies.jobs import job_processes
from stepladder.reporting.studies.jobs.job_processes import ForkServer, Interpreters, wait
from stepladder.reporting.studies.jobs.study_job import Job
from tests.support import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are used on Linux alone")


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """A server without libraries, which takes ten seconds less."""
    served = ForkServer(dict(os.environ), modules=())
    yield served
    served.close()


def command(folder: Path, *arguments: str) -> Job:
    return Job({}, folder, arguments=arguments)


def endless(folder: Path) -> Job:
    """A job that only ends when it is stopped: a search server."""
    return command(folder, "serve", "atlas", "--port", "0")


def begun(job: Job, study: int) -> psutil.Process:
    """The process of a job once it serves, which is a child of a child of the study's."""
    end = time.monotonic() + 60
    while "press Ctrl-C" not in (told := job.log.read_text() if job.log.exists() else ""):
        assert time.monotonic() < end, told
        time.sleep(0.05)
    time.sleep(0.5)  # it says so before it handles signals
    return [fork for each in psutil.Process(study).children() for fork in each.children()][-1]


def test_forks_end_with_their_status_and_write_logs(server: ForkServer, tmp_path: Path) -> None:
    first = server.start(command(tmp_path / "a", "--version"))
    second = server.start(command(tmp_path / "b", "no-such"))
    assert wait(first, 60)
    assert wait(second, 60)
    assert (first.poll(), second.poll()) == (0, 2)
    assert (tmp_path / "a.log").read_text().startswith("stepladder ")
    assert "No such command 'no-such'" in (tmp_path / "b.log").read_text()
    first.stop()  # it has ended
    first.kill()
    assert first.poll() == 0


def test_a_fork_that_fails_before_it_begins_says_why(server: ForkServer, tmp_path: Path) -> None:
    job = Job({"name": "x", "stages": {"sft": {"questions": "many"}}}, tmp_path / "a")
    process = server.start(job)
    assert wait(process, 60)
    assert process.poll() == 1
    assert "error: " in (tmp_path / "a.log").read_text()


def test_a_fork_stops_when_it_is_asked_to(server: ForkServer, tmp_path: Path) -> None:
    process = server.start(job := endless(tmp_path / "a"))
    begun(job, os.getpid())
    assert process.poll() is None
    process.stop()
    assert wait(process, 60)
    other = server.start(job := endless(tmp_path / "b"))
    begun(job, os.getpid())
    other.kill()
    assert wait(other, 60)
    assert other.poll() == -signal.SIGKILL


def test_forks_stop_with_their_server(tmp_path: Path) -> None:
    server = ForkServer(dict(os.environ), modules=())
    process = server.start(job := endless(tmp_path / "a"))
    work = begun(job, os.getpid())
    served = work.parent()
    assert served is not None
    served.kill()
    assert wait(process, 60)
    assert process.poll() == -signal.SIGKILL, "as if it had been killed itself: a study then resumes it"
    work.wait(60)
    with pytest.raises(OSError, match="ended"):
        server.start(endless(tmp_path / "b"))
    server.close()


def test_forks_stop_when_the_study_is_killed(tmp_path: Path) -> None:
    job = endless(tmp_path / "a")
    study = f"""
import os, time
from pathlib import Path
from stepladder.reporting.studies.jobs.job_processes import ForkServer
from stepladder.reporting.studies.jobs.study_job import Job
server = ForkServer(dict(os.environ), modules=())
server.start(Job({{}}, Path({str(job.folder)!r}), arguments={job.arguments!r}))
time.sleep(600)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen([sys.executable, "-c", study], env=environment) as process:
        work = begun(job, process.pid)
        process.kill()
    work.wait(60)


def test_where_forks_cannot_compute_every_job_is_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).sendall(b'{\"forks\": false}\\n')"
    for server in ([sys.executable, "-c", answer], [sys.executable, "-c", "raise SystemExit(1)"]):
        monkeypatch.setattr(job_processes, "SERVER", server)
        assert isinstance(job_processes.job_processes(dict(os.environ)), Interpreters)
