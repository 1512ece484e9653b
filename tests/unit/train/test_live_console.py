"""The console of a training run: lines in a log, a table in a terminal."""

import io
import itertools
from types import SimpleNamespace

import pytest
from rich.console import Console

from stepladder.train.loop import live_console
from stepladder.train.loop.live_console import LiveConsole

GRPO = {
    "loss": 0.01234, "reward": 1.25, "f1": 0.4375, "kl": 0.00321, "entropy": 0.512, "format_errors": 0.0625,
    "tokens_per_second": 1234.5, "learning_rate": 1e-4, "grad_norm": 0.5, "searches": 2.0,
}  # fmt: skip
LINE = "loss 0.01234, reward 1.250, F1 0.438, KL 0.0032, entropy 0.512, format errors 6.2%, tokens/s 1,234"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock is two seconds after the last."""
    ticks = itertools.count(0, 2)
    monkeypatch.setattr(live_console, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))


def drawn(console: LiveConsole, width: int) -> list[str]:
    """What a terminal of this width shows."""
    page = Console(file=io.StringIO(), width=width)
    page.print(console.table(width))
    return page.file.getvalue().splitlines()


def test_a_log_gets_a_line_every_few_seconds_and_the_last() -> None:
    log = io.StringIO()
    with LiveConsole("grpo", 20, file=log, log_every=30) as console:
        for step in range(1, 21):
            console.show(step, GRPO)
    lines = log.getvalue().splitlines()
    assert 3 <= len(lines) <= 5
    assert lines[0].startswith(f"grpo: update 1/20, {LINE}, learning rate 0.0001, grad norm 0.5, ")
    assert lines[0].endswith("left")
    assert lines[-1].startswith("grpo: update 20/20, ")
    assert "/min, 0 s left" in lines[-1], "less than one update per second"


def test_the_last_update_of_a_stopped_run_is_told() -> None:
    log = io.StringIO()
    with LiveConsole("grpo", 20, file=log, log_every=1e9) as console:
        for step in (1, 2, 3):
            console.show(step, GRPO)
    assert [line.split(",")[0] for line in log.getvalue().splitlines()] == ["grpo: update 1/20", "grpo: update 3/20"]


def test_evaluations_and_alarms_are_lines_of_their_own() -> None:
    log = io.StringIO()
    with LiveConsole("dpo", 4, file=log) as console:
        console.show(2, {"eval_f1": 0.5, "eval_em": 0.25, "eval_kl": 0.01, "eval_runtime": 3.0})
        console.alarm("alarm at update 2: endless: ...")
    assert log.getvalue() == "dpo: dev at update 2: F1 0.500, KL 0.01\ndpo: alarm at update 2: endless: ...\n"


def test_a_terminal_of_80_columns_shows_the_columns_that_matter() -> None:
    console = LiveConsole("grpo", 20, file=Terminal())
    for step in range(1, 13):
        console.show(step, GRPO)
    console.show(12, {"eval_f1": 0.5})
    console.alarm("alarm at update 12: kl_blow_up: too far")
    head, titles, *rows = drawn(console, 80)
    assert max(map(len, (head, titles, *rows))) <= 80
    assert head.startswith("grpo  ")
    assert "12/20" in head
    assert head.rstrip().endswith("left")
    assert " ".join(titles.split()) == "update loss reward F1 KL entropy format errors tokens/s"
    assert [row.split()[0] for row in rows[:8]] == [str(step) for step in range(5, 13)], "the newest"
    assert rows[7].split() == ["12", "0.01234", "1.250", "0.438", "0.0032", "0.512", "6.2%", "1,234"]
    assert rows[8].rstrip() == "dev at update 12: F1 0.500"
    assert rows[9].rstrip() == "alarm at update 12: kl_blow_up: too far"


@pytest.mark.parametrize(
    ("width", "titles"),
    [(30, "update loss reward"), (60, "update loss reward F1 KL entropy"), (200, "grad norm tokens/s")],
)
def test_the_width_decides_how_many_columns_there_are(width: int, titles: str) -> None:
    console = LiveConsole("grpo", 20, file=Terminal())
    console.show(1, GRPO)
    shown = " ".join(drawn(console, width)[1].split())
    assert shown.startswith(titles) or shown.endswith(titles)
    assert all(len(line) <= width for line in drawn(console, width))


def test_a_trainer_without_episodes_has_no_columns_of_them() -> None:
    console = LiveConsole("sft", 20, file=Terminal())
    console.show(1, {"loss": 2.0, "learning_rate": 1e-4, "grad_norm": 1.0, "tokens_per_second": 10.0, "epoch": 0.1})
    assert " ".join(drawn(console, 80)[1].split()) == "update loss learning rate grad norm tokens/s"


def test_stages_follow_each_other_in_a_terminal_without_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    for label in ("sft", "grpo"):
        with LiveConsole(label, 2, file=terminal) as console:
            console.show(1, GRPO)
            console.show(2, GRPO)
    shown = terminal.getvalue()
    assert shown.index("sft") < shown.index("grpo")
    assert "\x1b[3" not in shown, "no colors"
    assert "2/2" in shown
