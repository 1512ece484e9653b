"""Settings of a model as judge: which one, how it is asked, and what it may cost."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.judges.llm.llm_judge import LLMJudge, Mode, Order
from stepladder.judges.llm.spend.prices import Price, load_prices

if TYPE_CHECKING:  # brings the client of OpenAI, which takes a second
    from stepladder.judges.llm.local_engine import LocalEngine
    from stepladder.judges.llm.spend.paid import PaidEngine
    from stepladder.judges.llm.spend.response_cache import ResponseCache

#: Settings that change what judging costs, and no verdict.
COST_SETTINGS = ("budget", "prices", "concurrency", "timeout", "retries")
#: Files of a judge in a stage's folder: what was paid for holds under any settings.
PERSISTENT_FILES = ("replies.jsonl", "spend.jsonl")


def _a_budget(text: str) -> str:
    from stepladder.judges.llm.spend.budget import Budget

    try:
        Budget.parse(text)
    except StepladderError as error:
        raise ValueError(str(error)) from error
    return text


def _model_folder(model: str) -> Path | None:
    """The model folder that is meant, where it is one."""
    try:
        path = Path(model).expanduser().absolute()
    except RuntimeError:  # ~somebody, whom this machine does not know
        return None
    return path if (path / "config.json").is_file() else None


class LLMJudgeConfig(Config):
    """A model behind an OpenAI-compatible server, or on this machine."""

    #: Its name at the server; without a URL also a model folder, which is then played here.
    model: str = Field(min_length=1)
    #: URL of the server, such as http://localhost:8000/v1; null is OpenAI's own.
    url: str | None = None
    #: One best and one worst (ProRAG), all in order (RAG-Gym), or 0 to 100 for each (ReasonRAG).
    mode: Mode = "choice"
    #: In which order siblings are listed. `both` asks twice and keeps what both agree on.
    order: Order = "both"
    #: With mode `score`: least difference of two scores, between 0 and 1.
    score_margin: float = Field(default=0.1, gt=0, le=1)
    #: Most tokens of a reply.
    max_tokens: int = Field(default=512, ge=1)
    #: The most that may be spent in the stage's folder, over all attempts: 5usd, 2Mtok. Null is no limit.
    budget: Annotated[str, AfterValidator(_a_budget)] | None = None
    #: A file of prices (YAML) beyond those that are known.
    prices: Annotated[Path, AfterValidator(Path.absolute)] | None = None
    #: Calls that are under way at once; for a model played here, prompts in one batch.
    concurrency: int = Field(default=8, ge=1)
    #: Seconds of one call.
    timeout: float = Field(default=60.0, gt=0)
    retries: int = Field(default=5, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _folders_are_absolute(cls, data: Any) -> Any:
        # Only without a URL: what a server calls its model may also be the name of a folder here.
        if isinstance(data, dict) and data.get("url") is None and isinstance(model := data.get("model"), str):
            return {**data, "model": str(_model_folder(model) or model)}
        return data

    @property
    def is_local(self) -> bool:
        """Whether the model is played here."""
        return self.url is None and _model_folder(self.model) is not None

    def judge(self, mode: Mode | None = None) -> LLMJudge:
        """Who asks the questions, in the mode that was set or in another."""
        mode = mode or self.mode
        name = f"llm-{mode}-{self.order}" if mode != "score" else "llm-score"
        return LLMJudge(mode, order=self.order, margin=self.score_margin, max_tokens=self.max_tokens, name=name)

    def check(self) -> None:
        """Raise where the model could not be asked, or not be paid for, before anything is begun."""
        if self.is_local:
            if self.budget is not None:
                raise StepladderError(f"the judge {self.model} is played here and costs nothing: leave out the budget")
        elif self.url is None and self.model[0] in "./~":  # no server calls a model so
            raise StepladderError(f"the judge {self.model} is no model folder: there is no config.json in it")
        elif self.budget is not None and self.budget.lower().endswith("usd"):
            load_prices(self.prices).need(self.model)

    def price(self) -> Price | None:
        """What its tokens cost, if that is known."""
        return Price(input=Decimal(0), output=Decimal(0)) if self.is_local else load_prices(self.prices).get(self.model)

    def known(self, folder: Path) -> "ResponseCache":
        """The replies of this model that a folder holds."""
        from stepladder.judges.llm.local_engine import local_replies_in
        from stepladder.judges.llm.spend.paid import cached_responses

        return local_replies_in(folder, self.model) if self.is_local else cached_responses(folder, self.model, self.url)

    @contextmanager
    def engine(self, folder: Path, device: str = "auto") -> "Iterator[PaidEngine | LocalEngine]":
        """Who answers them. ResponseCache and spend are kept in the folder. `device` is for a model that is played here."""
        with closing(self._open(folder, device)) as engine:
            yield engine

    def _open(self, folder: Path, device: str) -> "PaidEngine | LocalEngine":
        if self.is_local:
            from stepladder.judges.llm.local_engine import open_local_judge

            return open_local_judge(Path(self.model), folder, self.concurrency, device)
        from stepladder.judges.llm.spend.budget import Budget
        from stepladder.judges.llm.spend.paid import open_judge_engine

        return open_judge_engine(
            self.model,
            folder,
            url=self.url,
            budget=None if self.budget is None else Budget.parse(self.budget),
            prices=self.prices,
            concurrency=self.concurrency,
            timeout=self.timeout,
            retries=self.retries,
        )
