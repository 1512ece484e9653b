"""The engine of a judge that costs money: every reply is kept, every call is paid for out of a budget.

In: the name of a model, its server, a folder. Out: a `PaidEngine` for the driver. The folder holds the replies
(`replies.jsonl`) and the calls (`spend.jsonl`): a run that starts again asks for nothing it has, and what was spent
before counts.

    with closing(open_judge_engine("gpt-4o-mini", folder, budget=Budget.parse("5usd"))) as engine:
        outcomes = Driver(engine).run(jobs)
        print(engine.spend())
"""

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from stepladder.core.trace import Usage
from stepladder.judges.llm.spend.budget import Budget, BudgetEngine, SpendLimiter
from stepladder.judges.llm.spend.ledger import Ledger
from stepladder.judges.llm.spend.prices import PriceTable, load_prices
from stepladder.judges.llm.spend.response_cache import CachedEngine, ResponseCache

#: Files in the folder.
REPLIES, SPEND = "replies.jsonl", "spend.jsonl"


@dataclass(frozen=True, slots=True)
class Spend:
    """What a folder has paid for, over all runs in it."""

    #: Calls that were paid for, and those that may have been though no reply came; these count with their most.
    calls: int
    lost: int
    tokens_read: int
    tokens_written: int
    #: None where a model has no price.
    usd: float | None
    #: Requests of this run that were answered without a call.
    cached: int

    def line(self) -> str:
        """What was spent, and what was not, in few words."""
        dollars = "" if self.usd is None else f"${self.usd:,.4f}, "
        tokens = f"{self.tokens_read + self.tokens_written:,} tokens in {self.calls:,} calls"
        return f"{dollars}{tokens}, {self.cached:,} cached"


class PaidEngine(CachedEngine):
    """Remembers replies, and knows what was spent."""

    def __init__(self, engine: BudgetEngine, path: Path, model_name: str) -> None:
        super().__init__(engine, path, model_name)
        self._purse = engine.purse

    def spend(self) -> Spend:
        """What was spent so far."""
        ledger = self._purse.ledger
        totals = {self._purse.model: Usage(), **ledger.totals}
        tokens = sum(totals.values(), Usage())
        return Spend(
            ledger.paid, ledger.open, tokens.read, tokens.written, _usd(totals, self._purse.prices), self.cached
        )


def open_judge_engine(
    model: str,
    folder: Path,
    *,
    url: str | None = None,
    budget: Budget | None = None,
    prices: Path | None = None,
    concurrency: int = 8,
    timeout: float = 60.0,
    retries: int = 5,
    backoff: float = 1.0,
) -> PaidEngine:
    """An engine around a model at a URL (OpenAI's unless given). The budget is for the folder in total.

    `prices` is a file of prices beyond those known, `timeout` and `backoff` are seconds (see `OpenAIEngine`).
    """
    table = load_prices(prices)
    ledger = Ledger(folder / SPEND)
    try:
        purse = SpendLimiter(ledger, model, table, budget)
        engine = BudgetEngine(
            purse, url, concurrency=concurrency, timeout=timeout, max_retries=retries, backoff=backoff
        )
    except BaseException:
        ledger.close()
        raise
    try:
        return PaidEngine(engine, folder / REPLIES, _name(model, url))
    except BaseException:
        engine.close()
        raise


def cached_responses(folder: Path, model: str, url: str | None = None) -> ResponseCache:
    """The replies that a folder holds of a model: to see what is at hand, without a key or a server."""
    return ResponseCache(folder / REPLIES, _name(model, url))


def _name(model: str, url: str | None) -> str:
    return f"{model} at {url}"


def _usd(totals: dict[str, Usage], prices: PriceTable) -> float | None:
    dollars = Decimal(0)
    for model, usage in totals.items():
        price = prices.get(model)
        if price is None:
            return None
        dollars += price.of(usage)
    return float(dollars)
