"""A version of the package, driven from outside: its commands, its servers, and the words that it uses.

In: a folder with `src/stepladder`. Out: processes that run it. An attack is a function that gets a version and an empty
folder. It returns what happened if the version fell, or nothing if it held, and raises `NotRun` if it could not tell.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from same_scores import RENAMED_AT
from server_attack import started

#: Words of today -> words of versions without `RENAMED_AT`.
_OLD_WORDS = {
    "oracle": "gold",
    "topk": "k",
    "batch_size": "batch",
    "learning_rate": "lr",
    "num_train_epochs": "epochs",
    "eval_steps": "eval_every",
    "stepladder.core.trace": "stepladder.trace",
    "stepladder.engines.transformers.tokenization": "stepladder.engines.encoding",
}
_SECONDS = 300.0
_MAKING = threading.RLock()


class NotRun(Exception):
    """The attack could not be made, or says nothing about this version."""


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last line that it printed, and how it ended."""
        lines = (self.err.strip() or self.out.strip()).splitlines() or ["printed nothing"]
        return f"{self.words[0]} ended with {self.code}: {lines[-1].strip()[:160]}"

    def refused(self, *fragments: str) -> str | None:
        """What is wrong unless it ended with an error of one line that has these fragments."""
        told = " ".join(self.err.split())
        if "Traceback" in self.err or self.code != 2:
            return self.last
        missing = [each for each in fragments if each not in told]
        return f"the error does not say '{missing[0]}': {self.last}" if missing else None

    def done(self) -> "Finished":
        """It must have worked, or else the attack says nothing."""
        if self.code:
            raise NotRun(self.last)
        return self

    def json(self) -> Any:
        """What it printed."""
        return json.loads(self.done().out)


@dataclass(frozen=True)
class Version:
    """A version in a folder of its own."""

    name: str
    root: Path
    #: Files of this version that several attacks use.
    shared: Path

    @property
    def old(self) -> bool:
        """Whether it has the words of the first version."""
        return not (self.root / RENAMED_AT).exists()

    def say(self, word: str) -> str:
        """A word of today in the words of this version."""
        return _OLD_WORDS.get(word, word) if self.old else word

    def environment(self, **more: str) -> dict[str, str]:
        """For its processes: a user without trusted files, tokens or a network."""
        gone = ("STEPLADDER_", "OPENAI_", "HTTP_PROXY", "http_proxy", "COLUMNS")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(gone)}
        return {
            **kept,
            "PYTHONPATH": str(self.root / "src"),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "2000",
            "NO_PROXY": "127.0.0.1",
            "HF_HUB_OFFLINE": "1",
            "XDG_CONFIG_HOME": str(self.shared / "config"),
            "STEPLADDER_CACHE": str(self.shared / "cache"),
            "HF_HOME": str(self.shared / "huggingface"),
            **more,
        }

    def start(self, *words: object, folder: Path, **more: Any) -> "subprocess.Popen[str]":
        """A command that runs, and does not ignore signals where this check does."""
        command = [sys.executable, "-m", "stepladder", *map(str, words)]
        file_bytes = more.pop("file_bytes", None)

        def begin() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            if file_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

        environment = self.environment(**more.pop("env", {}))
        return subprocess.Popen(command, cwd=folder, env=environment, text=True, preexec_fn=begin, **more)

    def cli(
        self,
        *words: object,
        folder: Path,
        stdin: str = "",
        seconds: float = _SECONDS,
        file_bytes: int | None = None,
        env: dict[str, str] | None = None,
    ) -> Finished:
        """A command from beginning to end; its code is -9 if it did not end in time."""
        pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with self.start(*words, folder=folder, env=env or {}, file_bytes=file_bytes, **pipes) as process:
            try:
                out, err = process.communicate(stdin, timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                err += f"\ndid not end within {seconds:g} s"
        return Finished(tuple(map(str, words)), process.returncode, out, err)

    def python(self, code: str, *words: object, folder: Path) -> Finished:
        """A few lines of Python that use the package; `word:NAME` in them is a word of today."""
        for word in sorted(_OLD_WORDS, key=len, reverse=True):
            code = code.replace(f"word:{word}", self.say(word))
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, words)],
            cwd=folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        return Finished(("python",), done.returncode, done.stdout, done.stderr)

    @contextmanager
    def serving(self, *words: object, **env: str) -> Iterator[tuple["subprocess.Popen[str]", str, int]]:
        """A server: its process, host and port."""
        self.shared.mkdir(parents=True, exist_ok=True)
        try:
            with started(list(map(str, words)), env=self.environment(**env), folder=self.shared) as server:
                yield server
        except SystemExit as error:
            raise NotRun(str(error).strip().splitlines()[-1]) from None

    def made(self, name: str, make: Callable[[Path], object]) -> Path:
        """A folder that is made once for all attacks."""
        folder = self.shared / name
        with _MAKING:
            if not folder.exists():
                with tempfile.TemporaryDirectory(prefix="made-") as partial:
                    make(Path(partial))
                    shutil.copytree(partial, folder)
        return folder


Attack = Callable[[Version, Path], str | None]
#: All attacks by name, in the order of their definition.
ATTACKS: dict[str, Attack] = {}


def attack(name: str) -> Callable[[Attack], Attack]:
    """Give an attack its name."""

    def add(function: Attack) -> Attack:
        ATTACKS[name] = function
        return function

    return add


def listed(problems: Iterable[str | None]) -> str | None:
    """All problems in one line."""
    return "; ".join(each for each in problems if each) or None


def end(process: "subprocess.Popen[str]", sent: signal.Signals, seconds: float = 30) -> int:
    """Send a signal and wait; the exit code, or -9 if it had to be killed."""
    process.send_signal(sent)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
