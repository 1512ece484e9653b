"""The metrics of a training run while it runs: a table that refreshes in a terminal, one line per update in a log.

In: the logged metrics of every update and evaluation, and alarms. Out: text on stderr, so that stdout stays clean. A
narrow terminal gets the most important columns. A log gets a line every few seconds, and always the last one.
"""

import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
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
#: Logged metric -> title and format, the most important first.
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
#: Columns on the right of the table, by title.
_LAST = ("learning rate", "grad norm", "tokens/s")


class LiveConsole:
    """Shows a run of `total` updates, of which an earlier attempt did `done`. Use it as a context manager."""

    def __init__(
        self, label: str, total: int, done: int = 0, *, file: TextIO | None = None, log_every: float = LOG_EVERY
    ) -> None:
        self.label, self.total, self.done, self.initial = label, total, done, done
        self.file, self.log_every = file or sys.stderr, log_every
        self.started = time.monotonic()
        self.logged = 0.0
        self.rows: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=_ROWS)
        self.alarms: deque[str] = deque(maxlen=_ALARMS)
        self.dev = self.unlogged = ""
        self.live: Live | None = None
        if self.file.isatty():
            console = Console(file=self.file)
            self.live = Live(console=console, get_renderable=lambda: self.table(console.width), refresh_per_second=4)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self.live is not None:
                stack.enter_context(self.live)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        if self.unlogged:
            self._print(self.unlogged)
        self._stack.close()

    def show(self, step: int, logs: Mapping[str, float]) -> None:
        """Show the metrics of an update, or those of an evaluation, whose names start with `eval_`."""
        scores = {name.removeprefix("eval_"): value for name, value in logs.items() if name.startswith("eval_")}
        if scores:
            self._show_evaluation(step, scores)
            return
        self.done = step
        self.rows.append((step, logs))
        self.unlogged = f"update {step:,}/{self.total:,}, {', '.join(_described(logs))}, {self._pace()}"
        if self.live is None and (step >= self.total or time.monotonic() - self.logged >= self.log_every):
            self._print(self.unlogged)

    def alarm(self, message: str) -> None:
        """Show an alarm."""
        self.alarms.append(message)
        self._print(message)

    def table(self, width: int) -> Group:
        """What a terminal of this width shows."""
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(self.total, self.done, width=max(min(30, width - 50), 5))
        head.add_row(self.label, bar, f"{self.done:,}/{self.total:,}", Text(self._pace(), style="progress.remaining"))
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("update", justify="right")
        for title in (titles := self._titles(width)):
            table.add_column(title, justify="right")
        for step, logs in self.rows:
            cells = {_COLUMNS[name][0]: format(value, _COLUMNS[name][1]) for name, value in _known(logs)}
            table.add_row(f"{step:,}", *(cells.get(title, "") for title in titles))
        notes = [Text(self.dev)] if self.dev else []
        return Group(head, *([table] if self.rows else []), *notes, *(Text(each, style="red") for each in self.alarms))

    def _show_evaluation(self, step: int, scores: Mapping[str, float]) -> None:
        named = [f"{title} {scores[name]:.4g}" for name, title in {**_TITLES, "em": "EM"}.items() if name in scores]
        self.dev = f"dev at update {step:,}: {', '.join(named)}"
        self._print(self.dev)

    def _titles(self, width: int) -> list[str]:
        """The columns that fit, in the order of `_COLUMNS`, the last ones on the right."""
        known = dict.fromkeys(_COLUMNS[name][0] for _, logs in self.rows for name, _ in _known(logs))
        by_importance = [title for title in _TITLES.values() if title in known]
        fitting: list[str] = []
        left = width - len("update  ")
        for title in dict.fromkeys(by_importance):
            left -= max(len(title), 7) + 2
            if left < 0:
                break
            fitting.append(title)
        return sorted(fitting, key=lambda title: title in _LAST)

    def _pace(self) -> str:
        """Updates per second or minute, and the time left."""
        speed = (self.done - self.initial) / max(time.monotonic() - self.started, 1e-9)
        return f"{rate(speed)}, {duration((self.total - self.done) / speed)} left" if speed else "starting"

    def _print(self, text: str) -> None:
        """One line, if there is no terminal."""
        if self.live is None:
            self.logged, self.unlogged = time.monotonic(), ""
            print(f"{self.label}: {text}", file=self.file, flush=True)


_TITLES = {name: title for name, (title, _) in _COLUMNS.items()}


def _known(logs: Mapping[str, float]) -> list[tuple[str, float]]:
    return [(name, logs[name]) for name in _COLUMNS if logs.get(name) is not None]


def _described(logs: Mapping[str, float]) -> list[str]:
    """The metrics of an update as words."""
    return [f"{_COLUMNS[name][0]} {format(value, _COLUMNS[name][1])}" for name, value in _known(logs)]
