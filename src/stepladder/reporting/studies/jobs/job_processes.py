"""The processes of a study's jobs: forks of one that has imported the libraries, or one interpreter per job.

Importing torch, transformers and trl takes ten seconds per process, and twice that when many processes do it at once; a
fork takes none. The `ForkServer` is a process of its own (job_server.py): the study's may have threads. Where processes
cannot be forked (not Linux, or a GPU that a fork cannot use), every job is an interpreter of its own (study_job.py).

In: jobs. Out: a `JobProcess` for each. All of them stop when the process of the study ends, however it does.
"""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from stepladder.reporting.studies.jobs.study_job import Job

#: Commands of one job in its own interpreter, and of the fork server. -P: modules in the current folder, which may be
#: downloaded, are not imported.
COMMAND = (sys.executable, "-P", "-m", "stepladder.reporting.studies.jobs.study_job")
SERVER = (sys.executable, "-P", "-m", "stepladder.reporting.studies.jobs.job_server")
#: What jobs import: all trainers, with torch, transformers, peft and trl.
_TRAINERS = ("dpo.trl_trainer", "grpo.trainer", "prm.trainer", "rft.trainer", "sft.trainer")
MODULES = tuple(f"stepladder.train.{name}" for name in _TRAINERS)
#: Seconds between two looks at a process that should end.
_INTERVAL = 0.05


class JobProcess(Protocol):
    """A running job."""

    def poll(self) -> int | None:
        """Its exit status once it has ended; negative: a signal ended it."""

    def stop(self) -> None:
        """Ask it to stop. Does nothing if it has ended."""

    def kill(self) -> None:
        """End it at once."""


class JobProcesses(Protocol):
    """Starts jobs."""

    #: Whether it was killed and can start no more; its jobs then end.
    lost: bool

    def start(self, job: Job) -> JobProcess:
        """Start a job, whose output goes to its log file."""

    def close(self) -> None:
        """Called when all jobs have ended."""


def wait(process: JobProcess, seconds: float) -> bool:
    """Wait until a job has ended; False if it takes longer."""
    end = time.monotonic() + seconds
    while process.poll() is None:
        if time.monotonic() > end:
            return False
        time.sleep(_INTERVAL)
    return True


# --- one interpreter per job -------------------------------------------------------------------------------------


class _Interpreter:
    """A job in its own interpreter. It is interrupted when its standard input is closed, also by the study's end."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def poll(self) -> int | None:
        return self._process.poll()

    def stop(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has exited
            self._process.stdin.close()

    def kill(self) -> None:
        self._process.kill()


class Interpreters:
    """Starts every job with a command."""

    lost = False

    def __init__(self, environment: Mapping[str, str], command: Sequence[str] = COMMAND) -> None:
        self._environment, self._command = environment, command

    def start(self, job: Job) -> JobProcess:
        with job.log.open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                env=self._environment,
                start_new_session=True,  # Ctrl-C only reaches the study, which then stops its jobs
            )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it exited before reading; the exit status is checked later
            process.stdin.write(job.to_json())
            process.stdin.flush()
        return _Interpreter(process)

    def close(self) -> None:
        pass


# --- forks -------------------------------------------------------------------------------------------------------


class _Fork:
    """A job that is a fork of the server. Its number is the server's name for it."""

    def __init__(self, server: "ForkServer", number: int) -> None:
        self._server, self._number = server, number

    def poll(self) -> int | None:
        return self._server.status_of(self._number)

    def stop(self) -> None:
        if self.poll() is None:
            self._server.say({"signal": signal.SIGINT, "number": self._number})

    def kill(self) -> None:
        if self.poll() is None:
            self._server.say({"signal": signal.SIGKILL, "number": self._number})


class ForkServer:
    """Starts jobs as forks of a process that has imported the libraries. Raises `OSError` if it cannot fork."""

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str] = MODULES) -> None:
        if sys.platform != "linux":
            raise OSError("forks of a process that has imported torch are not safe here")
        self._channel, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [*SERVER, str(theirs.fileno()), *modules],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # jobs have log files
            env=environment,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self._received = b""
        self._statuses: dict[int, int] = {}
        self._started = 0
        self.lost = False
        if not self._hear(blocking=True).get("forks"):
            self.close()
            raise OSError("a fork cannot use the GPU")

    def start(self, job: Job) -> JobProcess:
        if self.lost:
            raise OSError("the process that starts the jobs of this study has ended")
        self._started += 1
        self.say({"start": self._started, "job": json.loads(job.to_json())})
        return _Fork(self, self._started)

    def close(self) -> None:
        self._channel.close()
        self._process.wait()

    def say(self, message: dict[str, Any]) -> None:
        """Send a message to the server."""
        self._channel.setblocking(True)
        try:
            self._channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.lost = True

    def status_of(self, number: int) -> int | None:
        """The exit status of a fork; if the server was killed, that of a killed process: its forks stop then."""
        while message := self._hear(blocking=False):
            self._statuses[message["ended"]] = message["status"]
        return self._statuses.get(number, -signal.SIGKILL if self.lost else None)

    def _hear(self, *, blocking: bool) -> dict[str, Any]:
        """The next message of the server; empty if there is none."""
        self._channel.setblocking(blocking)
        while b"\n" not in self._received and not self.lost:
            try:
                received = self._channel.recv(65536)
            except BlockingIOError:
                return {}
            except OSError:
                received = b""
            self.lost = not received
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        found: dict[str, Any] = json.loads(line) if line else {}
        return found


def job_processes(environment: Mapping[str, str]) -> JobProcesses:
    """Forks, where they can be had."""
    try:
        return ForkServer({"PYTORCH_NVML_BASED_CUDA_CHECK": "1", **environment})
    except OSError:
        return Interpreters(environment)
