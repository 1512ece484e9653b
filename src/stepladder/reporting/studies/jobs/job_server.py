"""The process whose forks are the jobs of a study: it imports what jobs import, once.

`python -m stepladder.reporting.studies.jobs.job_server FD MODULE ...`, where FD is a socket: JSON lines in and out.

In: `{"start": number, "job": {...}}`, `{"signal": signal, "number": number}`. Out: `{"forks": bool}` when it is ready,
`{"ended": number, "status": exit status}`. When the socket is closed, for any reason, it stops its jobs and ends; when
it ends, for any reason, its jobs are interrupted.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from pydantic import TypeAdapter

from stepladder.reporting.studies.jobs import study_job
from stepladder.reporting.studies.jobs.study_job import Job

#: Seconds between two looks at the jobs, and until those that should stop are killed.
_INTERVAL, _STOP_TIMEOUT = 0.05, 30.0


def import_modules(names: Iterable[str]) -> None:
    """Import what jobs import. What fails to be imported is reported by the job that needs it."""
    for name in names:
        with suppress(Exception):
            import_module(name)
    gc.freeze()  # the collector would write to, and so copy, the memory that forks share


def can_fork() -> bool:
    """Whether a fork of this process can use the GPU, if there is one: tried, because any library may have used it."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return True
    if (child := os.fork()) == 0:
        status = 1
        with suppress(BaseException):
            status = int(torch.ones(1, device="cuda").item() != 1)
        os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def fork_job(job: Job, lifeline: int, *others: int) -> int:
    """Fork a process for a job; returns its number. It is interrupted when nobody can write to `lifeline` any more.

    `others`: file descriptors that it must not keep.
    """
    if (child := os.fork()) == 0:
        _work(job, lifeline, others)
    return child


def _work(job: Job, lifeline: int, others: tuple[int, ...]) -> NoReturn:
    status = 1
    try:
        os.setsid()
        for each in others:
            os.close(each)
        log = os.open(job.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for number, ours in enumerate((lifeline, log, log)):
            os.dup2(ours, number)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.argv = [str(study_job.__file__)]
        status = study_job.run_until_eof(job)
    except SystemExit as end:  # of a command
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - this process must not go on as a server
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


class Server:
    """Forks jobs, and tells how they end."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lifeline, self._alive = os.pipe()
        #: By process number, the study's number.
        self._running: dict[int, int] = {}
        self._received = b""

    def run(self) -> None:
        """Serve until the study closes the socket."""
        while self._take_orders():
            self._tell_ended()
        self._stop()

    def _take_orders(self) -> bool:
        """Wait a little for orders, and follow them; False if there will be no more."""
        if not select.select([self._channel], [], [], _INTERVAL)[0]:
            return True
        try:
            received = self._channel.recv(1 << 20)
        except OSError:
            return False
        *lines, self._received = (self._received + received).split(b"\n")
        for line in lines:
            self._follow(json.loads(line))
        return bool(received)

    def _follow(self, order: dict[str, Any]) -> None:
        if "start" in order:
            job = TypeAdapter(Job).validate_python(order["job"])
            child = fork_job(job, self._lifeline, self._alive, self._channel.fileno())
            self._running[child] = order["start"]
            return
        for child, number in self._running.items():
            if number == order["number"]:
                with suppress(ProcessLookupError):
                    os.kill(child, order["signal"])

    def _tell_ended(self) -> None:
        for child in list(self._running):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                message = {"ended": self._running.pop(child), "status": os.waitstatus_to_exitcode(status)}
                with suppress(OSError):  # the study has ended
                    self._channel.sendall(json.dumps(message).encode() + b"\n")

    def _stop(self) -> None:
        end = time.monotonic() + _STOP_TIMEOUT
        wanted = signal.SIGINT
        while self._running:
            for child in self._running:
                os.kill(child, wanted)
            while self._running and time.monotonic() < end:
                time.sleep(_INTERVAL)
                self._tell_ended()
            wanted, end = signal.SIGKILL, time.monotonic() + _STOP_TIMEOUT


def main() -> None:
    """Import, tell whether forks work, and serve."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # inherited by forks, also if a shell ignores it
    channel = socket.socket(fileno=int(sys.argv[1]))
    import_modules(sys.argv[2:])
    forks = can_fork()
    with suppress(OSError):  # the study has ended
        channel.sendall(json.dumps({"forks": forks}).encode() + b"\n")
    if forks:
        Server(channel).run()


if __name__ == "__main__":
    main()
