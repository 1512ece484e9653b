"""Servers as processes of their own, for benchmarks and checks. Needs no test library."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serve_process(index: str, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve an index on a free port: the server's URL, and its process."""
    with _process("serve", index, *options) as server:
        yield server


@contextmanager
def studio_process(runs: str, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A studio on a free port: its URL, and its process."""
    with _process("studio", runs, *options) as server:
        yield server


@contextmanager
def _process(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "stepladder", *arguments, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if match := re.search(r"http://[\w.]+:\d+", line):
                threading.Thread(target=process.stderr.read, daemon=True).start()
                yield match[0], process
                return
        raise SystemExit("the server did not start")
    finally:
        process.terminate()
        process.wait()
