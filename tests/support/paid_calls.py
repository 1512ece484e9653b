"""Calls to a judge behind a budget."""

from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from stepladder.core.requests import Algorithm, Generate, Generation, Sampling
from stepladder.core.trace import Author, Segment
from stepladder.driver import Driver
from stepladder.judges.llm.spend.budget import Budget, at_most
from stepladder.judges.llm.spend.paid import PaidEngine, open_judge_engine
from tests.support.openai_server import Server

MOST_WRITTEN = 20


def ask(text: str) -> Generate:
    return Generate((Segment(Author.PROMPT, text),), sampling=Sampling(max_tokens=MOST_WRITTEN))


def question(number: int) -> Generate:
    return ask(f"Question {number:02}?")


MOST = at_most(question(0))


def calls(count: float) -> Budget:
    """A budget for so many calls at the most they may cost."""
    return Budget(Decimal(int(count * (MOST.read + MOST.written))), "tok")


def opened(server: Server, folder: Path, budget: Budget | None = None, **settings: Any) -> PaidEngine:
    return open_judge_engine(
        "tiny", folder, url=server.url, budget=budget, **{"retries": 2, "backoff": 0.001, "timeout": 10} | settings
    )


def asking(request: Generate) -> Algorithm[str]:
    reply: Generation = yield request
    return reply.text


def run(engine: PaidEngine, count: int) -> list[str | None]:
    """Ask many questions at once."""
    return [outcome.value for outcome in Driver(engine).run([partial(asking, question(n)) for n in range(count)])]
