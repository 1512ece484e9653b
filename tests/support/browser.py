"""A real browser for tests of web pages: Debian's Chromium, driven by Playwright. No browser is ever downloaded."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

#: Why pages cannot be tested here; empty if they can.
NO_BROWSER = "" if shutil.which("chromium") else "needs Chromium: apt-get install chromium"


@contextmanager
def chromium() -> Iterator["Browser"]:
    """The browser. Skips the test, with the reason, where there is none."""
    if NO_BROWSER:
        pytest.skip(NO_BROWSER)
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: "Browser", url: str, **settings: Any) -> Iterator["Page"]:
    """A new tab. At its end there must have been no error on the console, and no request to another server."""
    context = browser.new_context(**settings)
    context.set_default_timeout(20_000)
    page, problems = context.new_page(), []
    origin = "/".join(url.split("/")[:3])
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((origin, "data:", "blob:"))
            else problems.append(f"a request to {request.url}")
        ),
    )
    page.goto(url)
    yield page
    context.close()
    assert problems == []


def wait_until(page: "Page", expression: str, seconds: float = 20.0) -> None:
    """Wait until an expression is true. Playwright's own `wait_for_function` needs `eval`, which pages do not allow."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"not true after {seconds:g} s: {expression}"
        page.wait_for_timeout(50)
