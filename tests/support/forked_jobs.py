"""Jobs of a study as forks of this process, which has imported everything: a new interpreter takes ten seconds to.

In: what `study_runner` gives to `subprocess.Popen`. Out: an object that it can use in the same way.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import IO, Any

import pytest

from stepladder.reporting.studies import study_job, study_runner


class ForkedJob:
    """The part of `subprocess.Popen` that studies use."""

    def __init__(
        self, command: Sequence[str], *, stdout: IO[str], stderr: IO[str], env: dict[str, str], **_: Any
    ) -> None:
        assert tuple(command) == study_runner.COMMAND
        self.returncode: int | None = None
        reads, writes = os.pipe()
        if (child := os.fork()) == 0:
            self._work(reads, writes, stdout.fileno(), stderr.fileno(), env)
        os.close(reads)
        self.pid, self.stdin = child, os.fdopen(writes, "w")

    @staticmethod
    def _work(reads: int, writes: int, out: int, err: int, environment: dict[str, str]) -> None:
        code = 1
        try:
            os.setsid()
            os.close(writes)
            for number, ours in enumerate((reads, out, err)):
                os.dup2(ours, number)
            sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
            os.environ.clear()
            os.environ.update(environment)
            code = study_job.main()
        except BaseException:  # noqa: BLE001 - this process must not go on as a test
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float = 60.0) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a forked job", timeout)
            time.sleep(0.02)
        return code

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@contextmanager
def forked_jobs() -> Iterator[None]:
    """Studies in this block fork their jobs."""
    with pytest.MonkeyPatch.context() as patch:
        ours = SimpleNamespace(Popen=ForkedJob, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
        patch.setattr(study_runner, "subprocess", ours)
        yield
