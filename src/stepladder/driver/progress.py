"""Progress of a run: done, failed, rate and remaining time. A bar on a terminal, periodic lines in a log file.

In: outcomes, as the driver finishes them. Out: text on stderr, so that stdout stays clean.
"""

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Self, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress as RichProgress,
    RenderableColumn,
    SpinnerColumn,
    TextColumn,
)
from rich.text import Text

from stepladder.core.io import launch
from stepladder.core.io.interrupts import check_interrupt
from stepladder.driver.outcomes import Outcome

#: Seconds between two lines if there is no terminal.
LOG_EVERY = 10.0


def rate(per_second: float) -> str:
    """A rate in words, per minute if it is below one per second.

    >>> rate(1234.5), rate(1.0), rate(0.2)
    ('1,234.5/s', '1.0/s', '12.0/min')
    """
    return f"{per_second:,.1f}/s" if per_second >= 1 or not per_second else f"{60 * per_second:,.1f}/min"


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(42.4), duration(3720)
    ('42 s', '1:02:00')
    """
    return f"{seconds:.0f} s" if seconds < 99.5 else str(timedelta(seconds=round(seconds)))


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
        self.log_every = log_every if launch.is_main() else float("inf")  # of several processes one shows it
        self.done = self.initial = done
        self.failed = 0
        self.started = self.logged = time.monotonic()
        self.bar: RichProgress | None = None
        if self.file.isatty() and launch.is_main():
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            state = RenderableColumn(self)
            self.bar = RichProgress(*columns, state, console=Console(file=self.file), transient=True)
            self.task = self.bar.add_task(label, total=total or None, completed=done)

    def __rich__(self) -> Text:
        return Text(self.state())

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
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
            self.bar.update(self.task, advance=amount)
        elif time.monotonic() - self.logged >= self.log_every:
            self.logged = time.monotonic()
            print(self.line(), file=self.file, flush=True)

    def line(self) -> str:
        """The state as one log line."""
        total = f"/{self.total:,}" if self.total else ""
        return f"{self.label}: {self.done:,}{total}, {self.state()}"

    def state(self) -> str:
        """Failures, the rate, the note and the time left."""
        speed = (self.done - self.initial) / max(time.monotonic() - self.started, 1e-9)
        parts = [f"{self.failed} failed"] if self.failed else []
        parts += [rate(speed)] + ([self.note()] if self.note is not None else [])
        if self.total and speed:
            parts.append(f"{duration(max(self.total - self.done, 0) / speed)} left")
        return ", ".join(parts)


class Phases:
    """Progress of a task with several phases, called as (phase, done, total). Use it as a context manager.

    Starting a phase ends the previous one.
    """

    def __init__(self, *, file: TextIO | None = None, log_every: float = LOG_EVERY) -> None:
        self.file, self.log_every = file, log_every
        self.now: Progress | None = None

    def __call__(self, doing: str, done: int, total: int) -> None:
        """Show the state of a phase."""
        check_interrupt()
        if self.now is None or (self.now.label, bool(self.now.total)) != (doing, bool(total)):
            self.__exit__()
            self.now = Progress(doing, total, done=done, file=self.file, log_every=self.log_every).__enter__()
        self.now.advance(done - self.now.done)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.now is not None:
            self.now.__exit__(*error)
            self.now = None
