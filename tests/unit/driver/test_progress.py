"""Progress: done, failed, rate and time left, on a terminal and in a log."""

import io
from types import SimpleNamespace

import pytest

from stepladder.core.requests import Algorithm, Generate
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Author, Segment, StopReason
from stepladder.driver import Driver, Failure, Outcome, progress
from stepladder.driver.progress import Progress
from stepladder.engines.scripted import ScriptedEngine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def speak(name: int) -> Algorithm[str]:
    reply = yield Generate((Segment(Author.PROMPT, str(name)),))
    return str(reply.text)


def test_a_log_gets_a_line_now_and_then() -> None:
    log = io.StringIO()
    with Progress("Playing", 40, file=log, log_every=0) as watch:
        Driver(ScriptedEngine(lambda request: "ok")).run([lambda n=n: speak(n) for n in range(40)], watch)
    lines = log.getvalue().splitlines()
    assert len(lines) == 40
    assert lines[9].startswith("Playing: 10/40, ")
    assert lines[9].endswith(" s left")
    assert "/s, 0 s left" in lines[-1]


def test_short_runs_leave_a_log_alone() -> None:
    log = io.StringIO()
    with Progress("Playing", 1, file=log) as watch:
        watch(Outcome(0, value="done"))
    assert log.getvalue() == ""


def test_failures_are_counted_as_they_happen() -> None:
    watch = Progress("Playing", 4, file=io.StringIO())
    watch(Outcome(0, value="done"))
    watch(Outcome(1, failure=Failure(StopReason.FAILED, "boom")))
    assert "2/4, 1 failed, " in watch.line()


def test_a_terminal_gets_a_bar() -> None:
    terminal = Terminal()
    with Progress("Playing", 3, file=terminal) as watch:
        for index in range(3):
            watch(Outcome(index, failure=Failure(StopReason.FAILED, "boom")))
    shown = terminal.getvalue()
    assert "Playing" in shown
    assert "3/3" in shown
    assert "3 failed" in shown


@pytest.mark.parametrize(("seconds", "shown"), [(5.0, "12.0/min"), (0.5, "2.0/s")])
def test_slow_rates_are_per_minute_in_a_log_and_in_a_bar(
    seconds: float, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))  # not that of rich's threads
    log, terminal = io.StringIO(), Terminal()
    with Progress("Playing", 40, file=log, log_every=0) as watch, Progress("Playing", 40, file=terminal) as bar:
        for index in range(4):
            now[0] += seconds
            watch(Outcome(index, value="done"))
            bar(Outcome(index, value="done"))
    assert log.getvalue().splitlines()[-1].startswith(f"Playing: 4/40, {shown}, ")
    assert shown in terminal.getvalue()


def test_seeds_depend_on_what_is_named_not_on_its_type() -> None:
    import numpy as np

    assert seed_of(np.int64(1), "q") == seed_of(1, "q")
    assert seed_of("1") != seed_of(1)
    assert seed_of(StopReason.FAILED) == seed_of("failed")
    assert 0 <= seed_of(-5, "") < 2**63
