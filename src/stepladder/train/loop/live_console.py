"""The metrics of a training run while it runs: a table that refreshes in a terminal, one line per update in a log.

In: the logged metrics of every update and evaluation, and alarms. Out: text on stderr, so that stdout stays clean. A
narrow terminal gets the most important columns. A log gets a line every few seconds, and always the last one.
"""

import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stepladder.driver.progress import duration, rate

#: Seconds between two lines if there is no terminal.
LOG_EVERY = 5.0
#: Updates and alarms shown in a terminal.
_ROWS, _ALARMS = 8, 3
#: Logged metric -> its title and format, the most important first.
_COLUMNS = {
    "loss": ("loss", ".4g"),
    "reward": ("reward", ".3f"),
    "f1": ("F1", ".3f"),
    "kl": ("KL", ".2g"),
    "entropy": ("entropy", ".3f"),
    "format_errors": ("format errors", ".1%"),
    "tokens_per_second": ("tokens/s", ",.0f"),
    "rewards/accuracies": ("accuracy", ".3f"),
    "accuracy": ("accuracy", ".3f"),
    "rewards/margins": ("reward margin", ".3f"),
    "margin": ("margin", ".3f"),
    "error": ("error", ".3f"),
    "learning_rate": ("learning rate", ".2g"),
    "grad_norm": ("grad norm", ".3g"),
}


def _cells(logs: Mapping[str, float]) -> dict[str, str]:
    """The known metrics by title, the most important first."""
    return {title: format(logs[name], style) for name, (title, style) in _COLUMNS.items() if name in logs}


class LiveConsole:
    """Shows a run of `total` updates, of which an earlier attempt did `done`. Use it as a context manager."""

    def __init__(
        self,
        label: str,
        total: int,
        done: int = 0,
        *,
        split: str = "dev",
        file: TextIO | None = None,
        log_every: float = LOG_EVERY,
    ) -> None:
        self.label, self.total, self.done, self.initial, self.split = label, total, done, done, split
        self.file, self.log_every = file or sys.stderr, log_every
        self.started, self.logged = time.monotonic(), float("-inf")
        self.rows: deque[tuple[int, dict[str, str]]] = deque(maxlen=_ROWS)
        self.alarms: deque[str] = deque(maxlen=_ALARMS)
        self.dev = self.unlogged = ""
        self.live: Live | None = None
        if self.file.isatty():
            console = Console(file=self.file)
            self.live = Live(console=console, get_renderable=lambda: self.table(console.width), refresh_per_second=4)

    def __enter__(self) -> Self:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()
        elif self.unlogged:
            self._print(self.unlogged)

    def show(self, step: int, logs: Mapping[str, float]) -> None:
        """Show the metrics of an update, or those of an evaluation, whose names start with `eval_`."""
        if dev := _cells({name.removeprefix("eval_"): value for name, value in logs.items() if name[:5] == "eval_"}):
            self.dev = f"{self.split} at update {step:,}: " + ", ".join(
                f"{title} {text}" for title, text in dev.items()
            )
            self._print(self.dev)
            return
        self.done = step
        cells = _cells(logs)
        self.rows.append((step, cells))
        named = ", ".join(f"{title} {text}" for title, text in cells.items())
        self.unlogged = f"update {step:,}/{self.total:,}, {named}, {self._pace()}"
        if step >= self.total or time.monotonic() - self.logged >= self.log_every:
            self._print(self.unlogged)

    def alarm(self, message: str) -> None:
        """Show an alarm."""
        self.alarms.append(message)
        self._print(message)

    def table(self, width: int) -> Group:
        """What a terminal of this width shows."""
        bar = ProgressBar(self.total, self.done, width=max(min(30, width - 50), 5))
        head = Table.grid(padding=(0, 2))
        for _ in range(4):
            head.add_column(no_wrap=True)
        head.add_row(self.label, bar, f"{self.done:,}/{self.total:,}", self._pace())
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("update", justify="right")
        for title in (titles := self._titles(width)):
            table.add_column(title, justify="right")
        for step, cells in self.rows:
            table.add_row(f"{step:,}", *(cells.get(title, "") for title in titles))
        notes = [Text(self.dev)] if self.dev else []
        return Group(head, *([table] if self.rows else []), *notes, *(Text(each, style="red") for each in self.alarms))

    def _titles(self, width: int) -> list[str]:
        """The columns that fit, in the order of their importance, with the speed at the right."""
        known = {title for _, cells in self.rows for title in cells}
        fitting: list[str] = []
        left = width - len("update  ")
        for title in dict.fromkeys(title for title, _ in _COLUMNS.values() if title in known):
            left -= max(len(title), 7) + 2
            if left >= 0:
                fitting.append(title)
        return sorted(fitting, key="tokens/s".__eq__)

    def _pace(self) -> str:
        """Updates per second or minute, and the time left."""
        speed = (self.done - self.initial) / max(time.monotonic() - self.started, 1e-9)
        return f"{rate(speed)}, {duration((self.total - self.done) / speed)} left" if speed else "starting"

    def _print(self, text: str) -> None:
        """One line, if there is no terminal."""
        if self.live is None:
            self.logged, self.unlogged = time.monotonic(), ""
            print(f"{self.label}: {text}", file=self.file, flush=True)
