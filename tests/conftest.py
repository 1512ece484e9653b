"""Fixtures that several tests need, and the markers `e2e` and `gpu`, which follow from a test's folder."""

import gc
import logging
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from stepladder.core.io import known_servers, masking
from stepladder.core.trace import Question
from tests.support import ROOT
from tests.support.atlas import cached_atlas
from tests.support.samples import QUESTION, WordRetriever

if "PYTEST_XDIST_WORKER" in os.environ:  # several processes test at once: let each, and its children, have one thread
    import torch

    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


#: The machine may be busy: no example fails because it took long.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

TESTS = ROOT / "tests"
#: Read when trl, which imports trackio, is imported.
TRACKIO = tempfile.TemporaryDirectory(prefix="trackio")
os.environ["TRACKIO_DIR"] = TRACKIO.name
#: No test may trust an agent file for the user.
CONFIGURATION = tempfile.TemporaryDirectory(prefix="configuration")
os.environ["XDG_CONFIG_HOME"] = CONFIGURATION.name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of two folders, and begin with those that take long: processes then end at about the same time."""
    for item in items:
        for marker in ("e2e", "gpu"):
            if item.path.is_relative_to(TESTS / marker):
                item.add_marker(marker)
    slow = TESTS / "e2e", TESTS / "unit" / "train", TESTS / "unit" / "reporting"
    items.sort(
        key=lambda item: next((n for n, folder in enumerate(slow) if item.path.is_relative_to(folder)), len(slow))
    )


@pytest.fixture
def question() -> Question:
    return QUESTION


@pytest.fixture
def retriever() -> WordRetriever:
    return WordRetriever()


@pytest.fixture(autouse=True)
def _no_secrets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the secrets and servers that a test showed to this process, and how a command masks its logs."""
    monkeypatch.setattr(masking, "_users", masking._users.copy())
    monkeypatch.setattr(masking, "_values", masking._values.copy())
    monkeypatch.setattr(known_servers, "_named", known_servers._named.copy())
    monkeypatch.setattr(known_servers, "_from_files", known_servers._from_files.copy())
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    factory, hook, thread_hook = logging.getLogRecordFactory(), sys.excepthook, threading.excepthook
    yield
    logging.setLogRecordFactory(factory)
    sys.excepthook, threading.excepthook = hook, thread_hook


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tiny models are fastest on one thread, and tests may share the machine."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _quick_garbage_collection() -> None:
    """Trainers collect garbage after every run; what was imported by then need not be looked through again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _one_atlas() -> Iterator[None]:
    """Atlas takes two seconds to generate: commands and stages of all tests in a process get the same one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stepladder.data.generate_atlas", cached_atlas)
        yield


@pytest.fixture(autouse=True)
def _same_kernels() -> Iterator[None]:
    """Where a processor lacks bf16, a single product in bf16 makes torch give up faster kernels for good."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].backends.mkldnn.set_flags(True)
