"""For tests of whole programs: the command line, and a browser for web pages."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import chromium
from tests.support.shell import shell

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["shell"]


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Chromium, for the tests of a module; they are skipped where there is none."""
    with chromium() as found:
        yield found
