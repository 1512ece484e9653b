"""A budget that is never passed: every call is paid for before it is sent.

In: a budget such as `5usd` or `2Mtok`, prices, and the ledger of a folder. Out: `BudgetEngine`, an OpenAI engine that
sends a call only if all that was spent, and the most that it and the calls under way may cost, fit into the budget.
The most a call may cost is one token a byte of its messages, some for the chat template, and `max_tokens`. When the
reply is there, the server's own count takes its place; a server that does not count is charged the most.

A call that does not fit waits for those under way, which mostly cost less than their most. If it does not fit when
they have ended, it raises `BudgetExhausted`: the run stops, and every reply that was paid for is on record.

Every attempt of a call is a call here. Those that the server refused or never received cost nothing. Those that may
have been billed without a reply, which were cancelled, timed out or broken off, or lost by a gateway, are charged the
most they may have cost, for good: a strict budget cannot hope.

A server that counts more than that (a long system prompt of its own, a limit it ignores) can pass the budget by what
nobody could know; the difference is learnt at the first reply and added to every call from there on.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar, Literal, NoReturn

import openai

from stepladder.core.errors import BackendDown, StepladderError
from stepladder.core.requests import Generate
from stepladder.core.trace import Usage
from stepladder.engines.openai import OpenAIEngine
from stepladder.engines.openai_protocol import chat_messages, usage_of
from stepladder.judges.llm.spend.ledger import Ledger
from stepladder.judges.llm.spend.prices import PriceTable

#: Tokens that a chat template puts around a message, and before all of them (a default system prompt), at most.
TEMPLATE_PER_MESSAGE, TEMPLATE_PER_CALL = 16, 256

_BUDGET = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(usd|tok|ktok|mtok)", re.IGNORECASE)
_TOKENS = {"tok": 1, "ktok": 1_000, "mtok": 1_000_000}

#: Errors that a server answers with and that may hide a reply which was made: a gateway did not wait for it.
_LOST_BY_A_GATEWAY = frozenset({408, 502, 504, *range(520, 528)})


class BudgetExhausted(BackendDown):
    """The next call might pass the budget. The run stops; what was paid for is kept."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that may be spent: US dollars, or tokens read and written together."""

    limit: Decimal
    unit: Literal["usd", "tok"]

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """The budget that a user wrote.

        >>> print(Budget.parse("0.5usd"), Budget.parse("2Mtok"), Budget.parse("300ktok"))
        0.5usd 2000000tok 300000tok
        """
        match = _BUDGET.fullmatch(text.strip())
        if match is None:
            raise StepladderError(
                f"budget is {text!r}; expected US dollars or tokens, such as 5usd, 0.5usd, 2Mtok, 300ktok or 1500tok"
            )
        amount, unit = Decimal(match[1]), match[2].lower()
        if unit == "usd":
            return cls(amount, "usd")
        tokens = amount * _TOKENS[unit]
        if tokens != int(tokens):
            raise StepladderError(f"budget is {text!r}, which is no whole number of tokens")
        return cls(Decimal(int(tokens)), "tok")

    def __str__(self) -> str:
        return f"{self.limit}{self.unit}"

    def shown(self, amount: Decimal) -> str:
        """An amount in the budget's unit, for people."""
        return f"${amount:.4f}" if self.unit == "usd" else f"{amount:,} tokens"


def max_usage(request: Generate) -> Usage:
    """The most tokens that one call can cost, whatever the tokenizer: no token is shorter than a byte."""
    contents = [message["content"] for message in chat_messages(request.context)]
    read = sum(len(content.encode()) + TEMPLATE_PER_MESSAGE for content in contents)
    return Usage(TEMPLATE_PER_CALL + read, request.sampling.max_tokens)


class Hold:
    """The most a call may cost, put aside while it is under way. `cost` is set when its end is known."""

    def __init__(self) -> None:
        self.cost: Usage | None = None


