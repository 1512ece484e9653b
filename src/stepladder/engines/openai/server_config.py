"""Settings of a policy behind an OpenAI-compatible server, or behind several servers with the same model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.core.io.masking import hide
from stepladder.engines.base import Engine
from stepladder.engines.spend.prices import Budget, PriceTable

_PREFIX = "policy-"
#: Files of a paid policy in the folder of a stage. They stay valid when settings change.
POLICY_FILES = (f"{_PREFIX}replies.jsonl", f"{_PREFIX}spend.jsonl")


def valid_budget(text: str) -> str:
    """The text of a budget; raises `ValueError` if it is none."""
    Budget.parse(text)
    return text


def _urls(value: Any) -> Any:
    given = value.split(",") if isinstance(value, str) else value
    return tuple(hide(str(url).strip()) for url in given or ())


class ServerConfig(Config):
    """Which server, which model, how many calls at once, and what they may cost."""

    #: The name of the model on the server; null is the recipe's `policy`, if `engine` is openai.
    model: str | None = None
    #: URL of the server, such as http://localhost:8000/v1, or a list of several; none is OpenAI.
    base_url: Annotated[tuple[str, ...], BeforeValidator(_urls)] = ()
    #: The endpoint: chat messages, or one prompt.
    api: Literal["chat", "completions"] = "chat"
    #: Concurrent calls, of all servers together.
    concurrency: int = Field(default=32, ge=1)
    #: Timeout of one call in seconds.
    timeout: float = Field(default=60.0, gt=0)
    retries: int = Field(default=5, ge=0)
    #: With format: constrained: whose fields carry the grammar. auto sends those of all, which most servers accept.
    grammar: Literal["auto", "vllm", "vllm<0.12", "sglang", "llama.cpp"] = "auto"
    #: Spending limit per stage, over all attempts to run it: 5usd, 2Mtok. Null is no limit.
    budget: Annotated[str, AfterValidator(valid_budget)] | None = None
    #: A price file (YAML) in addition to the shipped one.
    prices: Annotated[Path, AfterValidator(Path.absolute)] | None = None

    def check(self, model: str) -> None:
        """Raise an error early if the price of the model is needed and unknown."""
        if self.budget is not None and self.budget.lower().endswith("usd"):
            PriceTable(self.prices).need(model)

    def open(self, model: str, folder: Path | None, chat_options: Mapping[str, Any] | None = None) -> Engine:
        """The engine. With a budget, replies and spend are kept in the folder."""
        from stepladder.engines.openai.openai_engine import OpenAIEngine

        options: dict[str, Any] = {
            "api": self.api,
            "concurrency": self.concurrency,
            "timeout": self.timeout,
            "max_retries": self.retries,
            "grammar_kind": self.grammar,
            "extra_body": {"chat_template_kwargs": dict(chat_options)} if chat_options else None,
        }
        if self.budget is None:
            return OpenAIEngine(model, self.base_url, **options)
        if folder is None:
            raise StepladderError("a budget needs a folder that keeps the spend: add --out DIR, or remove the budget")
        from stepladder.engines.spend.budget import open_paid_engine

        budget = Budget.parse(self.budget)
        return open_paid_engine(
            model, folder, url=self.base_url or None, budget=budget, prices=self.prices, prefix=_PREFIX, **options
        )
