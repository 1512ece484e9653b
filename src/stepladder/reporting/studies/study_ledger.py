"""The ledger of a study: what each arm consumed, in labels, judge calls, tokens and seconds.

In: the run of an arm and the names of its stages. Out: a `Ledger`. Evaluations are not counted. Questions and labels
are distinct: a question that two stages used counts once. None means not counted, which is not 0.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from rich.console import Console

from stepladder.core.errors import StepladderError
from stepladder.data.data_config import DataConfig
from stepladder.engines.vllm.settings import VLLM_ENGINES
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.run_folder import StageRecord
from stepladder.pipeline.stage import EVALUATION, EXAMINATION, FinishedStage, Labels
from stepladder.pipeline.stages import get_stage
from stepladder.reporting.report.cost import cost_of
from stepladder.reporting.report.run_data import RunData, finished

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Ledger:
    """What stages of one run consumed, or the mean over runs."""

    questions: float | None = None
    #: Questions whose gold answer was used, and whose gold decomposition or gold passages were.
    answers: float | None = None
    decompositions: float | None = None
    #: Calls of LLM judges.
    judge_calls: float | None = None
    episodes: float | None = None
    updates: float | None = None
    #: Of the models that generated: tokens of prompts, and sampled ones. Those of LLM judges are not included.
    tokens_read: float | None = None
    tokens_sampled: float | None = None
    #: Tokens that training went over, repeats included.
    tokens_trained: float | None = None
    #: Wall-clock seconds, those during which a GPU was held, and processor seconds of the main process.
    seconds: float | None = None
    gpu_seconds: float | None = None
    cpu_seconds: float | None = None

    @property
    def tokens(self) -> float | None:
        """Tokens read and sampled."""
        return _total((self.tokens_read, self.tokens_sampled))

    def plain(self) -> dict[str, float | None]:
        """As JSON-compatible data."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def mean_ledger(ledgers: Sequence[Ledger]) -> Ledger:
    """The mean over runs. What one of them did not count is not known."""

    def mean(name: str) -> float | None:
        total = _total(getattr(each, name) for each in ledgers)
        return None if total is None or not ledgers else total / len(ledgers)

    return Ledger(**{each.name: mean(each.name) for each in fields(Ledger)})


class LedgerReader:
    """Reads ledgers. Keeps the data sets that it opens."""

    def __init__(self) -> None:
        self._contexts: dict[DataConfig, RunContext] = {}

    def read(self, run: RunData, stages: Collection[str], counted: str | None = None) -> Ledger:
        """What these stages of a run consumed, evaluations excepted, but for the one that is to be `counted`."""
        records = [
            each for each in run.report.stages if each.name in stages and (each.name == counted or not _evaluates(each))
        ]
        opened = [(each, finished(run, each, self._context(run))) for each in records]
        labels = _known(_labels_of(record, stage) for record, stage in opened)
        questions = _known(_questions_of(record, stage) for record, stage in opened)
        joined = None if labels is None else _joined(labels)
        return Ledger(
            questions=None if questions is None else len(frozenset[str]().union(*questions)),
            answers=None if joined is None else len(joined.answers),
            decompositions=None if joined is None else len(joined.decompositions),
            judge_calls=sum(_judge_calls(each.summary) for each in records),
            episodes=_total(_episodes(record, stage) for record, stage in opened),
            updates=sum(each.summary.get("steps", 0) for each in records if get_stage(each.kind).trains),
            tokens_read=_total(_tokens(run, record, stage, "tokens_read") for record, stage in opened),
            tokens_sampled=_total(_tokens(run, record, stage, "tokens_written") for record, stage in opened),
            tokens_trained=sum(cost_of(run, each).tokens_trained or 0 for each in records),
            seconds=sum(each.seconds for each in records),
            gpu_seconds=_gpu_seconds(run, records),
            cpu_seconds=_cpu_seconds(run, records),
        )

    def _context(self, run: RunData) -> RunContext:
        shared = run.report.recipe.shared
        return self._contexts.setdefault(shared.data, RunContext(shared, Console(quiet=True)))


def _evaluates(record: StageRecord) -> bool:
    return not {EVALUATION, EXAMINATION}.isdisjoint(get_stage(record.kind).outputs)


def _labels_of(record: StageRecord, stage: FinishedStage) -> Labels | None:
    return _unless_deleted(lambda: get_stage(record.kind).labels(stage))


def _questions_of(record: StageRecord, stage: FinishedStage) -> frozenset[str] | None:
    def read() -> frozenset[str] | None:
        ids = get_stage(record.kind).questions(stage)
        return None if ids is None else frozenset(ids)

    return _unless_deleted(read)


def _unless_deleted(read: Callable[[], Value]) -> Value | None:
    """What is read, None if the data or the trees that it needs are gone."""
    try:
        return read()
    except (StepladderError, OSError):
        return None


def _joined(labels: Iterable[Labels]) -> Labels:
    found = Labels()
    for each in labels:
        found |= each
    return found


def _judge_calls(numbers: Mapping[str, Any]) -> int:
    """Calls of an LLM judge: those paid for, else its prompts."""
    asked = numbers.get("asked")
    prompts = int(asked["asked"]) if isinstance(asked, Mapping) else 0
    return int(numbers["spend"]["calls"]) if "spend" in numbers else prompts


def _episodes(record: StageRecord, stage: FinishedStage) -> float | None:
    """Episodes and simulations that were sampled; None if a model generated and they were not counted."""
    numbers = record.summary
    if "simulations" in numbers:
        return round(float(numbers["simulations"]) * int(numbers["trees"]))
    counted = next((numbers[name] for name in ("episodes", "sampled") if isinstance(numbers.get(name), int)), None)
    return 0 if counted is None and not get_stage(record.kind).generates(stage.settings) else counted


def _tokens(run: RunData, record: StageRecord, stage: FinishedStage, name: str) -> float | None:
    counted: int | None = getattr(cost_of(run, record), name)
    generated = get_stage(record.kind).generates(stage.settings) or "tokens_sampled" in record.summary
    return counted if counted is not None or generated else 0


def _gpu_seconds(run: RunData, records: Sequence[StageRecord]) -> float | None:
    """Seconds on a GPU; None if the run went on on a machine without, or its devices are not known."""
    kinds = {str(session["device"]).startswith("cuda") if "device" in session else None for session in run.sessions}
    if len(kinds) != 1 or None in kinds:
        return None
    return sum(each.seconds for each in records) if True in kinds else 0.0


def _cpu_seconds(run: RunData, records: Sequence[StageRecord]) -> float | None:
    """Processor seconds; None if other processes generated, whose seconds are not recorded."""
    shared = run.report.recipe.shared
    if shared.ray is not None or shared.engine in VLLM_ENGINES:
        return None
    return _total(each.cpu_seconds for each in records)


def _known(values: Iterable[Any]) -> list[Any] | None:
    listed = list(values)
    return None if any(each is None for each in listed) else listed


def _total(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return None if known is None else math.fsum(known)