class SpendLimiter:
    """Pays for the calls of one model, out of a budget if there is one. Used on one event loop."""

    def __init__(self, ledger: Ledger, model: str, prices: PriceTable, budget: Budget | None = None) -> None:
        self.ledger = ledger
        self.model = model
        self.prices = prices
        self.budget = budget
        if budget is not None and budget.unit == "usd":
            for each in (model, *ledger.totals):
                prices.need(each)
        self._under_way = 0
        self._ended = asyncio.Event()
        #: Tokens that the server counted beyond the most it was thought to.
        self._unseen = Usage()
        self._refused: str | None = None

    def spent(self) -> Decimal:
        """What is spent or put aside, in the unit of the budget."""
        return sum((self._amount(model, usage) for model, usage in self.ledger.totals.copy().items()), Decimal(0))

    @asynccontextmanager
    async def pay(self, most: Usage) -> AsyncIterator[Hold]:
        """Put aside the most a call may cost, while the block makes it; raises `BudgetExhausted` where it does not fit."""
        while not self._fits(reserve := most + self._unseen):
            if not self._under_way or self._refused:
                self._refuse(reserve)
            await self._ended.wait()
        call, hold = self.ledger.hold(self.model, reserve), Hold()
        self._under_way += 1
        try:
            yield hold
        finally:
            self._under_way -= 1
            if hold.cost is not None:
                self.ledger.settle(call, hold.cost)
                self._unseen = Usage(
                    max(self._unseen.read, hold.cost.read - most.read),
                    max(self._unseen.written, hold.cost.written - most.written),
                )
            self._ended.set()
            self._ended = asyncio.Event()

    def _fits(self, most: Usage) -> bool:
        if self.budget is None:
            return True
        return not self._refused and self.spent() + self._amount(self.model, most) <= self.budget.limit

    def _refuse(self, most: Usage) -> NoReturn:
        """From now on nothing is paid for: smaller calls must not go on while the run is being stopped."""
        assert self.budget is not None
        shown = self.budget.shown
        self._refused = self._refused or (
            f"the budget of {self.budget} is spent: {shown(self.spent())} so far, and the next call may cost "
            f"{shown(self._amount(self.model, most))}. Every reply is kept beside {self.ledger.path}: with a larger "
            "budget the same command goes on from there"
        )
        raise BudgetExhausted(self._refused)

    def _amount(self, model: str, usage: Usage) -> Decimal:
        if self.budget is not None and self.budget.unit == "usd":
            return self.prices.need(model).of(usage)
        return Decimal(usage.read + usage.written)


class BudgetEngine(OpenAIEngine):
    """An OpenAI engine that pays for every attempt of a call out of a purse."""

    name: ClassVar[str] = "budget"

    def __init__(
        self,
        purse: SpendLimiter,
        base_url: str | None = None,
        *,
        concurrency: int = 32,
        timeout: float = 60.0,
        max_retries: int = 5,
        backoff: float = 1.0,
    ) -> None:
        """The rest is as for any `OpenAIEngine`."""
        super().__init__(
            purse.model,
            base_url,
            concurrency=concurrency,
            timeout=timeout,
            max_retries=max_retries,
            backoff=backoff,
        )
        self.purse = purse
        self._paying: set[object] = set()

    def close(self) -> None:
        """End the calls under way, and let go of the ledger."""
        super().close()
        self.purse.ledger.close()

    async def _call(self, request: Generate) -> bytes | openai.APIError | TimeoutError:
        task = asyncio.current_task()
        if task in self._paying:
            # Called again by itself, with the other name of `max_tokens`: what was put aside serves for this one, as
            # the server refused the first.
            return await super()._call(request)
        most = max_usage(request)
        async with self.purse.pay(most) as hold:
            self._paying.add(task)
            try:
                reply = await super()._call(request)
            finally:
                self._paying.discard(task)
            hold.cost = _cost(reply, most)
        return reply


def _cost(reply: bytes | Exception, most: Usage) -> Usage | None:
    """What an attempt has cost; None when nobody knows whether it was billed."""
    if isinstance(reply, bytes):
        counted = _counted(reply)
        return Usage(
            counted.read if counted.read > 0 else most.read,
            counted.written if counted.written > 0 else most.written,
        )
    if isinstance(reply, openai.APIStatusError):
        return None if reply.status_code in _LOST_BY_A_GATEWAY else Usage()
    # By name: which HTTP library the client uses depends on its version.
    never_sent = type(reply.__cause__).__name__ in ("ConnectError", "ConnectTimeout", "PoolTimeout")
    return Usage() if never_sent else None


def _counted(body: bytes) -> Usage:
    """The server's count of tokens; zero where it does not tell."""
    try:
        reply = json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return Usage()
    return usage_of(reply.get("usage")) if isinstance(reply, dict) else Usage()
