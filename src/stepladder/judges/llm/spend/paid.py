"""The engine of a paid judge: every response is cached, every call is charged to a budget.

In: the name of a model, its server, a folder. Out: a `PaidEngine` for the driver. The folder holds the responses
(`replies.jsonl`) and the calls (`spend.jsonl`): a resumed run repeats no call, and earlier spending counts.

    with closing(open_judge_engine("gpt-4o-mini", folder, budget=Budget.parse("5usd"))) as engine:
        outcomes = Driver(engine).run(jobs)
        print(engine.spend())
"""

from decimal import Decimal
from pathlib import Path

from stepladder.core.trace import Usage
from stepladder.judges.llm.spend.budget import Budget, BudgetEngine, SpendLimiter
from stepladder.judges.llm.spend.ledger import Ledger
from stepladder.judges.llm.spend.prices import PriceTable, load_prices
from stepladder.judges.llm.spend.response_cache import RESPONSES, CachedEngine, ResponseCache, Spend

#: Name of the ledger in the folder.
SPEND = "spend.jsonl"


class PaidEngine(CachedEngine):
    """A cached engine that reports what was spent."""

    def __init__(self, engine: BudgetEngine, path: Path, model_name: str) -> None:
        super().__init__(engine, path, model_name)
        self._limiter = engine.limiter

    def spend(self) -> Spend:
        """What was spent so far, over all runs in the folder."""
        ledger = self._limiter.ledger
        totals = {self._limiter.model: Usage(), **ledger.totals}
        tokens = sum(totals.values(), Usage())
        usd = _usd(totals, self._limiter.prices)
        return Spend(ledger.paid, ledger.open, tokens.read, tokens.written, usd, self.cached)


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
    """Open an engine for a model at a URL (default: OpenAI). The budget is the total for the folder.

    `prices`: a price file in addition to the shipped one. `timeout` and `backoff` are in seconds (see `OpenAIEngine`).
    """
    table = load_prices(prices)
    ledger = Ledger(folder / SPEND)
    try:
        limiter = SpendLimiter(ledger, model, table, budget)
        engine = BudgetEngine(
            limiter, url, concurrency=concurrency, timeout=timeout, max_retries=retries, backoff=backoff
        )
    except BaseException:
        ledger.close()
        raise
    try:
        return PaidEngine(engine, folder / RESPONSES, _model_name(model, url))
    except BaseException:
        engine.close()
        raise


def cached_responses(folder: Path, model: str, url: str | None = None) -> ResponseCache:
    """The cached responses of a model in a folder. Needs no API key and no server."""
    return ResponseCache(folder / RESPONSES, _model_name(model, url))


def _model_name(model: str, url: str | None) -> str:
    return f"{model} at {url}"


def _usd(totals: dict[str, Usage], prices: PriceTable) -> float | None:
    dollars = Decimal(0)
    for model, usage in totals.items():
        price = prices.get(model)
        if price is None:
            return None
        dollars += price.of(usage)
    return float(dollars)
