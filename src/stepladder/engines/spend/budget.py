"""A hard spending limit: the maximum cost of every call is reserved before it is sent.

In: a budget such as `5usd` or `2Mtok`, prices, and the ledger of a folder. Out: `BudgetEngine`, an OpenAI engine that
sends a call only if the spend so far plus the maximum cost of this call and of those in flight fits into the budget.
The maximum is one token per byte of the messages, an allowance for the chat template, and `max_tokens`, for every
sample of a call. The server's own token count replaces it when the response arrives. Without a count, or with one that
cannot be true (a boolean, a negative number, fewer tokens than the text has words), the maximum is charged.

A call that does not fit waits for those in flight, which usually cost less than reserved. If it still does not fit when
they have ended, it raises `BudgetExhausted`: the run stops, and every paid response is in the cache.

Every attempt counts as a call. Attempts that the server never received or refused (4xx, or 503 with Retry-After) are
free. All others that end without a count (cancelled, timed out, disconnected, too long, 5xx) may have been billed: they
are charged their maximum.

A server that counts more than the maximum (its own system prompt, an ignored limit) can exceed the budget by the
difference, for each call that is sent before the first such count arrives. From then on the difference is added to
every reservation. The first call of a folder is sent alone, so that it shows how the server counts.

`open_paid_engine` adds the response cache. Its folder holds the responses (`replies.jsonl`) and the calls
(`spend.jsonl`): a resumed run repeats no call, and earlier spending counts.

    with closing(open_paid_engine("gpt-4o-mini", folder, budget=Budget.parse("5usd"))) as engine:
        outcomes = Driver(engine).run(jobs)
        print(engine.spend())
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from stepladder.core.errors import BackendDown
from stepladder.core.io.masking import hide
from stepladder.core.requests import Generate
from stepladder.core.trace import Usage
from stepladder.engines.openai.http_client import SENT
from stepladder.engines.openai.openai_engine import Attempt, OpenAIEngine, Replies
from stepladder.engines.openai.openai_protocol import RefusedCall, chat_messages, usage_of
from stepladder.engines.openai.servers import Server
from stepladder.engines.spend.ledger import Ledger
from stepladder.engines.spend.prices import Budget, PriceTable
from stepladder.engines.spend.response_cache import RESPONSES, CachedEngine, Spend

#: Maximum tokens that a chat template adds per message, and per call (a default system prompt).
TEMPLATE_PER_MESSAGE, TEMPLATE_PER_CALL = 16, 256

#: Name of the ledger in the folder.
SPEND = "spend.jsonl"

#: Bytes of the longest plausible token. A server that counts fewer tokens has not counted.
_MAX_BYTES_PER_TOKEN = 32


class BudgetExhausted(BackendDown):
    """The next call might exceed the budget. The run stops; paid responses are kept."""


def max_usage(request: Generate, samples: int = 1) -> Usage:
    """The maximum tokens of one call with any tokenizer: no token is shorter than a byte.

    Some servers count the prompt once per sample.
    """
    contents = [message["content"] for message in chat_messages(request.context)]
    read = sum(len(content.encode()) + TEMPLATE_PER_MESSAGE for content in contents)
    return Usage(samples * (TEMPLATE_PER_CALL + read), samples * request.sampling.max_tokens)


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
        #: Why the server was given up. Later calls, and those that wait at that moment, are not sent.
        self.failure = ""
        self._in_flight = 0
        self._ended = asyncio.Event()
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
        while self.budget is not None:
            if self.failure:
                raise BackendDown(self.failure)
            reserved = maximum + self.ledger.excess.get(self.model, Usage())
            fits = self.spent() + self._amount(self.model, reserved) <= self.budget.limit and not self._exhausted
            if fits and (self.ledger.paid or not self._in_flight):  # the first call alone: it shows how calls count
                break
            if self._exhausted or not self._in_flight:
                self._raise_exhausted(reserved)
            await self._ended.wait()
        call, reservation = self.ledger.reserve(self.model, maximum), Reservation()
        self._in_flight += 1
        try:
            reservation.cost = Usage()  # not sent, unless the record is on the disk
            await asyncio.get_running_loop().run_in_executor(None, self.ledger.sync)
            reservation.cost = None
            yield reservation
        finally:
            self._in_flight -= 1
            self._ended.set()
            self._ended = asyncio.Event()
            if reservation.cost is not None:
                self.ledger.settle(call, reservation.cost)

    def _raise_exhausted(self, reserved: Usage) -> NoReturn:
        """Raise, now and for every later call: smaller calls must not continue while the run stops."""
        assert self.budget is not None
        amount, lost = self.budget.format, self.ledger.open - self._in_flight
        uncounted = f" ({lost:,} calls that may have been billed count with their maximum)" if lost else ""
        self._exhausted = self._exhausted or (
            f"the budget of {self.budget} is spent: {amount(self.spent())} so far{uncounted}, and the next call may "
            f"cost {amount(self._amount(self.model, reserved))}. All responses are saved next to {self.ledger.path}: "
            "run the same command with a larger budget to resume"
        )
        raise BudgetExhausted(self._exhausted)

    def _amount(self, model: str, usage: Usage) -> Decimal:
        if self.budget is not None and self.budget.unit == "usd":
            return self.prices.need(model).of(usage)
        return Decimal(usage.read + usage.written)


class BudgetEngine(OpenAIEngine):
    """An OpenAI engine that charges every attempt of a call to a `SpendLimiter`."""

    name: ClassVar[str] = "budget"

    def __init__(self, limiter: SpendLimiter, base_url: str | Sequence[str] | None = None, **options: Any) -> None:
        """`options` are those of `OpenAIEngine`."""
        super().__init__(limiter.model, base_url, **options)
        self.limiter = limiter
        #: Gets the replies to a call as soon as they are there, before those to the rest of a batch.
        self.on_replies: Callable[[Sequence[Generate], Replies], None] = lambda _, __: None

    def close(self) -> None:
        """Cancel the calls in flight and close the ledger."""
        super().close()
        self.limiter.ledger.close()

    def _fail(self, message: str) -> NoReturn:
        self.limiter.failure = message
        super()._fail(message)

    async def _complete(self, requests: Sequence[Generate]) -> Replies:
        replies = await super()._complete(requests)
        self.on_replies(requests, replies)
        return replies

    async def _call(self, requests: Sequence[Generate], server: Server) -> Attempt:
        maximum = max_usage(requests[0], len(requests))
        async with self.limiter.reserve(maximum) as reservation:
            SENT.set(False)
            try:
                response = await super()._call(requests, server)
            except BaseException:  # cancelled
                reservation.cost = None if SENT.get() else Usage()
                raise
            reservation.cost = _cost(response, maximum, len(requests)) if SENT.get() else Usage()
        return response


def _cost(response: Attempt, maximum: Usage, samples: int) -> Usage | None:
    """The cost of an attempt that was sent; None if it may have been billed and the server has not counted it."""
    if isinstance(response, bytes):
        return _counted(_json(response), maximum, samples) or maximum
    if isinstance(response, RefusedCall):
        return _counted(_json(response.body), maximum, samples) or (Usage() if _refused(response) else None)
    return None


def _refused(error: RefusedCall) -> bool:
    """Whether a server refused a request before it did any work. Content filters run after the prompt was read."""
    if error.status == 503:
        return "retry-after" in error.headers
    return 400 <= error.status < 500 and error.status not in (408, 499) and "filter" not in error.code


def _counted(body: object, maximum: Usage, samples: int) -> Usage | None:
    """The server's count of a call, or None; what cannot be true is replaced by the maximum."""
    usage = body.get("usage") if isinstance(body, dict) else None
    if not isinstance(usage, dict) or not any(usage.values()):
        return None
    counted = usage_of(usage)
    least_read = max((maximum.read // samples - TEMPLATE_PER_CALL) // _MAX_BYTES_PER_TOKEN, 1)
    least_written = max(len(_reply_text(body).encode("utf-8", "replace")) // _MAX_BYTES_PER_TOKEN, 1)
    if samples > 1:  # llama.cpp counts the tokens of one sample only
        least_written = max(least_written, _cut_off(body) * (maximum.written // samples))
    return Usage(
        counted.read if counted.read >= least_read else maximum.read,
        counted.written if counted.written >= least_written else maximum.written,
    )


def _json(data: bytes) -> object:
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _reply_text(body: Any) -> str:
    """The texts of all choices."""
    texts = []
    for choice in body.get("choices") or () if isinstance(body.get("choices"), list) else ():
        with suppress(LookupError, TypeError):
            texts.append(str(choice["message"]["content"] if "message" in choice else choice["text"] or ""))
    return "".join(texts)


def _cut_off(body: Any) -> int:
    """How many samples reached the token limit."""
    choices = body.get("choices")
    found = [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []
    return sum(choice.get("finish_reason") == "length" for choice in found)


def open_paid_engine(
    model: str,
    folder: Path,
    *,
    url: str | Sequence[str] | None = None,
    budget: Budget | None = None,
    prices: Path | None = None,
    prefix: str = "",
    **options: Any,
) -> CachedEngine:
    """Open an engine for a model at a URL (default: OpenAI). The budget is the total for the folder.

    `prices`: a price file in addition to the shipped one. `prefix`: of the names of the files. `options`: those of
    `OpenAIEngine`.
    """
    with ExitStack() as opened:
        ledger = Ledger(folder / f"{prefix}{SPEND}")
        opened.callback(ledger.close)
        limiter = SpendLimiter(ledger, model, PriceTable(prices), budget)
        engine = BudgetEngine(limiter, url, **options)
        opened.callback(engine.close)
        # Several servers have the same model: which of them answered makes no difference.
        place = hide(url) if isinstance(url, str) else url and "its servers"
        asked = {name: value for name in ("api", "extra_body") if (value := options.get(name)) not in (None, "chat")}
        name = f"{model} at {place}" + (f" with {json.dumps(asked, sort_keys=True)}" if asked else "")
        cached = CachedEngine(engine, folder / f"{prefix}{RESPONSES}", name, limiter.spend)
        engine.on_replies = cached.keep
        opened.pop_all()
        return cached
