"""An interrupt that Python or a library drops ends the command nevertheless."""

import gc
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stepladder.core.io.interrupts import check_interrupt, remembered_interrupts
from stepladder.core.requests import Algorithm, Retrieve
from stepladder.driver import Driver, Interrupted, Outcome
from stepladder.driver.progress import Phases
from tests.support.samples import WordRetriever
from tests.support.sft_training import train


@pytest.fixture(autouse=True)
def _python_handler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Python's own handler, also where the tests run in the background; and nothing is printed of what it drops."""
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def dropped_interrupt() -> None:
    """Ctrl-C while Python runs a callback of its garbage collector, which drops what is raised there."""

    def unlucky(*_: object) -> None:
        gc.callbacks.remove(unlucky)
        signal.raise_signal(signal.SIGINT)

    gc.callbacks.append(unlucky)
    gc.collect()


def searching(number: int) -> Algorithm[int]:
    yield Retrieve(f"query {number}", 1)
    if number == 1:
        dropped_interrupt()
    yield Retrieve(f"another query {number}", 1)
    return number


def test_a_driver_ends_at_its_next_step() -> None:
    driver = Driver(retriever=WordRetriever(), in_flight=1)
    with remembered_interrupts(), pytest.raises(Interrupted) as stopped:
        driver.run([partial(searching, number) for number in range(3)])
    assert [each.value for each in stopped.value.outcomes] == [0, None, None]
    assert [each.value for each in driver.run([partial(searching, 2)])] == [2], "it is raised once"


def test_training_ends_before_its_next_update(tmp_path: Path) -> None:
    seen: list[int] = []

    def watch(outcome: Outcome[Any]) -> None:
        seen.append(outcome.index)
        if len(seen) == 1:
            dropped_interrupt()

    with remembered_interrupts(), pytest.raises(KeyboardInterrupt):
        train(tmp_path, watch=watch)
    assert len(seen) == 1


def test_a_build_ends_at_its_next_report() -> None:
    with remembered_interrupts(), Phases() as progress:
        progress("reading", 1, 9)
        dropped_interrupt()
        with pytest.raises(KeyboardInterrupt):
            progress("reading", 2, 9)


def test_only_the_handler_of_python_is_replaced_and_nothing_is_left_behind() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with remembered_interrupts():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with remembered_interrupts():
        dropped_interrupt()
        other = threading.Thread(target=check_interrupt)
        other.start()
        other.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    check_interrupt()


def test_an_interrupt_is_raised_where_it_arrives() -> None:
    with remembered_interrupts(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
