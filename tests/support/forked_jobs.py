"""Jobs of a study as forks of this process, which has imported everything: a new interpreter takes ten seconds to.

In: what `study_runner` asks of `job_processes`. Out: processes that it can use in the same way.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from stepladder.reporting.studies import study_runner
from stepladder.reporting.studies.jobs.job_processes import JobProcess
from stepladder.reporting.studies.jobs.job_server import fork_job
from stepladder.reporting.studies.jobs.study_job import Job


class ForkedJob:
    """A `JobProcess` that is a child of this process."""

    def __init__(self, number: int) -> None:
        self.number, self.status = number, None  # type: int, int | None

    def poll(self) -> int | None:
        if self.status is None:
            ended, status = os.waitpid(self.number, os.WNOHANG)
            if ended:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def _send(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.number, number)

    def stop(self) -> None:
        self._send(signal.SIGINT)

    def kill(self) -> None:
        self._send(signal.SIGKILL)


class Forks:
    """`JobProcesses` that forks this process."""

    lost = False

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.lifeline, self.alive = os.pipe()

    def start(self, job: Job) -> JobProcess:
        before = dict(os.environ)
        os.environ.update(self.environment)
        try:
            return ForkedJob(fork_job(job, self.lifeline, self.alive))
        finally:
            os.environ.clear()
            os.environ.update(before)

    def close(self) -> None:
        os.close(self.alive)
        os.close(self.lifeline)


@contextmanager
def forked_jobs() -> Iterator[None]:
    """Studies in this block fork their jobs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_runner, "job_processes", Forks)
        patch.setattr(study_runner, "Interpreters", lambda environment, _: Forks(environment))
        yield
