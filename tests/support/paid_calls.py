"""Calls to a judge behind a budget."""

import threading
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from stepladder.core.requests import Algorithm, Generate, Generation, Sampling
from stepladder.core.trace import Author, Segment
from stepladder.driver import Driver
from stepladder.engines.spend.budget import (
    TEMPLATE_PER_CALL,
    TEMPLATE_PER_MESSAGE,
    max_usage,
    open_paid_engine,
)
from stepladder.engines.spend.prices import Budget
from stepladder.engines.spend.response_cache import CachedEngine
from tests.support.openai_server import Answer, Server, says

MOST_WRITTEN = 20


def ask(text: str) -> Generate:
    return Generate((Segment(Author.PROMPT, text),), sampling=Sampling(max_tokens=MOST_WRITTEN))


def question(number: int) -> Generate:
    return ask(f"Question {number:02}?")


MOST = max_usage(question(0))


def calls(count: float) -> Budget:
    """A budget for so many calls at the most they may cost."""
    return Budget(Decimal(int(count * (MOST.read + MOST.written))), "tok")


def opened(server: Server, folder: Path, budget: Budget | None = None, **settings: Any) -> CachedEngine:
    return open_paid_engine(
        "tiny", folder, url=server.url, budget=budget, **{"max_retries": 2, "backoff": 0.001, "timeout": 10} | settings
    )


def asking(request: Generate) -> Algorithm[str]:
    reply: Generation = yield request
    return reply.text


def run(engine: CachedEngine, count: int) -> list[str | None]:
    """Ask many questions at once."""
    return [outcome.value for outcome in Driver(engine).run([partial(asking, question(n)) for n in range(count)])]


def content(body: dict[str, Any]) -> str:
    return str(body["messages"][0]["content"])


class Till:
    """What a server bills: the most that `max_usage` allows for, or a part of it. Every request, also lost ones."""

    def __init__(self, part: float = 1.0) -> None:
        self.part = part
        self.tokens = 0
        self.lock = threading.Lock()

    def usage(self, body: dict[str, Any]) -> dict[str, int]:
        read = len(content(body).encode()) + TEMPLATE_PER_CALL + TEMPLATE_PER_MESSAGE
        counted = int(read * self.part), int(body["max_tokens"] * self.part)
        with self.lock:
            self.tokens += sum(counted)
        return dict(zip(("prompt_tokens", "completion_tokens"), counted))

    def answer(self, body: dict[str, Any], n: int) -> Answer:
        return says(f"to {content(body)}", usage=self.usage(body))
