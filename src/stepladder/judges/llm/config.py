"""Settings of an LLM judge: the model, the mode of judging, and the budget."""

import os
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.engines.openai.server_config import valid_budget
from stepladder.engines.spend.prices import Budget, Price, PriceTable
from stepladder.engines.spend.response_cache import RESPONSES, CachedEngine, ResponseCache
from stepladder.judges.llm.llm_judge import LLMJudge, Mode, Order

#: Settings that change costs but no verdict.
COST_SETTINGS = ("budget", "prices", "concurrency", "timeout", "retries")
#: Files of a judge in the folder of a stage. They stay valid when settings change.
PERSISTENT_FILES = (RESPONSES, "spend.jsonl")


def _model_folder(model: str) -> Path | None:
    """The path of a model folder, or None if `model` is not one."""
    try:
        path = Path(model).expanduser().absolute()
    except RuntimeError:  # ~name of an unknown user
        return None
    return path if (path / "config.json").is_file() else None


class LLMJudgeConfig(Config):
    """A model behind an OpenAI-compatible server, or on this machine."""

    #: The name of the model on the server. Without a URL also a model folder, which then runs locally.
    model: str = Field(min_length=1)
    #: URL of the server, such as http://localhost:8000/v1; null is OpenAI.
    url: str | None = None
    #: The best and the worst step (ProRAG), a ranking (RAG-Gym), a score from 0 to 100 for each step, or for the whole
    #: reasoning up to it by a judge that knows the golden answer (value: ReasonRAG).
    mode: Mode = "choice"
    #: The order in which siblings are listed. `both` asks twice and keeps what both replies agree on.
    order: Order = "both"
    #: With mode `score` or `value`: minimum difference between two scores, between 0 and 1.
    score_margin: float = Field(default=0.1, gt=0, le=1)
    #: Maximum tokens of a reply.
    max_tokens: int = Field(default=512, ge=1)
    #: Spending limit for the folder of the stage, over all runs: 5usd, 2Mtok. Null is no limit.
    budget: Annotated[str, AfterValidator(valid_budget)] | None = None
    #: A price file (YAML) in addition to the shipped one.
    prices: Annotated[Path, AfterValidator(Path.absolute)] | None = None
    #: Concurrent calls; for a local model, prompts per batch.
    concurrency: int = Field(default=8, ge=1)
    #: Timeout of one call in seconds.
    timeout: float = Field(default=60.0, gt=0)
    retries: int = Field(default=5, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _folders_are_absolute(cls, data: Any) -> Any:
        # Only without a URL: the name of a model on a server may also be a local folder.
        if isinstance(data, dict) and data.get("url") is None and isinstance(model := data.get("model"), str):
            return {**data, "model": str(_model_folder(model) or model)}
        return data

    def unused(self) -> Mapping[str, str]:
        """Settings of other modes."""
        if self.mode in ("score", "value"):
            return {"order": f"with mode: {self.mode} (every step is scored alone)"}
        return {"score_margin": f"with mode: {self.mode} (it gives no scores)"}

    @property
    def is_local(self) -> bool:
        """Whether the model runs locally."""
        return self.url is None and _model_folder(self.model) is not None

    def judge(self, mode: Mode | None = None) -> LLMJudge:
        """The judge, in the configured mode or in `mode`."""
        mode = mode or self.mode
        name = f"llm-{mode}" if mode in ("score", "value") else f"llm-{mode}-{self.order}"
        return LLMJudge(mode, order=self.order, margin=self.score_margin, max_tokens=self.max_tokens, name=name)

    def check(self) -> None:
        """Raise an error early if the model cannot be called, or if its price is needed and unknown."""
        if self.is_local:
            if self.budget is not None:
                raise StepladderError(f"the judge {self.model} runs locally and costs nothing: remove the budget")
        elif self.url is None and self.model[0] in "./~":  # certainly a path, not the name of a model
            raise StepladderError(f"the judge {self.model} is not a model folder: it has no config.json")
        elif self.budget is not None and self.budget.lower().endswith("usd"):
            PriceTable(self.prices).need(self.model)
        if not (self.is_local or self.url or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY")):
            raise StepladderError(
                f"the judge {self.model} is asked at OpenAI, which needs a key: set the environment variable "
                "OPENAI_API_KEY, or name another server with --judge-url URL (eval: --answer-judge-url; in a recipe "
                "llm.url)"
            )

    def price(self) -> Price | None:
        """The price of its tokens, if known."""
        return Price(input=Decimal(0), output=Decimal(0)) if self.is_local else PriceTable(self.prices).get(self.model)

    def cached_responses(self, folder: Path) -> ResponseCache:
        """The cached responses of this model in a folder."""
        return ResponseCache(folder / RESPONSES, self.model if self.is_local else f"{self.model} at {self.url}")

    def open_engine(self, folder: Path, device: str = "auto") -> CachedEngine:
        """Open the engine of the judge. Responses and spend are kept in the folder. `device`: for a local model."""
        if self.is_local:
            from stepladder.engines.transformers.engine import TransformersEngine  # imports torch

            engine = TransformersEngine(self.model, device=device, max_batch=self.concurrency)
            return CachedEngine(engine, folder / RESPONSES, self.model)
        from stepladder.engines.spend.budget import open_paid_engine

        return open_paid_engine(
            self.model,
            folder,
            url=self.url,
            budget=None if self.budget is None else Budget.parse(self.budget),
            prices=self.prices,
            concurrency=self.concurrency,
            timeout=self.timeout,
            max_retries=self.retries,
        )
