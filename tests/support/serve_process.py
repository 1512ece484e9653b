"""`stepladder serve` as a process of its own, for benchmarks and checks. Needs no test library."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serve_process(index: str, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve an index on a free port: the server's URL, and its process."""
    command = [sys.executable, "-m", "stepladder", "serve", index, "--port", "0", *options]
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
