"""A hard spending limit: the maximum cost of every call is reserved before it is sent.

In: a budget such as `5usd` or `2Mtok`, prices, and the ledger of a folder. Out: `BudgetEngine`, an OpenAI engine that
sends a call only if the spend so far plus the maximum cost of this call and of those in flight fits into the budget.
The maximum is one token per byte of the messages, an allowance for the chat template, and `max_tokens`. The server's
own token count replaces it when the response arrives; without such a count the maximum is charged.

A call that does not fit waits for those in flight, which usually cost less than reserved. If it still does not fit when
they have ended, it raises `BudgetExhausted`: the run stops, and every paid response is in the cache.

Every attempt counts as a call. Attempts that the server rejected or never received are free. Attempts that may have
been billed without a response (cancelled, timed out, disconnected, lost by a gateway) are charged their maximum.

A server that counts more than the maximum (its own system prompt, an ignored limit) can exceed the budget once by the
difference. From the first response on the difference is added to every reservation.

`open_judge_engine` adds the response cache. Its folder holds the responses (`replies.jsonl`) and the calls
(`spend.jsonl`): a resumed run repeats no call, and earlier spending counts.

    with closing(open_judge_engine("gpt-4o-mini", folder, budget=Budget.parse("5usd"))) as engine:
        outcomes = Driver(engine).run(jobs)
        print(engine.spend())
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import openai

from stepladder.core.errors import BackendDown
from stepladder.core.requests import Generate
from stepladder.core.trace import Usage
from stepladder.engines.openai import OpenAIEngine
from stepladder.engines.openai_protocol import chat_messages, usage_of
from stepladder.judges.llm.spend.ledger import Ledger
from stepladder.judges.llm.spend.prices import Budget, PriceTable
from stepladder.judges.llm.spend.response_cache import RESPONSES, CachedEngine, Spend

#: Maximum tokens that a chat template adds per message, and per call (a default system prompt).
TEMPLATE_PER_MESSAGE, TEMPLATE_PER_CALL = 16, 256

#: Name of the ledger in the folder.
SPEND = "spend.jsonl"

#: HTTP errors of gateways that may hide a billed response.
_GATEWAY_ERRORS = frozenset({408, 502, 504, *range(520, 528)})


class BudgetExhausted(BackendDown):
    """The next call might exceed the budget. The run stops; paid responses are kept."""


def max_usage(request: Generate) -> Usage:
    """The maximum tokens of one call with any tokenizer: no token is shorter than a byte."""
    contents = [message["content"] for message in chat_messages(request.context)]
    read = sum(len(content.encode()) + TEMPLATE_PER_MESSAGE for content in contents)
    return Usage(TEMPLATE_PER_CALL + read, request.sampling.max_tokens)


@dataclass(slots=True)
class Reservation:
    """The reserved budget of a call in flight. `cost` is set to the actual cost once it is known."""

    cost: Usage | None = None


class SpendLimiter:
    """Charges the calls of one model to an optional budget. Used on one event loop."""

    def __init__(self, ledger: Ledger, model: str, prices: PriceTable, budget: Budget | None = None) -> None:
        self.ledger = ledger
        self.model = model
        self.prices = prices
        self.budget = budget
        if budget is not None and budget.unit == "usd":
            for each in (model, *ledger.totals):
                prices.need(each)
        self._in_flight = 0
        self._ended = asyncio.Event()
        #: Tokens that the server counted beyond the maximum.
        self._excess = Usage()
        self._exhausted: str | None = None

    def spent(self) -> Decimal:
        """What is spent or reserved, in the unit of the budget."""
        return sum((self._amount(model, usage) for model, usage in self.ledger.totals.copy().items()), Decimal(0))

    def spend(self, cached: int) -> Spend:
        """What was spent so far, over all runs in the folder; `cached`: the requests that were free."""
        totals = {self.model: Usage(), **self.ledger.totals}
        tokens = sum(totals.values(), Usage())
        costs = [self.prices[model].of(usage) for model, usage in totals.items() if model in self.prices]
        usd = float(sum(costs)) if len(costs) == len(totals) else None
        return Spend(self.ledger.paid, self.ledger.open, tokens.read, tokens.written, usd, cached)

    @asynccontextmanager
    async def reserve(self, maximum: Usage) -> AsyncIterator[Reservation]:
        """Reserve the maximum cost of the call that the block makes; raises `BudgetExhausted` if it does not fit."""
        while not self._fits(reserved := maximum + self._excess):
            if not self._in_flight or self._exhausted:
                self._raise_exhausted(reserved)
            await self._ended.wait()
        call, reservation = self.ledger.reserve(self.model, reserved), Reservation()
        self._in_flight += 1
        try:
            yield reservation
        finally:
            self._in_flight -= 1
            if reservation.cost is not None:
                self.ledger.settle(call, reservation.cost)
                self._excess = Usage(
                    max(self._excess.read, reservation.cost.read - maximum.read),
                    max(self._excess.written, reservation.cost.written - maximum.written),
                )
            self._ended.set()
            self._ended = asyncio.Event()

    def _fits(self, reserved: Usage) -> bool:
        if self.budget is None:
            return True
        return not self._exhausted and self.spent() + self._amount(self.model, reserved) <= self.budget.limit

    def _raise_exhausted(self, reserved: Usage) -> NoReturn:
        """Raise, now and for every later call: smaller calls must not continue while the run stops."""
        assert self.budget is not None
        amount = self.budget.format
        self._exhausted = self._exhausted or (
            f"the budget of {self.budget} is spent: {amount(self.spent())} so far, and the next call may cost "
            f"{amount(self._amount(self.model, reserved))}. All responses are saved next to {self.ledger.path}: run "
            "the same command with a larger budget to resume"
        )
        raise BudgetExhausted(self._exhausted)

    def _amount(self, model: str, usage: Usage) -> Decimal:
        if self.budget is not None and self.budget.unit == "usd":
            return self.prices.need(model).of(usage)
        return Decimal(usage.read + usage.written)


class BudgetEngine(OpenAIEngine):
    """An OpenAI engine that charges every attempt of a call to a `SpendLimiter`."""

    name: ClassVar[str] = "budget"

    def __init__(self, limiter: SpendLimiter, base_url: str | None = None, **options: Any) -> None:
        """`options` are those of `OpenAIEngine`."""
        super().__init__(limiter.model, base_url, **options)
        self.limiter = limiter
        self._reserved: set[object] = set()

    def close(self) -> None:
        """Cancel the calls in flight and close the ledger."""
        super().close()
        self.limiter.ledger.close()

    async def _call(self, request: Generate) -> bytes | openai.APIError | TimeoutError:
        task = asyncio.current_task()
        if task in self._reserved:
            # A recursive call with the other name of `max_tokens`: the server rejected the first, so the same
            # reservation covers this one.
            return await super()._call(request)
        maximum = max_usage(request)
        async with self.limiter.reserve(maximum) as reservation:
            self._reserved.add(task)
            try:
                response = await super()._call(request)
            finally:
                self._reserved.discard(task)
            reservation.cost = _cost(response, maximum)
        return response


def _cost(response: bytes | Exception, maximum: Usage) -> Usage | None:
    """The cost of an attempt; None if it is unknown whether it was billed."""
    if isinstance(response, bytes):
        try:
            body = json.loads(response.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            body = None
        counted = usage_of(body.get("usage")) if isinstance(body, dict) else Usage()
        return Usage(
            counted.read if counted.read > 0 else maximum.read,
            counted.written if counted.written > 0 else maximum.written,
        )
    if isinstance(response, openai.APIStatusError):
        return None if response.status_code in _GATEWAY_ERRORS else Usage()
    # By class name: the HTTP library depends on the version of the client.
    never_sent = type(response.__cause__).__name__ in ("ConnectError", "ConnectTimeout", "PoolTimeout")
    return Usage() if never_sent else None


def open_judge_engine(
    model: str,
    folder: Path,
    *,
    url: str | None = None,
    budget: Budget | None = None,
    prices: Path | None = None,
    **options: Any,
) -> CachedEngine:
    """Open an engine for a model at a URL (default: OpenAI). The budget is the total for the folder.

    `prices`: a price file in addition to the shipped one. `options`: those of `OpenAIEngine`.
    """
    with ExitStack() as opened:
        ledger = Ledger(folder / SPEND)
        opened.callback(ledger.close)
        limiter = SpendLimiter(ledger, model, PriceTable(prices), budget)
        engine = BudgetEngine(limiter, url, **options)
        opened.callback(engine.close)
        cached = CachedEngine(engine, folder / RESPONSES, f"{model} at {url}", limiter.spend)
        opened.pop_all()
        return cached
