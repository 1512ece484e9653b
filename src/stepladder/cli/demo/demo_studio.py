"""The studio beside the demo: a process of its own, which is there as long as the demo runs."""

import os
import re
import subprocess
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stepladder.pipeline.run_folder import is_run

#: Seconds between two looks for the run's folder.
_PAUSE = 0.2


@contextmanager
def studio_of(folder: Path, ready: Callable[[str], None]) -> Iterator[None]:
    """Serve the studio of a run, as soon as its folder is there; `ready` gets the address of its page.

    A studio that cannot start does not stop the demo: then `ready` is not called.
    """
    ended = threading.Event()
    started: list[subprocess.Popen[str]] = []

    def serve() -> None:
        while not is_run(folder):
            if ended.wait(_PAUSE):
                return
        command = [sys.executable, "-m", "stepladder", "studio", str(folder), "--port", "0"]
        # Ctrl-C is for the demo; the studio ends with it.
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        if ended.is_set():
            process.terminate()
        assert process.stderr is not None
        for line in process.stderr:  # to its end: a full pipe would hold the studio up
            if found := re.match(r"(http://\S+) serves ", line):
                ready(f"{found[1]}/runs/{folder.absolute().name}")

    watcher = threading.Thread(target=serve, daemon=True, name="demo-studio")
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        for process in started:
            process.terminate()
        watcher.join(10)


def open_page(url: str) -> bool:
    """Open a page in the user's browser. False where there is no screen."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    if "SSH_CONNECTION" in os.environ:
        return False
    return webbrowser.open(url)
