"""Progress of a run: done, failed, rate and remaining time. A bar on a terminal, periodic lines in a log file.

In: outcomes, as the driver finishes them. Out: text on stderr, so that stdout stays clean.
"""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress as RichProgress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from stepladder.driver.outcomes import Outcome

#: Seconds between two lines if there is no terminal.
LOG_EVERY = 10.0


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0.0:,.1f}/s", style="progress.data.speed")


class _Note(ProgressColumn):
    """The current note."""

    def __init__(self, note: Callable[[], str] | None) -> None:
        super().__init__()
        self.note = note

    def render(self, task: Task) -> Text:  # noqa: ARG002
        return Text(self.note() if self.note is not None else "")


class Progress:
    """Watches a `Driver.run`: `with Progress("Evaluating", 200) as watch: driver.run(jobs, watch)`.

    `note` returns a short text that is shown with the state. Items `done` by an earlier attempt do not count in
    the rate. A `total` of 0 means unknown.
    """

    def __init__(
        self,
        label: str,
        total: int,
        *,
        done: int = 0,
        note: Callable[[], str] | None = None,
        file: TextIO | None = None,
        log_every: float = LOG_EVERY,
    ) -> None:
        self.label = label
        self.total = total
        self.note = note
        self.file = file or sys.stderr
        self.log_every = log_every
        self.done = self.initial = done
        self.failed = 0
        self.started = self.logged = time.monotonic()
        self.bar: RichProgress | None = None
        if self.file.isatty():
            self.bar = RichProgress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                _Rate(),
                TextColumn("left"),
                TimeRemainingColumn(),
                _Note(note),
                TextColumn("[red]{task.fields[failed]}"),
                console=Console(file=self.file),
                transient=True,
            )
            self.task = self.bar.add_task(label, total=total or None, completed=done, failed="")

    def __enter__(self) -> "Progress":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, outcome: Outcome[Any]) -> None:
        """Count one outcome."""
        self.advance(failed=outcome.failure is not None)

    def advance(self, amount: int = 1, *, failed: bool = False) -> None:
        """Count `amount` more as done."""
        self.done += amount
        self.failed += failed
        if self.bar is not None:
            self.bar.update(self.task, advance=amount, failed=f"{self.failed} failed" if self.failed else "")
        elif time.monotonic() - self.logged >= self.log_every:
            self.logged = time.monotonic()
            print(self.line(), file=self.file, flush=True)

    def line(self) -> str:
        """The state as one log line."""
        rate = (self.done - self.initial) / max(time.monotonic() - self.started, 1e-9)
        left = max(self.total - self.done, 0) / rate if rate else 0.0
        failures = f", {self.failed} failed" if self.failed else ""
        note = f", {self.note()}" if self.note is not None else ""
        if not self.total:
            return f"{self.label}: {self.done:,}{failures}, {rate:,.1f}/s{note}"
        return f"{self.label}: {self.done:,}/{self.total:,}{failures}, {rate:,.1f}/s{note}, {left:,.0f} s left"


class Phases:
    """Progress of a task with several phases, called as (phase, done, total). Use it as a context manager.

    Starting a phase ends the previous one.
    """

    def __init__(self, *, file: TextIO | None = None, log_every: float = LOG_EVERY) -> None:
        self.file, self.log_every = file, log_every
        self.now: Progress | None = None

    def __call__(self, doing: str, done: int, total: int) -> None:
        """Show the state of a phase."""
        if self.now is None or (self.now.label, bool(self.now.total)) != (doing, bool(total)):
            self.__exit__(None, None, None)
            self.now = Progress(doing, total, done=done, file=self.file, log_every=self.log_every).__enter__()
        self.now.advance(done - self.now.done)

    def __enter__(self) -> "Phases":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.now is not None:
            self.now.__exit__(kind, error, trace)
            self.now = None
