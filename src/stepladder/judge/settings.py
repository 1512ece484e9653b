"""Settings of a model as judge: which one, how it is asked, and what it may cost."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from stepladder.errors import StepladderError
from stepladder.judge.llm import LLMJudge, Mode, Order
from stepladder.settings import Settings

if TYPE_CHECKING:  # brings the client of OpenAI, which takes a second
    from stepladder.judge.local import LocalEngine
    from stepladder.judge.paid import PaidEngine

#: Settings that change what judging costs, and no verdict.
COSTS = ("budget", "prices", "concurrency", "timeout", "retries")
#: Files of a judge in a stage's folder: what was paid for holds under any settings.
KEPT = ("replies.jsonl", "spend.jsonl")


def _a_budget(text: str) -> str:
    from stepladder.judge.budget import Budget

    try:
        Budget.parse(text)
    except StepladderError as error:
        raise ValueError(str(error)) from error
    return text


def _absolute_if_folder(model: str) -> str:
    path = Path(model).expanduser()
    return str(path.absolute()) if path.is_dir() else model


class LLMJudgeSettings(Settings):
    """A model behind an OpenAI-compatible server, or on this machine."""

    #: Its name at the server; without a URL also a model folder, which is then played here.
    model: Annotated[str, Field(min_length=1), AfterValidator(_absolute_if_folder)]
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
    prices: Path | None = None
    #: Calls that are under way at once; for a model played here, prompts in one batch.
    concurrency: int = Field(default=8, ge=1)
    #: Seconds of one call.
    timeout: float = Field(default=60.0, gt=0)
    retries: int = Field(default=5, ge=0)

    def judge(self) -> LLMJudge:
        """Who asks the questions."""
        name = f"llm-{self.mode}-{self.order}" if self.mode != "score" else "llm-score"
        return LLMJudge(self.mode, order=self.order, margin=self.score_margin, max_tokens=self.max_tokens, name=name)

    @property
    def is_local(self) -> bool:
        """Whether the model is played here."""
        return self.url is None and Path(self.model).is_dir()

    @contextmanager
    def engine(self, folder: Path) -> "Iterator[PaidEngine | LocalEngine]":
        """Who answers them. Replies and spend are kept in the folder."""
        with closing(self._open(folder)) as engine:
            yield engine

    def _open(self, folder: Path) -> "PaidEngine | LocalEngine":
        if self.is_local:
            from stepladder.judge.local import open_local_judge

            return open_local_judge(Path(self.model), folder, self.concurrency)
        from stepladder.judge.budget import Budget
        from stepladder.judge.paid import open_judge_engine

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
